"""`weft diff`: what moved between two plans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from weft.cli.mistakes import show_error
from weft.errors import FormatError, WeftError
from weft.files import read_text
from weft.schedule.diff import diff as plan_diff

__all__ = ["diff"]


def diff(
    a: Annotated[
        Path, typer.Argument(metavar="PLAN", help="A plan of `weft explain --save` or `--json`.")
    ],
    b: Annotated[Path, typer.Argument(metavar="OTHER", help="Another one.")],
) -> None:
    """Show what differs between two plans. Weights and nodes that changed device, totals and
    memory; nothing where plans agree. Exits with 1 where they differ, with 2 where one cannot be
    read."""
    try:
        changes = plan_diff(_read(a), _read(b))
    except WeftError as error:
        show_error(error)
        raise typer.Exit(2) from None
    if changes:
        print(changes)
        raise typer.Exit(1)


def _read(path: Path) -> Any:
    try:
        return json.loads(read_text(path))
    except OSError as error:
        raise FormatError(f"plan {path}: {error.strerror or error}") from None
    except RecursionError:
        raise FormatError(f"plan {path}: lists within lists without end") from None
    except ValueError as error:
        raise FormatError(f"plan {path}: not JSON ({error})") from None
