"""`History`: the tokens of a text, and the penalties for repeating them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from weft.llm.sampling.candidates import FARTHEST, Candidates

__all__ = ["History", "Penalties"]


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
