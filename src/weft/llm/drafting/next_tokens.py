"""`NextTokens` drafts with a layer of the model itself, which was trained to do so.

Such a layer (see `weft.llm.models.next_layer`) reads, for the token at position p, the state that
the model computed of it and the token at p + 1. So it follows the text one token behind: the cache
holds `tokens[1:]`, and the states come from the batches of the model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from weft.llm.compute.context import Context
from weft.llm.drafting.own_cache import OwnCache, same

__all__ = ["NextTokens", "SecondModel", "class_of_last", "sureness"]

MOST_STATES = 512
"""Maximum number of states that wait to be read; older ones are dropped."""


class _Waiting:
    """States of tokens that the layer has not read, by position."""

    __slots__ = ("rows", "start")

    def __init__(self) -> None:
        self.start = 0
        """The position of the first state."""
        self.rows: list[NDArray[np.float32]] = []

    @property
    def end(self) -> int:
        """The position behind the last."""
        return self.start + len(self.rows)

    def put(self, start: int, rows: NDArray[np.float32]) -> None:
        """Adds the states `rows` [n, n_embd] of the tokens from position `start` on, which replace
        those that were known. Tokens in front of the first may be computed again."""
        if start < self.start:
            rows, start = rows[self.start - start :], self.start
        if start > self.end:
            self.rows.clear()
        if not self.rows:
            self.start = start
        del self.rows[start - self.start :]
        self.rows += list(rows)
        if len(self.rows) > MOST_STATES:
            self.drop(len(self.rows) - MOST_STATES)

    def drop(self, n: int) -> None:
        """Forgets the first `n`."""
        del self.rows[:n]
        self.start += n


class NextTokens:
    """Proposes what the layer expects, as long as it is sure.

    The cache of a sequence begins at the first token whose state is known: that of a prompt whose
    beginning another text has computed lacks that beginning, unless the layer has read it, too."""

    name = "layer that drafts"
    trust: Sequence[float] = (0.6, 0.8, 0.9)

    def __init__(self, context: Context, n_seqs: int, p_min: float = 0.0) -> None:
        """`context` is that of the layer, with the option `states`; see `SecondModel`."""
        self.cache = OwnCache(context, n_seqs)
        self.p_min = p_min
        self._waiting = [_Waiting() for _ in range(n_seqs)]
        self._start = [0] * n_seqs
        """Position in the text of the first token in the cache."""
        self._last: dict[int, tuple[int, list[int]]] = {}

    @property
    def context(self) -> Context:
        """The context of the layer."""
        return self.cache.context

    def take(self, seq: int, start: int, states: NDArray[np.float32]) -> None:
        """Takes the states [n, n_embd] that the model computed of the tokens of a sequence from
        position `start` on."""
        self._waiting[seq].put(start, states)

    def look(self, seq: int, tokens: Sequence[int]) -> tuple[int, int]:
        """See `Drafter`."""
        waiting, last = self._waiting[seq], len(tokens) - 2
        if not waiting.start <= last < waiting.end or not self.cache.readable(seq, tokens):
            return 0, 0
        most = self.cache.longest - (len(tokens) - self._start[seq])
        return class_of_last(self._last.get(seq), tokens), most

    def unread(self, seq: int, tokens: Sequence[int]) -> int:
        """See `Reader`."""
        waiting = self._waiting[seq]
        return max(min(waiting.end, len(tokens) - 1) - waiting.start, 0)

    def read(self, seq: int, tokens: Sequence[int]) -> None:
        """See `Reader`."""
        if self.unread(seq, tokens) and self.cache.readable(seq, tokens):
            self._read(seq, tokens)

    def drop(self, seq: int, start: int, n: int) -> None:
        """See `Reader`."""
        self._last.pop(seq, None)
        self._waiting[seq] = _Waiting()
        own = start - self._start[seq]
        if own < 0:
            self._restart(seq, 0)
        else:
            self.cache.drop(seq, own, n)

    def propose(self, seq: int, tokens: Sequence[int], most: int) -> Sequence[int]:
        """See `Drafter`."""
        row = self._read(seq, tokens)
        if row is None:
            return ()
        cache, draft = self.cache, list[int]()
        own = at = len(cache.held[seq])
        while True:
            token = int(row.argmax())
            if self.p_min and sureness(row, token) < self.p_min:
                break
            draft.append(token)
            if len(draft) >= most or at >= cache.longest or cache.make_room(1) < 1:
                break
            assert self.context.states is not None
            row = cache.decode(seq, [token], at, self.context.states[-1:])
            at += 1
        if at > own:  # their states were guesses
            cache.cut(seq, own)
        self._last[seq] = len(tokens), draft
        return draft

    def forget(self, seq: int) -> None:
        """See `Drafter`."""
        self.cache.forget(seq)
        self._last.pop(seq, None)
        self._waiting[seq] = _Waiting()
        if self._start[seq]:
            self._restart(seq, 0)

    def _restart(self, seq: int, start: int) -> None:
        self.cache.cut(seq, 0)
        self._start[seq] = start

    def _read(self, seq: int, tokens: Sequence[int]) -> NDArray[np.float32] | None:
        """Reads the states that wait of tokens that have a successor. Returns the logits of the
        last; None if there is none or no room."""
        cache, waiting = self.cache, self._waiting[seq]
        known = tokens[1 + self._start[seq] :]
        n = cache.keep(seq, known, max(waiting.start - self._start[seq], 0))
        if self._start[seq] + n < waiting.start:  # states between are missing
            self._restart(seq, waiting.start)
        end = min(waiting.end, len(tokens) - 1)
        new = list(tokens[waiting.start + 1 : end + 1])
        at = waiting.start - self._start[seq]
        if not new or at + len(new) > cache.longest or cache.make_room(len(new)) < len(new):
            return None
        row = cache.decode(seq, new, at, np.stack(waiting.rows[: len(new)]))
        waiting.drop(len(new))
        return row


# `SecondModel` drafts with a smaller model of the same vocabulary.


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
