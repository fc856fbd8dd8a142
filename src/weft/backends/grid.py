"""The ops that each device takes: every case of the table put to every `supports_op`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal

from weft.backends.base import Rules
from weft.backends.cases import Case, all_cases
from weft.graph.op import OPS
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Answer:
    """The answers of all devices to one case."""

    case: Case
    why_not: tuple[str, ...]
    """A sentence for each device, in the grid's order; empty where the device takes the case."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The answers of all devices to all cases."""

    devices: tuple[str, ...]
    answers: tuple[Answer, ...]
    uncovered: tuple[str, ...]
    """Ops of the table that no case tries; their support is unknown."""

    def count(self, op: str, device: int) -> tuple[int, int]:
        """The number of cases of an op that a device takes, and the number of all its cases."""
        mine = [a for a in self.answers if a.case.op == op]
        return sum(not a.why_not[device] for a in mine), len(mine)

    @property
    def ops(self) -> list[str]:
        """The ops in the order of the table, without views, which compute nothing on any device."""
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
        """Whether a device takes all, some or none of the cases of a format; None where it has no
        case."""
        mine = [a for a in self.answers if (a.case.role, a.case.format) == (role, format)]
        n_taken = sum(not a.why_not[device] for a in mine)
        if not mine:
            return None
        return "none" if not n_taken else "all" if n_taken == len(mine) else "some"

    def refusals(self, device: int) -> dict[str, list[Case]]:
        """The cases that a device refuses, by sentence, where the case's own format reads `this
        type`."""
        by_sentence: dict[str, list[Case]] = {}
        for a in self.answers:
            why = a.why_not[device]
            if why:
                own = re.escape(a.case.format)
                why = re.sub(rf"\b(not|as) {own}$", r"\1 this type", why)
                if own:
                    why = re.sub(rf"\bof type {own}\b", "of this type", why)
                    why = re.sub(rf"^{own}\b", "this type", why)
                by_sentence.setdefault(why, []).append(a.case)
        return by_sentence


def make_grid(devices: Mapping[str, Rules], cases: Iterable[Case] | None = None) -> Grid:
    """Asks every device about every case (default: the whole table); computes nothing.

    `devices` are backends by the name of their column. Devices that answer all cases alike and
    whose names differ only after a colon (`cpu:avx2`, `cpu:avx512`) share a column named without
    it."""
    answers = []
    for case in all_cases() if cases is None else cases:
        node = case.node()
        supports = [backend.supports_op(node) for backend in devices.values()]
        answers.append(Answer(case, tuple("" if s.ok else _plain(s.why) for s in supports)))
    tried = {a.case.op for a in answers}
    uncovered = [n for n, op in OPS.items() if not (op.is_view or n == "NONE" or n in tried)]
    return _merged(Grid(tuple(devices), tuple(answers), tuple(uncovered)))


def _plain(why: str) -> str:
    """The sentence without the op and device with which some begin."""
    head, colon, sentence = why.partition(": ")
    return sentence if colon and " on " in head else why


def _merged(grid: Grid) -> Grid:
    """The grid with equal columns of one backend as a single column."""
    keep: list[int] = []
    names: list[str] = []
    for base in dict.fromkeys(name.partition(":")[0] for name in grid.devices):
        mine = [i for i, name in enumerate(grid.devices) if name.partition(":")[0] == base]
        if all(len({a.why_not[i] for i in mine}) == 1 for a in grid.answers):
            keep.append(mine[0])
            names.append(base)
        else:
            keep.extend(mine)
            names.extend(grid.devices[i] for i in mine)
    answers = (Answer(a.case, tuple(a.why_not[i] for i in keep)) for a in grid.answers)
    return Grid(tuple(names), tuple(answers), grid.uncovered)
