"""`Candidates`: the tokens that are left, and fast selection among many logits.

A vocabulary has 32k to 256k tokens and a chain soon leaves some dozens. So the first cut is made to
cost a few passes over the logits, without sorting them, and from `SMALL` tokens down everything is
float64 and plain.
"""

from __future__ import annotations

import threading
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["SMALL", "Candidates", "Running", "k_largest", "scratch", "select"]

SMALL = 4096
"""From this many tokens down, sorting and float64 cost nothing worth saving."""
FARTHEST = 1e38
"""From 0, of a logit that was changed."""

_BLOCK = 256
_GROUPS = 1024

Floats = NDArray[np.floating[Any]]
Positions = NDArray[np.intp]


class _Scratch(threading.local):
    """A thread's arrays of the size of a vocabulary. Fresh memory for each costs page faults, which
    take longer than the arithmetic."""

    def __init__(self) -> None:
        self._arrays: dict[str, NDArray[np.float32]] = {}

    def get(self, name: str, n: int) -> NDArray[np.float32]:
        """The array of that name, [n], whatever it holds."""
        array = self._arrays.get(name)
        if array is None or len(array) < n:
            array = self._arrays[name] = np.empty(n, np.float32)
        return array[:n]


scratch = _Scratch().get


class Candidates:
    """Token ids and their logits, [n] each. Only one is in use in a thread at any time: large ones
    share their memory."""

    __slots__ = ("_owned", "ids", "logits", "ordered")

    def __init__(self, logits: NDArray[np.float32], ids: Positions | None = None) -> None:
        """All tokens of `logits`, or those of `ids`; `logits` is never written to."""
        self.ids: Positions | None = None
        """The tokens; None while they are all there, in order."""
        self.logits: Floats = logits
        self.ordered = False
        """Whether the likeliest is first."""
        self._owned = False
        if ids is not None:
            self.keep(ids)
        elif len(logits) <= SMALL:
            self.logits, self._owned = logits.astype(np.float64), True

    def __len__(self) -> int:
        return len(self.logits)

    def keep(self, positions: Positions, ordered: bool = False) -> None:
        """Leaves what is at `positions`, in their order; `ordered`: the likeliest first."""
        self.ids = positions if self.ids is None else self.ids[positions]
        self.logits = self.logits.take(positions)
        if len(positions) <= SMALL:
            self.logits = self.logits.astype(np.float64, copy=False)
        self.ordered, self._owned = ordered, True

    def keep_only(self, position: int) -> None:
        """Leaves one token."""
        self.keep(np.array([position], np.intp), True)

    def id_at(self, position: int) -> int:
        """The token at a position."""
        return position if self.ids is None else int(self.ids[position])

    def order(self) -> Positions:
        """Positions from the largest logit down; equal ones keep their order."""
        return np.argsort(-self.logits, kind="stable")

    def falls(self) -> Floats:
        """How far each logit is below the largest, negative; valid until the next call of this or
        of `weights`."""
        n = len(self.logits)
        out = None if n <= SMALL else scratch("weights", n)
        falls: Floats = np.subtract(self.logits, self.logits.max(), out=out)
        return falls

    def weights(self) -> Floats:
        """Probabilities but for a factor: the likeliest has 1; valid until the next call."""
        falls = self.falls()
        weights: Floats = np.exp(falls, out=falls)
        return weights

    def find(self, tokens: Positions) -> tuple[Positions, Positions]:
        """Where distinct `tokens` are, and which of `tokens` these are; those that are not left
        are in neither."""
        if self.ids is None:
            which = np.flatnonzero(tokens < len(self.logits))
            return tokens[which], which
        by_id = np.argsort(tokens)
        at = np.searchsorted(tokens, self.ids, sorter=by_id)
        found = by_id[np.minimum(at, len(tokens) - 1)]
        positions = np.flatnonzero(tokens[found] == self.ids)
        return positions, found[positions]

    def writable(self) -> Floats:
        """The logits to be changed in place; a copy where they are the caller's."""
        if not self._owned:
            own = scratch("logits", len(self.logits))
            np.copyto(own, self.logits)
            self.logits, self._owned = own, True
        return self.logits

    def set_logits(self, positions: Positions, values: Floats) -> None:
        """Replaces some logits, by at most `FARTHEST` unless they forbid a token.

        A penalty or bonus of 1e300 has no float32, and infinite ones have no difference."""
        values = np.where(np.isneginf(values), values, np.clip(values, -FARTHEST, FARTHEST))
        self.writable()[positions] = values
        self.ordered = False


class Running:
    """Running sums of weights [n] and a search in them; long ones are summed block by block, since
    a running sum of n is no vector operation."""

    def __init__(self, weights: Floats) -> None:
        self._weights = weights
        n = len(weights)
        if n <= SMALL:
            self._size, sums = 1, weights
        else:
            self._size, whole = _BLOCK, n // _BLOCK * _BLOCK
            sums = weights[:whole].reshape(-1, _BLOCK).sum(axis=1)
            if whole < n:
                sums = np.append(sums, weights[whole:].sum())
        self._sums = np.cumsum(sums, dtype=np.float64)
        self.total = float(self._sums[-1])

    def find(self, target: float, side: Literal["left", "right"] = "left") -> int:
        """The first position with weight whose running sum is at least `target` (`right`: more than
        it), or the last one with weight."""
        block = int(np.searchsorted(self._sums, target, side))
        block = min(block, len(self._sums) - 1)
        if self._size == 1:
            return self._weighty(block)
        start = block * self._size
        inside = np.cumsum(self._weights[start : start + self._size], dtype=np.float64)
        before = float(self._sums[block - 1]) if block else 0.0
        at = int(np.searchsorted(inside, target - before, side))
        return self._weighty(start + min(at, len(inside) - 1))

    def _weighty(self, position: int) -> int:
        """The next position with weight, or the last one, where rounding led astray."""
        if self._weights[position] > 0:
            return position
        weighty = np.flatnonzero(self._weights)
        return int(weighty[min(int(np.searchsorted(weighty, position)), len(weighty) - 1)])


def k_largest(values: Floats, k: int) -> Positions:
    """Positions of the `k` largest, largest first, equal ones by position; `k` in 1..n."""
    n = len(values)
    groups = max(_GROUPS, 8 * k)
    near: Positions | None = None
    if n >= 2 * groups:
        # k of the maxima of groups are as large as the k-th of these maxima, so the k-th of all is
        rows = values[: n // groups * groups].reshape(-1, groups)
        bound = np.partition(rows.max(axis=0), groups - k)[groups - k]
        near = np.flatnonzero(values >= bound)
        values = values[near]
    if len(values) > 2 * k:
        best = select(values, k, np.partition(values, len(values) - k)[len(values) - k])
        near = best if near is None else near[best]
        values = values[best]
    order: Positions = np.argsort(-values, kind="stable")[:k]
    return order if near is None else near[order]


def select(values: Floats, k: int, kth: Any) -> Positions:
    """Positions of the `k` largest in their order, given the `k`-th largest value; of equal ones
    the first."""
    found = np.flatnonzero(values >= kth)
    if len(found) == k:
        return found
    larger = np.flatnonzero(values > kth)
    equal = np.flatnonzero(values == kth)[: k - len(larger)]
    return np.sort(np.concatenate((larger, equal)))
