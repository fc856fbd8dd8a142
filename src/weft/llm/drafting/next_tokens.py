"""Drafts by what was trained for one model and reads the states that it computes
(`ModelConfig.drafts`).

NextTokens     layers of the model itself (`weft.llm.models.next_layer`) or EAGLE-3's layer
Blocks         guesses a block of tokens at once (DFlash)
BesideCache    attends to the cache of the model (the assistants of Gemma 4)

A layer that drafts reads, for the token at position p, the state that the model computed of it and
the token at p + 1. So it follows the text one token behind: the cache holds `tokens[1:]`, and the
states come from the batches of the model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from weft.errors import ContextError
from weft.llm.compute.batch import Batch, Outputs
from weft.llm.compute.context import Context
from weft.llm.config_parts import DraftConfig
from weft.llm.drafting.own_cache import OwnCache, same
from weft.records import dataclass

MOST_STATES = 512
"""Maximum number of states that wait to be read; older ones are dropped."""
MOST_TAKEN_BACK = 32
"""Maximum number of newest tokens of a text whose states are needed: a wrong draft goes back to one
of them."""


class _Waiting:
    """States of tokens that the layer has not read, by position."""

    __slots__ = ("most", "rows", "start")

    def __init__(self, most: int = MOST_STATES) -> None:
        self.most = most
        """Maximum number of states; older ones are dropped."""
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
        if len(self.rows) > self.most:
            self.drop(len(self.rows) - self.most)

    def drop(self, n: int) -> None:
        """Forgets the first `n`."""
        del self.rows[:n]
        self.start += n


class NextTokens:
    """Proposes what the layer expects, as long as it is sure.

    With several layers, each was trained for one guess. All read the states of the text; each then
    reads the guesses of the layers before it, with the states that those computed. The cache of a
    sequence begins at the first token whose state is known: that of a prompt whose beginning
    another text has computed lacks that beginning, unless the layer has read it, too."""

    name = "layer that drafts"
    trust: Sequence[float] = (0.6, 0.8, 0.9)
    ahead = 1
    """Number of positions by which the token that it reads is behind the state beside it."""
    outputs: Outputs | None = "last"
    """The tokens that it reads whose logits are wanted."""

    def __init__(
        self,
        context: Context,
        n_seqs: int,
        p_min: float = 0.0,
        share: float = 0.0,
        further: Sequence[Context] = (),
    ) -> None:
        """`context` is the context of the layer, with the option `states`; `further` are the
        contexts of layers for further guesses. See `SecondModel`."""
        self.cache = OwnCache(context, n_seqs)
        self.further = [OwnCache(other, n_seqs) for other in further]
        self._caches = (self.cache, *self.further)
        self._most = len(self._caches) if further else context.n_ctx
        self.ids = ids_of(context)
        self.p_min, self.share = p_min, share
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
        waiting, last = self._waiting[seq], len(tokens) - 2
        if not waiting.start <= last < waiting.end or not self.cache.readable(seq, tokens):
            return 0, 0
        most = self.cache.longest - (len(tokens) - self._start[seq])
        return class_of_last(self._last.get(seq), tokens), min(most, self._most)

    def unread(self, seq: int, tokens: Sequence[int]) -> int:
        waiting = self._waiting[seq]
        return max(min(waiting.end, len(tokens) - 1) - waiting.start, 0)

    def read(self, seq: int, tokens: Sequence[int]) -> None:
        if self.unread(seq, tokens) and self.cache.readable(seq, tokens):
            self._read(seq, tokens)

    def drop(self, seq: int, start: int, n: int) -> None:
        self._last.pop(seq, None)
        self._waiting[seq] = _Waiting()
        own = start - self._start[seq]
        if own < 0:
            self._restart(seq, 0)
        else:
            for cache in self._caches:
                cache.drop(seq, own, n)

    def propose(self, seq: int, tokens: Sequence[int], most: int) -> Sequence[int]:
        row = self._read(seq, tokens)
        if row is None:
            return ()
        cache, draft, most = self.cache, list[int](), min(most, self._most)
        own, states = len(cache.held[seq]), list[NDArray[np.float32]]()
        while True:
            token = self.ids.best(row[0], self.p_min)
            if token is None:
                break
            draft.append(token)
            n = len(draft)
            if n >= most or own + n > cache.longest:
                break
            assert cache.context.states is not None
            states.append(cache.context.states[-1:])
            # the next layer has read none of the guesses, the same one all but the last
            first = 0 if self.further else n - 1
            cache = self._caches[n] if self.further else cache
            if cache.make_room(n - first) < n - first:
                break
            row = cache.decode(seq, draft[first:], own + first, np.concatenate(states[first:]))
        for cache in self._caches:
            if len(cache.held[seq]) > own:  # the states of guesses were guesses
                cache.cut(seq, own)
        self._last[seq] = len(tokens), draft
        return draft

    def forget(self, seq: int) -> None:
        for cache in self._caches:
            cache.forget(seq)
        self._last.pop(seq, None)
        self._waiting[seq] = _Waiting()
        if self._start[seq]:
            self._restart(seq, 0)

    def _restart(self, seq: int, start: int) -> None:
        for cache in self._caches:
            cache.cut(seq, 0)
        self._start[seq] = start

    def _read(self, seq: int, tokens: Sequence[int]) -> NDArray[np.float32] | None:
        """Reads the states that wait of tokens that have a successor. Returns the logits of the
        last; None if there is none or no room."""
        waiting, ahead = self._waiting[seq], self.ahead
        known = tokens[ahead + self._start[seq] :]
        most = max(waiting.start - self._start[seq], 0)
        n = min([cache.keep(seq, known, most) for cache in self._caches])
        if self._start[seq] + n < waiting.start:  # states between are missing
            self._restart(seq, waiting.start)
        end = min(waiting.end, len(tokens) - 1)
        new = list(tokens[waiting.start + ahead : end + ahead])
        at = waiting.start - self._start[seq]
        if not new or at + len(new) > self.cache.longest:
            return None
        if min([cache.make_room(len(new)) for cache in self._caches]) < len(new):
            return None
        states = np.stack(waiting.rows[: len(new)])
        row = self.cache.decode(seq, new, at, states, self.outputs)
        for cache in self.further:
            cache.decode(seq, new, at, states, None)
        waiting.drop(len(new))
        return row


class EagleTokens(NextTokens):
    """Proposes what a layer of another file expects (EAGLE-3)."""

    name = "draft model"


class Blocks(NextTokens):
    """Proposes a block of tokens at once: the model reads the last token and masks behind it.

    The cache holds what the states of the text gave; the block is removed from it again."""

    name = "draft model"
    ahead, outputs = 0, None

    def look(self, seq: int, tokens: Sequence[int]) -> tuple[int, int]:
        which, most = super().look(seq, tokens)
        return which, min(most - 1, self.drafts.block - 1) if most > 1 else 0

    @property
    def drafts(self) -> DraftConfig:
        """The states that the model reads, and the size of its blocks."""
        drafts = self.context.model.config.drafts
        assert drafts is not None
        return drafts

    def propose(self, seq: int, tokens: Sequence[int], most: int) -> Sequence[int]:
        self._read(seq, tokens)
        cache, own = self.cache, len(self.cache.held[seq])
        n = min(most, self.drafts.block - 1, cache.longest - own - 1)
        if self._start[seq] + own != len(tokens) - 1 or n < 1 or cache.make_room(n + 1) < n + 1:
            return ()
        block = [tokens[-1], *[self.drafts.mask_token] * n]
        rows = cache.decode(seq, block, own, outputs=[False, *[True] * n])
        cache.cut(seq, own)
        draft = list[int]()
        for row in rows:
            best = self.ids.best(row, self.p_min)
            if best is None:
                break
            draft.append(best)
        self._last[seq] = len(tokens), draft
        return draft


class BesideCache:
    """Proposes what a model expects that attends to the cache of the model that it drafts for.

    It reads no text. Each guess is made at the position behind the text, from the token before it
    and its state: the model's, and then its own."""

    name = "draft model"
    trust: Sequence[float] = (0.6, 0.8, 0.9)

    def __init__(
        self, context: Context, n_seqs: int, p_min: float = 0.0, share: float = 0.0
    ) -> None:
        """`context` is the draft model's, with the option `states`; see `SecondModel`."""
        assert context.cache.lender is not None
        self.context, self.p_min, self.share = context, p_min, share
        self.ids = ids_of(context)
        self._lender = context.cache.lender
        self._waiting = [_Waiting(MOST_TAKEN_BACK) for _ in range(n_seqs)]
        self._last: dict[int, tuple[int, list[int]]] = {}

    def take(self, seq: int, start: int, states: NDArray[np.float32]) -> None:
        """Takes the states [n, n_embd] that the model computed of the tokens of a sequence from
        position `start` on."""
        self._waiting[seq].put(start, states)

    def look(self, seq: int, tokens: Sequence[int]) -> tuple[int, int]:
        waiting, last = self._waiting[seq], len(tokens) - 2
        known = waiting.start <= last < waiting.end
        if not known or self._lender.has_shift or tokens[-1] >= self.context.model.config.n_vocab:
            return 0, 0
        return class_of_last(self._last.get(seq), tokens), self._lender.size

    def unread(self, seq: int, tokens: Sequence[int]) -> int:
        return 0

    def read(self, seq: int, tokens: Sequence[int]) -> None: ...

    def drop(self, seq: int, start: int, n: int) -> None:
        self.forget(seq)

    def propose(self, seq: int, tokens: Sequence[int], most: int) -> Sequence[int]:
        waiting, draft = self._waiting[seq], list[int]()
        at, token = [self._lender.pos_max(seq) + 1], tokens[-1]
        states: NDArray[np.float32] | None = waiting.rows[len(tokens) - 2 - waiting.start][None]
        while len(draft) < most:
            row = self.context.decode(Batch([token], at, [(seq,)], states=states))[0]
            best = self.ids.best(row, self.p_min)
            if best is None:
                break
            token, states = best, self.context.states
            draft.append(token)
        self._last[seq] = len(tokens), draft
        return draft

    def forget(self, seq: int) -> None:
        self._last.pop(seq, None)
        self._waiting[seq] = _Waiting(MOST_TAKEN_BACK)


@dataclass(frozen=True, slots=True)
class DraftIds:
    """The ids that a model that drafts can guess."""

    ids: NDArray[np.int64] | None = None
    """The id of each of its logits; None: they are in the order of the vocabulary."""

    def best(self, row: NDArray[np.float32], p_min: float) -> int | None:
        """The most probable id by the logits `row`; None if it is less probable than `p_min`."""
        token = int(row.argmax())
        if p_min and sureness(row, token) < p_min:
            return None
        return token if self.ids is None else int(self.ids[token])


def ids_of(context: Context) -> DraftIds:
    """The ids that the model of a context can guess. Raises ContextError for ids that are not of
    the vocabulary."""
    config, info = context.model.config, context.model.file.tensors.get("d2t")
    if config.drafts is None or not config.drafts.n_vocab or info is None:
        return DraftIds()
    whole = info.dtype.name in ("i32", "i64")
    ids = np.frombuffer(info.data, f"<i{info.dtype.bytes}") if whole else np.full(1, -1)
    if len(ids) != config.drafts.n_vocab or ids.min() < 0 or ids.max() >= config.n_vocab:
        raise ContextError(
            f"{context.model.file.path}: tensor d2t must have an id of 0..{config.n_vocab - 1} for "
            f"each of {config.drafts.n_vocab} logits; download or convert the file again"
        )
    return DraftIds(ids)


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
