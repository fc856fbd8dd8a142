"""Which steps ran at the same time, from when threads worked on them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Group", "overlap", "overlapping"]

Interval = tuple[int, int]
"""Begin and end, nanoseconds."""


@dataclass(frozen=True, slots=True)
class Group:
    """Steps that ran side by side, or one after the other on threads that did not wait."""

    steps: tuple[int, ...]
    begin: int
    """When the group before had ended, or of the first group, when it began; nanoseconds."""
    end: int

    @property
    def seconds(self) -> float:
        """Wall time; that of all groups adds up to the time from the first to the last step."""
        return (self.end - self.begin) * 1e-9


def overlapping(spans: NDArray[np.int64]) -> list[Group]:
    """Groups in the order of time. `spans`: [step, thread, (begin, end, busy)], 0: no part.

    A step belongs to the group before it if some thread began it before all threads had ended that;
    a barrier in between parts them. Steps that never ran are in no group."""
    begins = np.where(spans[:, :, 0] > 0, spans[:, :, 0], np.iinfo(np.int64).max).min(axis=1)
    ends = spans[:, :, 1].max(axis=1)
    groups: list[Group] = []
    for i in np.argsort(begins, kind="stable"):
        step, begin, end = int(i), int(begins[i]), int(ends[i])
        if end == 0:
            continue
        last = groups[-1] if groups else None
        if last is not None and begin < last.end:
            groups[-1] = Group((*last.steps, step), last.begin, max(last.end, end))
        else:
            groups.append(Group((step,), begin if last is None else last.end, end))
    return groups


def overlap(work: Collection[Sequence[Interval]]) -> int:
    """Nanoseconds that several rows worked at the same time, each counted as often as rows are
    more than one: what the rows' times add up to beyond the time in which any of them worked."""
    rows = [_length(row) for row in work]
    return sum(rows) - _length([interval for row in work for interval in row])


def _length(intervals: Sequence[Interval]) -> int:
    """Of the union."""
    total, last = 0, 0
    for begin, end in sorted(intervals):
        total += max(0, end - max(begin, last))
        last = max(last, end)
    return total
