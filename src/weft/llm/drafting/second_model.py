"""`SecondModel` drafts with a smaller model of the same vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from weft.llm.compute.context import Context
from weft.llm.drafting.own_cache import OwnCache, same

__all__ = ["SecondModel", "class_of_last", "sureness"]


class SecondModel:
    """Proposes what another model would write with temperature 0, as long as it is sure.

    The class of a proposal is what became of the one before in the same text: nothing of it was
    right, a part, or all."""

    name = "draft model"
    trust: Sequence[float] = (0.6, 0.8, 0.9)

    def __init__(self, context: Context, n_seqs: int, p_min: float = 0.0) -> None:
        """`context` is that of the model that drafts, for the sequences of `n_seqs` texts (see
        `OwnCache`). A draft ends in front of a token that is less probable than `p_min`."""
        self.cache = OwnCache(context, n_seqs)
        self.p_min = p_min
        self._last: dict[int, tuple[int, list[int]]] = {}

    @property
    def context(self) -> Context:
        """The context of the model that drafts."""
        return self.cache.context

    def look(self, seq: int, tokens: Sequence[int]) -> tuple[int, int]:
        """See `Drafter`."""
        if not self.cache.readable(seq, tokens):
            return 0, 0
        return class_of_last(self._last.get(seq), tokens), self.cache.longest - len(tokens)

    def unread(self, seq: int, tokens: Sequence[int]) -> int:
        """See `Reader`."""
        return len(tokens) - self.cache.begun(seq, tokens)

    def read(self, seq: int, tokens: Sequence[int]) -> None:
        """See `Reader`."""
        if len(tokens) > self.cache.longest or not self.cache.readable(seq, tokens):
            return
        n = self.cache.keep(seq, tokens, len(tokens))
        new = len(tokens) - n
        if new and self.cache.make_room(new) >= new:
            self.cache.decode(seq, tokens[n:], n)

    def drop(self, seq: int, start: int, n: int) -> None:
        """See `Reader`."""
        self.cache.drop(seq, start, n)
        self._last.pop(seq, None)

    def propose(self, seq: int, tokens: Sequence[int], most: int) -> Sequence[int]:
        """See `Drafter`."""
        cache, end = self.cache, len(tokens)
        n = cache.keep(seq, tokens, end - 1)  # the last one's logits are wanted
        most = min(most, cache.make_room(end - n + most) - (end - n) + 1)
        if most < 1:
            return ()
        row = cache.decode(seq, tokens[n:], n)
        own, draft = seq, list[int]()
        if cache.recurrent:
            own = cache.scratch(seq)
            cache.context.cache.seq_cp(seq, own)
        try:
            while True:
                token = int(row.argmax())
                if self.p_min and sureness(row, token) < self.p_min:
                    break
                draft.append(token)
                if len(draft) >= most:
                    break
                row = cache.decode(own, [token], end + len(draft) - 1)
        finally:
            if cache.recurrent:
                cache.context.cache.seq_rm(own)
        self._last[seq] = end, draft
        return draft

    def forget(self, seq: int) -> None:
        """See `Drafter`."""
        self.cache.forget(seq)
        self._last.pop(seq, None)


def sureness(row: NDArray[np.float32], token: int) -> float:
    """The probability of `token` by the logits `row` [n_vocab], the largest of which is the logit
    of `token`."""
    return 1.0 / float(np.exp(row - row[token]).sum())


def class_of_last(last: tuple[int, list[int]] | None, tokens: Sequence[int]) -> int:
    """The class of the last draft of a text, given with its start: 0 if nothing of it was right,
    2 if all was, 1 otherwise or if there was none."""
    if last is None or not last[1]:
        return 1
    start, draft = last
    n = same(draft, tokens[start : start + len(draft)])
    return 2 if n == len(draft) else int(n > 0)
