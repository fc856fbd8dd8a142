"""Prints a profile, with colors on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rich.markup import escape
from rich.table import Table

from weft.cli.console import wide
from weft.cli.mistakes import flag_name
from weft.errors import named
from weft.execute import Profile
from weft.execute.profile_table import (
    LEFT,
    MOST_WAITS,
    advice,
    heading,
    op_rows,
    tensor_rows,
    wait_rows,
)

_DISPENSABLE = ("op/byte", "steps", "GOP/s", "bound by", "type", "device")
"""Columns that are left out on narrow terminals, in this order."""
_SHORTEST = 12
"""Fewest letters of a shortened name."""


def print_profile(profile: Profile, slowest: int = 0, *, to_error: bool = False) -> None:
    """Prints the table of ops, and the `slowest` tensors."""
    out = wide(to_error)
    out.print()
    for number, line in enumerate(heading(profile)):
        out.print(line, markup=False, style="bold" if number == 0 else "dim")
    out.print(_table(_fitting(op_rows(profile), out.width)))
    if profile.waits:
        out.print("\nwhat devices waited for", style="dim")
        out.print(_table(wait_rows(profile, MOST_WAITS), wrap="waited for"))
    if slowest > 0:
        out.print("\nthe slowest, layers added up", style="dim")
        out.print(_table(_fitting(tensor_rows(profile, slowest), out.width)))
    out.print()
    out.print(named(advice(profile), flag_name), markup=False)


def _fitting(rows: Sequence[Sequence[str]], width: int) -> list[list[str]]:
    """Leaves out columns until the table fits into `width`; if that is not enough, cuts names."""
    table = [list(row) for row in rows]
    for name in _DISPENSABLE:
        if _width(table) <= width:
            return table
        if name in table[0]:
            at = table[0].index(name)
            table = [row[:at] + row[at + 1 :] for row in table]
    over = max(_width(table) - width, 0)
    longest = max(max(len(row[0]) for row in table) - over, _SHORTEST)
    return [
        [row[0] if len(row[0]) <= longest else row[0][: longest - 1] + "~", *row[1:]]
        for row in table
    ]


def _width(table: Sequence[Sequence[str]]) -> int:
    return sum(max(map(len, column)) + 2 for column in zip(*table, strict=True)) - 2


def _table(rows: Sequence[Sequence[str]], wrap: str = "") -> Table:
    """A table; the text of column `wrap` may take several lines."""
    table = Table(box=None, pad_edge=False)
    for name in rows[0]:
        side: Literal["left", "right"] = "left" if name in LEFT else "right"
        if name == wrap:
            table.add_column(name, overflow="fold")
        else:
            table.add_column(name, justify=side, no_wrap=True)
    for row in rows[1:]:
        table.add_row(*row[:-1], escape(row[-1]) if wrap else _colored(row[-1]))
    return table


def _colored(percent: str) -> str:
    """Colors a percentage of the peak: green from two thirds on, red below a third."""
    if not percent:
        return ""
    part = int(percent.rstrip("%"))
    color = "green" if part >= 66 else "yellow" if part >= 33 else "red"
    return f"[{color}]{percent}[/{color}]"
