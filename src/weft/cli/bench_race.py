"""Finds the fastest of several ways on a machine that also does other things.

The ways take turns, each round in another order, and are compared round by round: what disturbs a
round disturbs all of it. A way wins only if it is faster by more than a little, and nearly always.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from statistics import median
from typing import Generic, TypeVar

from weft.records import dataclass

Way = TypeVar("Way", bound=Hashable)

LEAST_GAIN = 1.02
"""How many times as fast as the first way another has to be."""
LEAST_ROUNDS = 3
"""Rounds without which nothing is decided."""
_WON = 0.75
"""The share of rounds that a way has to win."""
_HOPELESS = 0.93
"""A variant is dropped that reaches less than this fraction of the best speed and lost every
round."""


@dataclass(frozen=True, slots=True)
class Race(Generic[Way]):
    """The seconds of each way, round by round; the first way is the one to beat."""

    times: dict[Way, list[float]]
    is_whole: bool = True
    """False if Ctrl-C ended it."""

    @property
    def first(self) -> Way:
        """The way to beat."""
        return next(iter(self.times))

    def ratios(self, way: Way, other: Way | None = None) -> list[float]:
        """How many times as fast as another way (None: the first), in each round that both have
        run."""
        against = self.times[self.first if other is None else other]
        return [a / b for a, b in zip(against, self.times[way], strict=False)]

    def gain(self, way: Way) -> float:
        """The median of `ratios`; 1 if there are none."""
        ratios = self.ratios(way)
        return median(ratios) if ratios else 1.0

    @property
    def best(self) -> Way:
        """The fastest way that certainly beats the first, or else the first."""
        winners = [way for way in self.times if way != self.first and self._wins(way)]
        return max(winners, key=self.gain, default=self.first)

    def is_behind(self, way: Way, other: Way) -> bool:
        """True if there is no hope for `way` against another."""
        ratios = self.ratios(way, other)
        return max(ratios) < 1 and median(ratios) <= _HOPELESS

    def _wins(self, way: Way) -> bool:
        ratios = self.ratios(way)
        won = sum(ratio > 1 for ratio in ratios)
        enough = len(ratios) >= LEAST_ROUNDS and won >= _WON * len(ratios)
        return enough and median(ratios) >= LEAST_GAIN


def race(
    ways: Sequence[Way],
    seconds_of: Callable[[Way], float],
    *,
    rounds: int,
    until: float,
    clock: Callable[[], float],
) -> Race[Way]:
    """Runs all ways in turns, `rounds` times, or until the `clock` has reached `until`.

    `seconds_of` runs a way once. After `LEAST_ROUNDS`, ways far behind the best are left out, the
    first never. Ctrl-C ends the race; what was measured counts."""
    times: dict[Way, list[float]] = {way: [] for way in ways}
    result = Race(times)
    racing = list(times)
    try:
        for number in range(rounds):
            if len(racing) < 2 or clock() >= until:
                break
            for way in _turn(racing, number):
                times[way].append(seconds_of(way))
                if clock() >= until and number < LEAST_ROUNDS - 1:
                    return result  # too few to decide; more would only take time
            if number + 1 >= LEAST_ROUNDS:
                best = max(racing, key=result.gain)
                racing = [w for w in racing if w == ways[0] or not result.is_behind(w, best)]
    except KeyboardInterrupt:
        return Race(times, is_whole=False)
    return result


def _turn(ways: Sequence[Way], number: int) -> list[Way]:
    """The ways beginning with another one each round, backwards every other round."""
    first = number % len(ways)
    turned = [*ways[first:], *ways[:first]]
    return turned[::-1] if number % 2 else turned
