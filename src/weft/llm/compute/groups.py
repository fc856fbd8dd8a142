"""`Groups`: the texts of a step computed in groups, so that stages on several machines all work.

While the second stage computes the first group, the first stage computes the second. Whether that
pays depends on machines, links, the model and the number of texts: weights are read once per group.
So it is measured: a few steps are computed whole and a few in groups, and the faster way is kept
for a while. Results are the same bits either way, as kernels of cpus compute each text by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

import numpy as np

from weft.backends.base import Backend, OnMachine
from weft.llm.compute.batch import Ubatch
from weft.records import dataclass

__all__ = ["Groups"]

_TRIES = 4
"""Steps that each way is tried for; the first is left out, as it warms up."""
_KEPT = 512
"""Steps for which the faster way is kept."""
_GAIN = 0.95
"""Groups must take at most this part of the time."""


@dataclass(slots=True)
class _Trial:
    """What is known of steps of some number of texts."""

    whole: list[float] = field(default_factory=list)
    cut: list[float] = field(default_factory=list)
    steps: int = 0
    """Steps since the two were compared."""

    @property
    def cuts(self) -> bool:
        """Whether the next step is computed in groups."""
        if len(self.cut) < _TRIES or len(self.whole) < _TRIES:
            return len(self.cut) < len(self.whole)
        return min(self.cut[1:]) < _GAIN * min(self.whole[1:])

    def add(self, cut: bool, seconds: float) -> None:
        """Counts a step."""
        times = self.cut if cut else self.whole
        if len(times) < _TRIES:
            times.append(seconds)
            return
        self.steps += 1
        if self.steps >= _KEPT:
            self.whole, self.cut, self.steps = [], [], 0


class Groups:
    """Cuts steps where that is faster."""

    def __init__(self, n_groups: int, least: int) -> None:
        """`least` are the fewest tokens of a group."""
        self.n_groups, self._least = n_groups, least
        self._trials: dict[int, _Trial] = {}
        self.steps_cut = 0
        """Steps computed in groups so far."""

    @staticmethod
    def suit(backends: Sequence[Backend]) -> bool:
        """Whether there are several machines, and all devices compute texts one by one."""
        machines = {id(b.machine) for b in backends if isinstance(b, OnMachine)}
        return len(machines) > 1 and all(getattr(b, "target", "") for b in backends)

    def parts(self, ubatch: Ubatch) -> list[Ubatch]:
        """The ubatch, or groups of it that are computed at the same time."""
        n = len(ubatch)
        n_groups = min(self.n_groups, n // max(self._least, 1))
        if n_groups < 2 or ubatch.is_rows or ubatch.n_seqs > 1 or ubatch.together:
            return [ubatch]
        if len(np.unique(ubatch.first)) < n or (ubatch.members.sum(axis=0) > 1).any():
            return [ubatch]  # tokens of one text see each other
        if not self._trials.setdefault(n, _Trial()).cuts:
            return [ubatch]
        numbers = np.array_split(np.arange(n), n_groups)
        return [ubatch.take(part) for part in numbers]

    def took(self, n_tokens: int, n_parts: int, seconds: float) -> None:
        """Tells how long a step of `n_tokens` texts took in `n_parts` groups."""
        self.steps_cut += n_parts > 1
        trial = self._trials.get(n_tokens)
        if trial is not None:
            trial.add(n_parts > 1, seconds)
