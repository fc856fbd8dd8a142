"""`OwnCache`: the context of a model that drafts, which follows the texts of another one.

Each sequence holds a beginning of the text of the same number, and perhaps a draft behind it.
What a text no longer goes on with is cut when it is asked for the next time, so wrong drafts, new
texts in a sequence, and texts that begin like another one need no message.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from weft.errors import ContextError
from weft.llm.compute.batch import Batch, Outputs
from weft.llm.compute.context import Context

WORTH_COPYING = 16
"""Minimum number of additional tokens of a text that another sequence must hold to be copied."""


class OwnCache:
    """The sequences of a context, and the tokens that each holds."""

    def __init__(self, context: Context, n_seqs: int) -> None:
        """`context` has `n_seqs` sequences for texts, and as many to draft in if it has recurrent
        states (`scratch`)."""
        self.context = context
        self.held: list[list[int]] = [[] for _ in range(n_seqs)]
        self._writes: set[int] = set()
        self._clock = 0
        self._used = [0] * n_seqs
        c = context.model.config
        self.n_vocab = c.n_vocab
        self.longest = min(context.n_ctx_seq, c.n_positions or context.n_ctx_seq)
        """Maximum number of tokens of one text."""
        self._known = [0] * n_seqs

    @property
    def recurrent(self) -> bool:
        """True if a sequence cannot be cut, because its states belong to the whole."""
        return self.context.cache.states is not None

    def scratch(self, seq: int) -> int:
        """The sequence for drafts that are forgotten; only with recurrent states."""
        return len(self.held) + seq

    def readable(self, seq: int, tokens: Sequence[int]) -> bool:
        """True if all tokens have a meaning for the model: ids of images have none."""
        known = self._known[seq]
        if known > len(tokens):
            known = 0
        if max(tokens[known:], default=0) >= self.n_vocab:
            return False
        self._known[seq] = len(tokens)
        return True

    def begun(self, seq: int, tokens: Sequence[int]) -> int:
        """Number of first tokens that the sequence would keep; changes nothing."""
        held = self.held[seq]
        n = same(held, tokens)
        return n if n == len(held) or not self.recurrent else 0

    def keep(self, seq: int, tokens: Sequence[int], most: int) -> int:
        """Cuts the sequence where it departs from `tokens`, at `most` at the latest, or copies the
        beginning of another one that holds more. Returns the number of tokens that it holds."""
        self._clock += 1
        self._used[seq] = self._clock
        if seq not in self._writes:
            self._writes.add(seq)
            self._copy_longest(seq, tokens, most)
        n = min(self.begun(seq, tokens), most)
        if n < len(self.held[seq]):
            n = 0 if self.recurrent else n
            self.cut(seq, n)
        return n

    def cut(self, seq: int, n: int) -> None:
        """Removes all tokens from position `n` on."""
        self.context.cache.seq_rm(seq, n or -1, -1)
        del self.held[seq][n:]

    def _copy_longest(self, seq: int, tokens: Sequence[int], most: int) -> None:
        own = self.begun(seq, tokens)
        if self.recurrent or self.context.cache.window is not None:
            return
        n, best = max((same(held, tokens), i) for i, held in enumerate(self.held))
        n = min(n, most)
        if best != seq and n >= own + WORTH_COPYING:
            self.cut(seq, 0)
            self.context.cache.seq_cp(best, seq, 0, n)
            self.held[seq] = self.held[best][:n]

    def make_room(self, n: int) -> int:
        """Frees cells of sequences without a text, the longest unused first, until `n` are free.
        Returns how many are."""
        cache = self.context.cache
        while (free := cache.size - cache.n_used) < n:
            idle = [s for s, h in enumerate(self.held) if h and s not in self._writes]
            if not idle:
                break
            self.cut(min(idle, key=self._used.__getitem__), 0)
        return free

    def decode(
        self,
        seq: int,
        tokens: Sequence[int],
        start: int,
        states: NDArray[np.float32] | None = None,
        outputs: Outputs | None = "last",
    ) -> NDArray[np.float32]:
        """Computes tokens from position `start` on; returns the logits of the last, [1, n_logits],
        or of the tokens `outputs`, if these are few (None: of none). A layer that drafts also
        reads `states` [n, width]."""
        rows: NDArray[np.float32] | None = None
        step = self.context.n_step
        for at in range(0, len(tokens), step):
            part = list(tokens[at : at + step])
            batch = Batch(part, list(range(start + at, start + at + len(part))))
            batch.seqs = [(seq,)] * len(part)
            batch.states = None if states is None else states[at : at + step]
            batch.outputs = np.zeros(len(part), np.bool_) if outputs is None else outputs
            rows = self.context.decode(batch)
            if seq < len(self.held):
                self.held[seq] += part
        assert rows is not None
        return rows

    def forget(self, seq: int) -> None:
        """The text of a sequence has ended. Its tokens stay for one that begins in the same way."""
        self._writes.discard(seq)
        self._known[seq] = 0

    def drop(self, seq: int, start: int, n: int) -> None:
        """Removes `n` tokens from position `start` on and moves those behind them there. A model
        that cannot do so forgets the text."""
        held = self.held[seq]
        self._known[seq] = 0
        if len(held) <= start:
            return
        if len(held) >= start + n:
            try:
                self.context.drop_oldest(seq, start, n)
            except ContextError:
                pass
            else:
                del held[start : start + n]
                return
        self.cut(seq, 0 if self.recurrent else start)


def same(a: Sequence[int], b: Sequence[int]) -> int:
    """The number of first elements that are equal."""
    n = min(len(a), len(b))
    if list(a[:n]) == list(b[:n]):
        return n
    low = 0  # the first `low` are equal, not all of `n`
    while n - low > 1:
        middle = (low + n) // 2
        if list(a[low:middle]) == list(b[low:middle]):
            low = middle
        else:
            n = middle
    return low
