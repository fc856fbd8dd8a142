"""The steps that ran at the same time, derived from the intervals of threads."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from weft.records import dataclass

__all__ = ["Group", "length", "overlap", "overlapping"]

Interval = tuple[int, int]
"""Begin and end in nanoseconds."""


@dataclass(frozen=True, slots=True)
class Group:
    """Steps that ran side by side, or one after the other on threads that did not wait."""

    steps: tuple[int, ...]
    begin: int
    """The end of the group before, or the begin of the first group, in nanoseconds."""
    end: int

    @property
    def seconds(self) -> float:
        """The wall time in seconds; all groups add up to the time from the first to the last
        step."""
        return (self.end - self.begin) * 1e-9


def overlapping(spans: NDArray[np.int64]) -> list[Group]:
    """Groups of steps that ran side by side, in the order of time.

    `spans` is [step, thread, (begin, end, busy)] in nanoseconds, 0 where a thread had no part. A
    step belongs to the group before it if some thread began it before all threads had ended that
    group; a barrier separates groups. Steps that never ran are in no group."""
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
    """The nanoseconds by which the sum of all rows' times exceeds the time in which any row
    worked."""
    rows = [length(row) for row in work]
    return sum(rows) - length([interval for row in work for interval in row])


def length(intervals: Sequence[Interval]) -> int:
    """The length of the union of the intervals, in nanoseconds."""
    total, last = 0, 0
    for begin, end in sorted(intervals):
        total += max(0, end - max(begin, last))
        last = max(last, end)
    return total
