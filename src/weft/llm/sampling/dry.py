"""DRY: a penalty for the token that would continue a repeated sequence.

The idea and its options are those of text-generation-webui's pull request 5677 (p-e-w). If the last
n tokens of the text have occurred before, `multiplier * base ** (n - allowed_length)` is subtracted
from the logit of the token that followed them there. Repetitions shorter than `allowed_length` are
free, and none extends across a sequence breaker.
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
    """The DRY penalty for one text."""

    def __init__(
        self,
        multiplier: float,
        base: float,
        allowed_length: int,
        last_n: int,
        breakers: Sequence[str],
        piece: Callable[[int], bytes],
    ) -> None:
        """`piece` gives the bytes of a token; the other arguments are options of
        `SamplingParams`."""
        self._multiplier, self._base = multiplier, base
        self._allowed, self._last_n = allowed_length, last_n
        self._breakers = tuple(b.encode(errors="surrogatepass") for b in breakers)
        self._piece = piece
        self._since_break: int | None = None  # tokens since the last breaker; None: none so far
        self._tail = b""
        self._max_exponent = int(_LOG_MAX / math.log(base)) if base > 1.000001 else None

    def accept(self, id_: int) -> None:
        """Adds a token to the text and looks for a sequence breaker that ends in it."""
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
        if self._max_exponent is not None:  # longer repetitions have the same penalty
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
    """Finds tokens that would continue a repetition of at least `shortest` tokens.

    `newest` has the tokens of the text, the newest first. Returns each such token and the length of
    its longest repetition, counted up to `longest`. Each token of that length takes one pass over
    the places that still match."""
    n = len(newest)
    lengths = np.zeros(n, np.intp)  # for each place, the length of the repetition that ends there
    places = np.arange(1, n)
    for length in range(longest):
        places = places[: np.searchsorted(places, n - length)]  # places are ascending
        places = places[newest[places + length] == newest[length]]
        if not len(places):
            break
        lengths[places] = length + 1
    places = np.flatnonzero(lengths[1:] >= shortest) + 1
    tokens, lengths = newest[places - 1].astype(np.intp), lengths[places]
    by_length = np.argsort(-lengths, kind="stable")
    unique, first = np.unique(tokens[by_length], return_index=True)
    return unique, lengths[by_length][first]
