"""`SecondModel`: drafts by a smaller model of the same vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

from weft.llm.compute.context import Context
from weft.llm.drafting.next_tokens import DraftIds, class_of_last
from weft.llm.drafting.own_cache import OwnCache


class SecondModel:
    """Proposes what another model would write with temperature 0, as long as it is sure.

    The class of a proposal is what became of the one before in the same text: nothing of it was
    right, a part, or all."""

    name = "draft model"
    trust: Sequence[float] = (0.6, 0.8, 0.9)

    def __init__(
        self, context: Context, n_seqs: int, p_min: float = 0.0, share: float = 0.0
    ) -> None:
        """`context` has the model that drafts, for the sequences of `n_seqs` texts (see
        `OwnCache`). A draft ends in front of a token that is less probable than `p_min`. `share`
        is as in `Reader`."""
        self.cache = OwnCache(context, n_seqs)
        self.p_min, self.share = p_min, share
        self._last: dict[int, tuple[int, list[int]]] = {}

    @property
    def context(self) -> Context:
        """The context of the model that drafts."""
        return self.cache.context

    def look(self, seq: int, tokens: Sequence[int]) -> tuple[int, int]:
        if not self.cache.readable(seq, tokens):
            return 0, 0
        return class_of_last(self._last.get(seq), tokens), self.cache.longest - len(tokens)

    def unread(self, seq: int, tokens: Sequence[int]) -> int:
        return len(tokens) - self.cache.begun(seq, tokens)

    def read(self, seq: int, tokens: Sequence[int]) -> None:
        if len(tokens) > self.cache.longest or not self.cache.readable(seq, tokens):
            return
        n = self.cache.keep(seq, tokens, len(tokens))
        new = len(tokens) - n
        if new and self.cache.make_room(new) >= new:
            self.cache.decode(seq, tokens[n:], n)

    def drop(self, seq: int, start: int, n: int) -> None:
        self.cache.drop(seq, start, n)
        self._last.pop(seq, None)

    def propose(self, seq: int, tokens: Sequence[int], most: int) -> Sequence[int]:
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
                token = DraftIds().best(row[0], self.p_min)
                if token is None:
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
        self.cache.forget(seq)
        self._last.pop(seq, None)
