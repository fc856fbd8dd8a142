"""What each device takes: the case table put to every `supports_op`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from weft.backends.base import Rules
from weft.backends.cases import Case, all_cases
from weft.graph.op import OPS

__all__ = ["Answer", "Grid", "make_grid"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What devices say to one case: nothing where it is taken, else why not."""

    case: Case
    why_not: tuple[str, ...]
    """A sentence a device, in the grid's order; empty: taken."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Every case and every device."""

    devices: tuple[str, ...]
    answers: tuple[Answer, ...]
    uncovered: tuple[str, ...]
    """Ops of the table that no case tries; nothing is known about them."""

    def count(self, op: str, device: int) -> tuple[int, int]:
        """How many cases of an op a device takes, and how many there are."""
        mine = [a for a in self.answers if a.case.op == op]
        return sum(not a.why_not[device] for a in mine), len(mine)

    @property
    def ops(self) -> list[str]:
        """The ops in the order of the table, views left out: they are no work anywhere."""
        tried = {a.case.op for a in self.answers}
        return [name for name in OPS if name in tried]

    @property
    def roles(self) -> list[str]:
        """The columns of the format table."""
        return list(dict.fromkeys(a.case.role for a in self.answers if a.case.role))

    @property
    def formats(self) -> list[str]:
        """The rows of the format table."""
        return list(dict.fromkeys(a.case.format for a in self.answers if a.case.format))

    def takes(self, role: str, format: str, device: int) -> Literal["all", "some", "none"] | None:
        """Which cases of a format a device takes; None where there is no such case."""
        mine = [a for a in self.answers if (a.case.role, a.case.format) == (role, format)]
        taken = sum(not a.why_not[device] for a in mine)
        if not mine:
            return None
        return "none" if not taken else "all" if taken == len(mine) else "some"

    def refusals(self, device: int) -> dict[str, list[Case]]:
        """What a device says no to, by sentence; the case's own format in it is `this type`."""
        found: dict[str, list[Case]] = {}
        for a in self.answers:
            why = a.why_not[device]
            if why:
                why = re.sub(rf"\b(not|as) {re.escape(a.case.format)}$", r"\1 this type", why)
                found.setdefault(why, []).append(a.case)
        return found


def make_grid(devices: Mapping[str, Rules], cases: Iterable[Case] | None = None) -> Grid:
    """Asks every device about every case (default: the whole table); nothing is computed.

    `devices`: backends by the name of their column. Devices that answer all cases alike and whose
    names differ only after a colon (`cpu:avx2`, `cpu:avx512`) share a column named without it."""
    answers = []
    for case in all_cases() if cases is None else cases:
        node = case.node()
        supports = [backend.supports_op(node) for backend in devices.values()]
        answers.append(Answer(case, tuple("" if s.ok else _plain(s.why) for s in supports)))
    tried = {a.case.op for a in answers}
    uncovered = [n for n, op in OPS.items() if not (op.is_view or n == "NONE" or n in tried)]
    return _merged(Grid(tuple(devices), tuple(answers), tuple(uncovered)))


def _plain(why: str) -> str:
    """The sentence without the op and device that some begin with."""
    head, colon, rest = why.partition(": ")
    return rest if colon and " on " in head else why


def _merged(grid: Grid) -> Grid:
    """Columns of one backend that are the same, as one."""
    keep: list[int] = []
    names: list[str] = []
    for base in dict.fromkeys(name.partition(":")[0] for name in grid.devices):
        mine = [i for i, name in enumerate(grid.devices) if name.partition(":")[0] == base]
        if _alike(grid, mine):
            keep.append(mine[0])
            names.append(base)
        else:
            keep.extend(mine)
            names.extend(grid.devices[i] for i in mine)
    answers = (Answer(a.case, tuple(a.why_not[i] for i in keep)) for a in grid.answers)
    return Grid(tuple(names), tuple(answers), grid.uncovered)


def _alike(grid: Grid, columns: Sequence[int]) -> bool:
    return all(len({a.why_not[i] for i in columns}) == 1 for a in grid.answers)
