"""Histograms in the sense of Prometheus: how many values were at most so large."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

__all__ = ["SECONDS", "TOKENS", "Histogram"]

SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
"""Bounds for times."""
TOKENS = tuple(float(2**i) for i in range(18))
"""Bounds for numbers of tokens: 1 to 131,072."""


class Histogram:
    """Counts of values between bounds. One thread adds values; any thread may read."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` are in rising order; a value counts for the first bound that is not less."""
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0
        """The sum of all values."""

    def add(self, value: float) -> None:
        """Counts a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """For each bound, and then infinity, how many values are at most that."""
        total = 0
        for bound, count in zip((*self.bounds, float("inf")), tuple(self.counts), strict=True):
            total += count
            yield bound, total
