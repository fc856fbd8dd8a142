"""`Candidates`: the tokens that samplers have left, and fast selection among many logits.

A vocabulary has 32k to 256k tokens, of which a chain soon leaves a few dozen. So the first cut
takes a few passes over the logits without sorting them; for `SMALL` tokens or fewer, everything is
plain float64.
"""

from __future__ import annotations

import math
import threading
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from weft.errors import ContextError
from weft.records import dataclass

SMALL = 4096
"""Number of tokens up to which sorting and float64 take negligible time."""
FARTHEST = 1e38
"""Largest magnitude of a changed logit."""

_BLOCK = 256
_GROUPS = 1024

Floats = NDArray[np.floating[Any]]
Positions = NDArray[np.intp]


class _Scratch(threading.local):
    """Arrays of the size of a vocabulary, for each thread. They are reused because the page faults
    of new memory take longer than the arithmetic."""

    def __init__(self) -> None:
        self._arrays: dict[str, NDArray[np.float32]] = {}

    def get(self, name: str, n: int) -> NDArray[np.float32]:
        """The array of that name [n], with arbitrary contents."""
        array = self._arrays.get(name)
        if array is None or len(array) < n:
            array = self._arrays[name] = np.empty(n, np.float32)
        return array[:n]


scratch = _Scratch().get


class Candidates:
    """Token ids and their logits, [n] each. A thread must use only one object at a time, because
    large ones share their memory."""

    __slots__ = ("_owned", "ids", "logits", "ordered")

    def __init__(self, logits: NDArray[np.float32], ids: Positions | None = None) -> None:
        """Starts with all tokens of `logits` [n_vocab], or those in `ids`. Never writes to
        `logits`."""
        self.ids: Positions | None = None
        """The token ids; None: all tokens, in order."""
        self.logits: Floats = logits
        self.ordered = False
        """True if the likeliest token is first."""
        self._owned = False
        if ids is not None:
            self.keep(ids)
        elif len(logits) <= SMALL:
            self.logits, self._owned = logits.astype(np.float64), True

    def __len__(self) -> int:
        return len(self.logits)

    def keep(self, positions: Positions, ordered: bool = False) -> None:
        """Keeps the tokens at `positions`, in their order. `ordered`: the likeliest is first."""
        self.ids = positions if self.ids is None else self.ids[positions]
        self.logits = self.logits.take(positions)
        if len(positions) <= SMALL:
            self.logits = self.logits.astype(np.float64, copy=False)
        self.ordered, self._owned = ordered, True

    def keep_only(self, position: int) -> None:
        """Keeps a single token."""
        self.keep(np.array([position], np.intp), True)

    def id_at(self, position: int) -> int:
        """The token at a position."""
        return position if self.ids is None else int(self.ids[position])

    def order(self) -> Positions:
        """Positions sorted from the largest logit down; equal logits keep their order."""
        return np.argsort(-self.logits, kind="stable")

    def falls(self) -> Floats:
        """Each logit minus the largest; valid until the next call of this method or `weights`."""
        n = len(self.logits)
        out = None if n <= SMALL else scratch("weights", n)
        falls: Floats = np.subtract(self.logits, self.logits.max(), out=out)
        return falls

    def weights(self) -> Floats:
        """Probabilities relative to the likeliest token, which has 1; valid until the next call of
        this method or `falls`."""
        falls = self.falls()
        weights: Floats = np.exp(falls, out=falls)
        return weights

    def find(self, tokens: Positions) -> tuple[Positions, Positions]:
        """Looks up distinct `tokens`. Returns the positions of those that are among the candidates,
        and their indices in `tokens`."""
        if self.ids is None:
            indices = np.flatnonzero(tokens < len(self.logits))
            return tokens[indices], indices
        by_id = np.argsort(tokens)
        at = np.searchsorted(tokens, self.ids, sorter=by_id)
        nearest = by_id[np.minimum(at, len(tokens) - 1)]
        positions = np.flatnonzero(tokens[nearest] == self.ids)
        return positions, nearest[positions]

    def writable(self) -> Floats:
        """The logits, copied first if they belong to the caller, to be changed in place."""
        if not self._owned:
            own = scratch("logits", len(self.logits))
            np.copyto(own, self.logits)
            self.logits, self._owned = own, True
        return self.logits

    def set_logits(self, positions: Positions, values: Floats) -> None:
        """Replaces some logits. Values are clipped to `FARTHEST`, so that they and their
        differences are finite in float32; minus infinity, which forbids a token, stays."""
        values = np.where(np.isneginf(values), values, np.clip(values, -FARTHEST, FARTHEST))
        self.writable()[positions] = values
        self.ordered = False


class Running:
    """Running sums of weights [n], with a search. Many weights are first summed by blocks, because
    a running sum is not vectorized."""

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
        """The first position of nonzero weight whose running sum is at least `target` (`right`:
        more than `target`), or the last such position if none is."""
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
        """The position, or the next one of nonzero weight if rounding led to one without."""
        if self._weights[position] > 0:
            return position
        nonzero = np.flatnonzero(self._weights)
        return int(nonzero[min(int(np.searchsorted(nonzero, position)), len(nonzero) - 1)])


def k_largest(values: Floats, k: int) -> Positions:
    """Positions of the `k` largest values, the largest first, equal ones by position; 1 <= k <=
    n."""
    n = len(values)
    groups = max(_GROUPS, 8 * k)
    near: Positions | None = None
    if n >= 2 * groups:
        # at least k values reach the k-th largest maximum of a group, so smaller ones can go
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
    """Positions of the `k` largest values in ascending order, given the `k`-th largest value; of
    equal values the first."""
    positions = np.flatnonzero(values >= kth)
    if len(positions) == k:
        return positions
    larger = np.flatnonzero(values > kth)
    equal = np.flatnonzero(values == kth)[: k - len(larger)]
    return np.sort(np.concatenate((larger, equal)))


# Log-probabilities of the model's own distribution, before any sampler changes it.


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """A token and the likeliest tokens in its place."""

    id: int
    logprob: float
    """Natural logarithm of the probability."""
    top: tuple[tuple[int, float], ...]
    """The likeliest tokens and their log-probabilities, most likely first."""


def token_logprobs(logits: NDArray[np.float32], id_: int, top: int = 0) -> TokenLogprobs:
    """The log-probabilities of token `id_` and of the `top` likeliest tokens, from the model's
    `logits` [n_vocab].

    Raises ContextError if `top` is negative or there is no such token."""
    if top < 0:
        raise ContextError(f"logprobs is {top}; it must be 0 or more")
    if not 0 <= id_ < len(logits):
        raise ContextError(f"token {id_} is not in 0..{len(logits) - 1}")
    largest = float(logits.max())
    total = float(Candidates(logits).weights().sum(dtype=np.float64))
    shift = largest + math.log(total)
    ids = k_largest(logits, min(top, len(logits))) if top else np.empty(0, np.intp)
    return TokenLogprobs(
        int(id_),
        float(logits[id_]) - shift,
        tuple(zip(ids.tolist(), (logits[ids].astype(np.float64) - shift).tolist(), strict=True)),
    )
