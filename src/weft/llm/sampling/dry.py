"""DRY: a penalty for the token that would go on repeating a sequence.

The idea and its options are those of text-generation-webui's pull request 5677 (p-e-w). Where the
end of the text, n tokens of it, has occurred before, the token that followed there costs
`multiplier * base ** (n - allowed_length)`; n below `allowed_length` costs nothing. A repetition
does not reach across a sequence breaker.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from weft.llm.sampling.candidates import Candidates
from weft.llm.sampling.history import History

__all__ = ["Dry", "repeats"]

_LOG_MAX = 88.7228391
"""Logarithm of the largest float32; the penalty stops growing there, as in llama.cpp."""


class Dry:
    """DRY over one text's history."""

    def __init__(
        self,
        multiplier: float,
        base: float,
        allowed_length: int,
        last_n: int,
        breakers: Sequence[str],
        piece: Callable[[int], bytes],
    ) -> None:
        """`piece`: the bytes of a token."""
        self._multiplier, self._base = multiplier, base
        self._allowed, self._last_n = allowed_length, last_n
        self._breakers = tuple(b.encode(errors="surrogatepass") for b in breakers)
        self._piece = piece
        self._since_break: int | None = None  # tokens after the last breaker's end; None: none yet
        self._tail = b""
        self._max_exponent = int(_LOG_MAX / math.log(base)) if base > 1.000001 else None

    def accept(self, id_: int) -> None:
        """Looks for a sequence breaker that ends in this token."""
        if not self._breakers:
            return
        piece = self._piece(id_)
        text, old = self._tail + piece, len(self._tail)
        longest = max(map(len, self._breakers))
        if any(text.find(b, max(0, old - len(b) + 1)) >= 0 for b in self._breakers):
            self._since_break = 0
        elif self._since_break is not None:
            self._since_break += 1
        self._tail = text[-(longest - 1) :] if longest > 1 else b""

    def __call__(self, c: Candidates, history: History) -> None:
        """Applies the penalty."""
        newest = history.newest_first(self._last_n)
        limit = len(newest)
        if limit <= self._allowed:
            return
        if self._since_break is not None:
            limit = min(limit, self._since_break)
        if limit < self._allowed:
            return
        if self._max_exponent is not None:  # longer ones cost no more
            limit = min(limit, self._allowed + self._max_exponent)
        tokens, lengths = repeats(newest, self._allowed, limit)
        if not len(tokens):
            return
        positions, which = c.find(tokens)
        exponents = (lengths[which] - self._allowed).astype(np.float64)
        penalty = self._multiplier * self._base**exponents
        c.set_logits(positions, c.logits[positions] - penalty)


def repeats(
    newest: NDArray[np.int32], shortest: int, longest: int
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Tokens that would continue a repetition of `shortest` tokens or more, and how long the
    longest such repetition is, counted up to `longest`.

    `newest`: tokens, the newest first. One pass over the places that still match per token of the
    longest repetition."""
    n = len(newest)
    lengths = np.zeros(n, np.intp)  # by place: how many tokens up to there are like the text's end
    places = np.arange(1, n)
    for length in range(longest):
        places = places[: np.searchsorted(places, n - length)]  # they are in order
        places = places[newest[places + length] == newest[length]]
        if not len(places):
            break
        lengths[places] = length + 1
    found = np.flatnonzero(lengths[1:] >= shortest) + 1
    tokens, lengths = newest[found - 1].astype(np.intp), lengths[found]
    by_length = np.argsort(-lengths, kind="stable")
    unique, first = np.unique(tokens[by_length], return_index=True)
    return unique, lengths[by_length][first]
