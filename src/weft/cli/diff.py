"""`weft diff` shows the differences between two plans."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weft.cli.mistakes import show_error
from weft.errors import WeftError
from weft.files import read_json
from weft.schedule.diff import diff as plan_diff

__all__ = ["diff"]


def diff(
    a: Annotated[
        Path, typer.Argument(metavar="PLAN", help="A plan of `weft explain --save` or `--json`.")
    ],
    b: Annotated[Path, typer.Argument(metavar="OTHER", help="Another one.")],
) -> None:
    """Show what differs between two plans. Lists weights and nodes that changed device, totals and
    memory; nothing if the plans agree. Exits with 1 if they differ, with 2 if one cannot be
    read."""
    try:
        changes = plan_diff(read_json(a, "plan"), read_json(b, "plan"))
    except WeftError as error:
        show_error(error)
        raise typer.Exit(2) from None
    if changes:
        print(changes)
        raise typer.Exit(1)
