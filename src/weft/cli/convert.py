"""`weft convert` writes a Hugging Face folder as a GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weft.cli.command import usage_error
from weft.cli.console import errors, size_text
from weft.frontends.gguf.mixes import MIXES, find_mix
from weft.frontends.gguf.quantize import quantize_file
from weft.frontends.hf.convert import (
    OUTPUT_TYPES,
    TOWER_TYPES,
    ConvertedTensor,
    convert_folder,
)
from weft.frontends.models import open_model
from weft.llm.hub import local_path

__all__ = ["MaxSize", "convert", "parse_size"]


def parse_size(text: str | int) -> int:
    """Parses a number of bytes, such as `4G` or `500M` (thousands, as llama.cpp counts them)."""
    text = str(text)
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    factor = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}.get(unit)
    if factor is None or not number.isdigit():
        raise typer.BadParameter(f"{text!r} is no size; write 4G, 500M or a number of bytes")
    return int(number) * factor


MaxSize = Annotated[
    int,
    typer.Option(
        "--split-max-size", "--split", "--max-size", parser=parse_size, metavar="SIZE",
        help="Several files of at most so many bytes: 4G, 500M.", show_default=False,
    ),
]  # fmt: skip
MaxTensors = Annotated[
    int,
    typer.Option(
        "--split-max-tensors", "--max-tensors", metavar="N", min=0, show_default=False,
        help="Several files of at most so many tensors.",
    ),
]  # fmt: skip


def convert(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER", parser=local_path,
            help="A folder with config.json, safetensors and a tokenizer, or hf:OWNER/NAME.",
        ),
    ],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="The GGUF file to write.")],
    to: Annotated[
        str,
        typer.Option(
            "--type", "--outtype", metavar="TYPE",
            help=f"One of {', '.join(OUTPUT_TYPES)}, or a mix of weft quantize, such as Q4_K_M. "
            "auto keeps the 16-bit type of the folder.",
        ),
    ] = "auto",
    max_bytes: MaxSize = 0,
    max_tensors: MaxTensors = 0,
    name: Annotated[
        str | None, typer.Option("--model-name", metavar="NAME", help="The name of the model.")
    ] = None,
    mmproj: Annotated[
        bool, typer.Option("--mmproj", help="Write the model's tower for images instead.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="List every tensor.")] = False,
) -> None:  # fmt: skip
    """Write a Hugging Face folder as a GGUF file, with the bytes of llama.cpp's converter."""
    kind = to.lower()
    if not source.is_dir():
        what = "no folder; weft quantize takes GGUF files" if source.exists() else "not there"
        raise usage_error(f"{source} is {what}")
    if mmproj and kind not in TOWER_TYPES:
        raise usage_error(f"--mmproj takes --type {', '.join(TOWER_TYPES)}, not {to}")
    if kind not in OUTPUT_TYPES:
        _quantized(source, target, to, max_bytes or max_tensors)
        return

    def show(t: ConvertedTensor) -> None:
        if verbose:
            sizes = " x ".join(str(n) for n in t.shape)
            errors.print(
                f"{t.name:<40} {t.before:>5} -> {t.after.name:<5} {sizes:>20} "
                f"{size_text(t.nbytes):>12}",
                markup=False, soft_wrap=True,
            )  # fmt: skip

    tensors = convert_folder(
        source, target, kind, name=name, tower=mmproj, max_bytes=max_bytes, max_tensors=max_tensors,
        progress=show,
    )  # fmt: skip
    _say(target, len(tensors), sum(t.nbytes for t in tensors))


def _quantized(source: Path, target: Path, to: str, splits: int) -> None:
    """Converts and quantizes at once."""
    if to.upper() not in MIXES:
        find_mix(to)  # says what there is
    if splits:
        raise usage_error(f"--split does not go with --type {to}; use weft gguf split afterwards")
    tensors = quantize_file(open_model(source, to_write=True), target, to)
    _say(target, len(tensors), sum(t.new_bytes for t in tensors))


def _say(target: Path, n: int, nbytes: int) -> None:
    errors.print(f"{target}: {n} tensors, {size_text(nbytes)}", markup=False, soft_wrap=True)
