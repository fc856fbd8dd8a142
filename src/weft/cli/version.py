"""`weft version` shows the version and the build."""

from __future__ import annotations

from typing import Annotated

import typer

from weft.cli.about import about_as_json, about_lines


def version(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the version and the build: processor, compiler, commit and kernel targets."""
    print(about_as_json() if as_json else about_lines())
