"""Groups steps into stages: steps of one stage may run at the same time.

Two steps must stay in order when one writes bytes that the other reads or writes. Addresses decide
(not names), because memory is reused; they are taken at the symbols' maxima.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Access", "form_stages"]

Range = tuple[int, int, int]
"""(buffer, first byte, byte after the last)."""


@dataclass(frozen=True, slots=True)
class Access:
    """What a step touches."""

    writes: Range
    reads: tuple[Range, ...]


def form_stages(steps: Sequence[Access]) -> list[tuple[int, int]]:
    """Half-open ranges of `steps`, in order, each as long as nothing in it clashes."""
    stages: list[tuple[int, int]] = []
    start = 0
    for i, step in enumerate(steps):
        if any(_clash(step, steps[j]) for j in range(start, i)):
            stages.append((start, i))
            start = i
    if start < len(steps):
        stages.append((start, len(steps)))
    return stages


def _clash(a: Access, b: Access) -> bool:
    return (
        _overlap(a.writes, b.writes)
        or any(_overlap(a.writes, r) for r in b.reads)
        or any(_overlap(b.writes, r) for r in a.reads)
    )


def _overlap(a: Range, b: Range) -> bool:
    return a[0] == b[0] and a[1] < b[2] and b[1] < a[2]
