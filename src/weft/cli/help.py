"""`weft help [COMMAND]` shows the commands, or the options of one."""

from __future__ import annotations

from typing import Annotated, cast

import typer
from typer.core import TyperGroup

from weft.cli.command import usage_error


def help(
    context: typer.Context,
    command: Annotated[str | None, typer.Argument(metavar="[COMMAND]")] = None,
) -> None:
    """Show the commands, or the options of one."""
    root = context.find_root()
    if command is None:
        print(root.get_help())
        return
    target = cast(TyperGroup, root.command).get_command(root, command)
    if target is None:
        raise usage_error(f"there is no command {command}", root)
    target.make_context(command, ["--help"], parent=root)
