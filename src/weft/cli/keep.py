"""`weft keep` lists the kernels that models need, for a build with no others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weft.cli.console import say
from weft.cli.exported import keep_list
from weft.cli.options import CacheTypeK, CacheTypeV, UbatchSize, context_option
from weft.files import write_text

__all__ = ["keep"]


def keep(
    models: Annotated[
        list[Path],
        typer.Argument(
            metavar="MODEL...", help="Models: .pte files, or GGUF files that will be exported."
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The list to write.")
    ],
    ctx_size: Annotated[
        int | None,
        context_option("Tokens of the cache, as for `weft export`; for GGUF files."),
    ] = None,
    ubatch: UbatchSize = None,
    type_k: CacheTypeK = None,
    type_v: CacheTypeV = None,
) -> None:
    """List the kernels that models need. CMake's option WEFT_KEEP takes the list and builds weft
    without all others. Needs weft-executorch."""
    text = keep_list(models, n_ctx=ctx_size, n_ubatch=ubatch, type_k=type_k, type_v=type_v)
    write_text(output, text)
    n_ops = sum(line.startswith("op ") for line in text.splitlines())
    say(f"{output}: {n_ops} ops; build with -DWEFT_KEEP={output}")
