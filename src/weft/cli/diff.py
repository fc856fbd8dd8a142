"""`weft diff` shows the differences between two plans."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weft.cli.console import say
from weft.cli.mistakes import show_error
from weft.errors import WeftError
from weft.files import read_json, write_text
from weft.schedule.diff import diff as plan_diff


def diff(
    a: Annotated[
        Path, typer.Argument(metavar="PLAN", help="A plan of `weft explain --save` or `--json`.")
    ],
    b: Annotated[Path, typer.Argument(metavar="OTHER", help="Another one.")],
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write both side by side to look at: one HTML file."),
    ] = None,
) -> None:
    """Show what differs between two plans. Lists weights and nodes that changed device, totals and
    memory; nothing if the plans agree. Exits with 1 if they differ, with 2 if one cannot be
    read."""
    try:
        before, after = read_json(a, "plan"), read_json(b, "plan")
        changes = plan_diff(before, after)
        if html is not None:
            from weft.report import diff_data, report_html

            names = (a.name, b.name) if a.name != b.name else (str(a), str(b))
            write_text(html, report_html(diff_data(before, after, names)))
            say(f"report written to {html}")
    except WeftError as error:
        show_error(error)
        raise typer.Exit(2) from None
    if changes:
        if html is None:
            print(changes)
        raise typer.Exit(1)
