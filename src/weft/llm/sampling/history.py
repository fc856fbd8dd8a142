"""The last tokens of a text, and the penalties for repeating tokens and sequences of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from weft.llm.sampling.candidates import FARTHEST, Candidates


class History:
    """All tokens of a text so far, the prompt included."""

    def __init__(self) -> None:
        self._tokens = np.empty(256, np.int32)
        self._n = 0

    def __len__(self) -> int:
        return self._n

    def append(self, id_: int) -> None:
        """Adds a token."""
        if self._n == len(self._tokens):
            self._tokens = np.concatenate((self._tokens, np.empty_like(self._tokens)))
        self._tokens[self._n] = id_
        self._n += 1

    def newest_first(self, last_n: int) -> NDArray[np.int32]:
        """The last `last_n` tokens (-1: all), the newest first; a view."""
        n = self._n if last_n < 0 else min(last_n, self._n)
        return self._tokens[self._n - n : self._n][::-1]

    def __getitem__(self, index: int) -> int:
        return int(self._tokens[: self._n][index])


class Penalties:
    """Repetition (arXiv 1909.05858), presence and frequency penalties over a window of tokens.

    For each token in the window, a positive logit is divided by `repeat` and any other multiplied
    by it; then `presence` is subtracted once, and `frequency` for each occurrence. These are the
    rules of llama.cpp."""

    def __init__(self, last_n: int, repeat: float, presence: float, frequency: float) -> None:
        self._last_n = last_n
        self._repeat, self._presence, self._frequency = repeat, presence, frequency
        self._counts: dict[int, int] = {}

    def accept(self, history: History, ids: Iterable[int]) -> None:
        """Counts `ids`, the newest tokens of `history`, and drops those that leave the window."""
        counts, new = self._counts, list(ids)
        first = len(history) - len(new)
        for i, id_ in enumerate(new):
            counts[id_] = counts.get(id_, 0) + 1
            leaving = first + i - self._last_n
            if self._last_n > 0 and leaving >= 0:
                old = history[leaving]
                counts[old] -= 1
                if not counts[old]:
                    del counts[old]

    def __call__(self, c: Candidates) -> None:
        """Applies the penalties."""
        if not self._counts:
            return
        n = len(self._counts)
        tokens = np.fromiter(self._counts.keys(), np.intp, n)
        counts = np.fromiter(self._counts.values(), np.float64, n)
        positions, which = c.find(tokens)
        before = c.logits[positions].astype(np.float64)
        logits = np.where(before > 0, before / self._repeat, before * self._repeat)
        logits -= counts[which] * self._frequency + self._presence
        # no penalty, however large, forbids a token
        c.set_logits(
            positions, np.where(np.isneginf(before), before, np.maximum(logits, -FARTHEST))
        )


_LOG_MAX = 88.7228391
"""Logarithm of the largest float32; the penalty stops growing there, as in llama.cpp."""


class Dry:
    """The DRY penalty for one text.

    The idea and its options come from text-generation-webui's pull request 5677 (p-e-w). If the
    last n tokens of the text have occurred before, `multiplier * base ** (n - allowed_length)` is
    subtracted from the logit of the token that followed them there. Repetitions shorter than
    `allowed_length` are free, and none extends across a sequence breaker."""

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
