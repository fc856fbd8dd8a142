"""`weft quantize` writes a model with its matrices in another type."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weft.cli.console import errors, note, size_text
from weft.frontends.gguf.mixes import MIXES, find_mix
from weft.frontends.gguf.quantize import QuantizedTensor, quantize_file
from weft.frontends.models import open_model
from weft.llm.hub import local_path

__all__ = ["quantize"]


def quantize(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="IN",
            parser=local_path,
            help="The GGUF file or Hugging Face folder to read, or hf:OWNER/NAME[:QUANT].",
        ),
    ],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="The GGUF file to write.")],
    to: Annotated[str, typer.Argument(metavar="TYPE", help=f"In any case: {', '.join(MIXES)}.")],
    threads: Annotated[int | None, typer.Argument(hidden=True)] = None,
    pure: Annotated[
        bool,
        typer.Option("--pure", help="One type for every matrix, without more bits for some."),
    ] = False,
    no_effect: Annotated[
        bool, typer.Option("--allow-requantize", hidden=True)  # as it is
    ] = False,
) -> None:
    """Write a model again with its matrices in another type."""
    mix = find_mix(_named(to))
    if threads is not None:
        note(f"{threads} changes nothing: tensors are quantized one after the other")

    def show(t: QuantizedTensor) -> None:
        kept = t.before is t.after
        errors.print(
            f"{t.name:<40} {t.before.name:>7} {'kept' if kept else '-> ' + t.after.name:<10} "
            f"{size_text(t.old_bytes):>12} -> {size_text(t.new_bytes)}",
            markup=False,
            soft_wrap=True,
        )

    file = open_model(source, to_write=True)
    tensors = quantize_file(file, target, mix.name, pure=pure, progress=show)
    old, new = sum(t.old_bytes for t in tensors), sum(t.new_bytes for t in tensors)
    weights = max(sum(t.n_elements for t in tensors), 1)
    errors.print(
        f"{target}: {size_text(old)} -> {size_text(new)}, {new * 8 / weights:.2f} bits per weight",
        markup=False,
        soft_wrap=True,
    )


def _named(to: str) -> str:
    """The name of a type that is given by its number in files."""
    return next((mix.name for mix in MIXES.values() if to == str(mix.number)), to)
