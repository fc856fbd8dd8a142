"""`weft export` writes a model as a .pte file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weft.cli.console import say, size_text
from weft.cli.exported import export_gguf
from weft.cli.loading import trained_context
from weft.cli.options import CacheTypeK, CacheTypeV, UbatchSize, context_option
from weft.llm.hub import local_path

__all__ = ["export"]


def export(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="IN",
            parser=local_path,
            help="The GGUF file to read, hf:OWNER/NAME[:QUANT] or pypi:PACKAGE[/FILE].",
        ),
    ],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="The .pte file to write.")],
    ctx_size: Annotated[
        int | None,
        context_option(
            "Tokens of the cache; 0: as many as the model was trained for. Default: the same, at "
            "most 2048."
        ),
    ] = None,
    ubatch: UbatchSize = None,
    type_k: CacheTypeK = None,
    type_v: CacheTypeV = None,
    threads: Annotated[
        int, typer.Option(help="Threads of a call; 0: one for each core of the machine that runs.")
    ] = 0,
    no_repack: Annotated[
        bool, typer.Option("--no-repack", help="Weights stay rows, as the GGUF file has them.")
    ] = False,
) -> None:
    """Write a model for ExecuTorch. Its method `forward(tokens, positions)` gives the logits of the
    last token. Weights keep their quantized blocks. Needs weft-executorch."""
    n_ctx = trained_context(source) if ctx_size == 0 else ctx_size
    nbytes = export_gguf(
        source, target, n_ctx=n_ctx, n_ubatch=ubatch, threads=threads, pack=not no_repack,
        type_k=type_k, type_v=type_v,
    )  # fmt: skip
    say(f"{target}: {size_text(nbytes)}")
