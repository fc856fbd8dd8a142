"""A profile on the terminal, with colors where it is one."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from weft.cli.console import wide
from weft.execute import Profile
from weft.execute.profile_table import LEFT, heading, op_rows, tensor_rows

__all__ = ["print_profile"]


def print_profile(profile: Profile, slowest: int = 0, *, to_error: bool = False) -> None:
    """The table by op, and the `slowest` tensors."""
    out = wide(to_error)
    out.print()
    for number, line in enumerate(heading(profile)):
        out.print(line, markup=False, soft_wrap=True, style="bold" if number == 0 else "dim")
    out.print(_table(op_rows(profile)))
    if slowest > 0:
        out.print("\nthe slowest, layers added up", style="dim")
        out.print(_table(tensor_rows(profile, slowest)))


def _table(rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in rows[0]:
        table.add_column(name, justify="left" if name in LEFT else "right", no_wrap=True)
    for row in rows[1:]:
        table.add_row(*row[:-1], _colored(row[-1]))
    return table


def _colored(percent: str) -> str:
    """How close to the roof: from two thirds on green, below a third red."""
    if not percent:
        return ""
    part = int(percent.rstrip("%"))
    color = "green" if part >= 66 else "yellow" if part >= 33 else "red"
    return f"[{color}]{percent}[/{color}]"
