"""`weft keep` lists the kernels that models need, for a build with no others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weft.cli.console import say
from weft.cli.exported import keep_list
from weft.cli.groups import Group, grouped
from weft.cli.options import context_option
from weft.files import write_text
from weft.llm.planning.options import LLM_OPTIONS


class KeepFlags(Group):
    """The options of `weft keep`."""

    table = LLM_OPTIONS
    n_ctx: int | None = context_option("Tokens of the cache, as for `weft export`; for GGUF files.")
    n_ubatch: int | None
    type_k: str | None
    type_v: str | None


@grouped
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
    own: KeepFlags,
) -> None:
    """List the kernels that models need. CMake's option WEFT_KEEP takes the list and builds weft
    without all others. Needs weft-executorch."""
    text = keep_list(models, **vars(own))
    write_text(output, text)
    n_ops = sum(line.startswith("op ") for line in text.splitlines())
    say(f"{output}: {n_ops} ops; build with -DWEFT_KEEP={output}")
