"""Slots: the sequences of a context, one a text, and the cells they may take.

What a text has computed stays in the cache after its end, until its cells are needed. A new text
takes the longest prefix that any sequence holds: its own is kept, another's cells become members of
both (`seq_cp`), so that nothing is computed or stored twice.

Cells are promised when a text starts: its prompt and its `max_tokens`, or some room to grow where
it set no limit. Texts that keep to it are never cut short by others.
"""

from __future__ import annotations

from weft.errors import ContextError
from weft.llm.cache.kv_cache import KVCache
from weft.llm.compute.context import Context
from weft.llm.engine.request import Ticket

__all__ = ["ROOM", "Slot", "Slots"]

ROOM = 256
"""Cells promised to a text without `max_tokens`, beside its prompt; then one by one."""


class Slot:
    """A sequence of the context."""

    __slots__ = ("last_used", "n_done", "seq", "text", "tokens")

    def __init__(self, seq: int) -> None:
        self.seq = seq
        self.text: Ticket | None = None
        self.tokens: list[int] = []
        """Of the text, in order of position."""
        self.n_done = 0
        """How many of them are in the cache."""
        self.last_used = 0

    @property
    def n_left(self) -> int:
        """Tokens to compute before the next can be drawn."""
        return len(self.tokens) - self.n_done

    @property
    def scores(self) -> bool:
        """Whether it reads a prompt whose log-probabilities are wanted."""
        text = self.text
        return (
            text is not None and not text.draft.n_drawn and text.request.prompt_logprobs is not None
        )


class Slots:
    """All slots of a context, and its cells."""

    def __init__(self, context: Context, max_text: int) -> None:
        """`max_text`: most tokens of one text."""
        self._context = context
        self._max_text = max_text
        self.all = [Slot(seq) for seq in range(context.cache.n_seq_max)]
        self.running: list[Slot] = []
        """Those with a text, the first one first."""
        self._clock = 0
        self._n_free = 0
        """Cells that are free at least; counting them takes longer than a step should."""

    @property
    def cache(self) -> KVCache:
        """The context's; another one when it goes on without a device."""
        return self._context.cache

    @property
    def n_promised(self) -> int:
        """Cells that running texts may count on."""
        return sum(slot.text.promised for slot in self.running if slot.text is not None)

    def need(self, text: Ticket) -> int:
        """Cells to promise to a text. The last token drawn needs none."""
        request = text.request
        room = self._max_text if request.whole else ROOM
        n = room if request.max_tokens is None else request.max_tokens
        return min(len(request.prompt) + max(n, 1) - 1, self._max_text)

    def admit(self, text: Ticket) -> bool:
        """Starts a text; False when no slot is idle or too few cells are left."""
        need = self.need(text)
        if len(self.running) == len(self.all) or self.n_promised + need > self.cache.size:
            return False
        self._n_free = 0
        text.promised = need
        prompt = list(text.request.prompt)
        reads = text.request.reuse and text.request.prompt_logprobs is None
        source, n = self._longest_prefix(prompt) if reads else (None, 0)
        slot = self._choose(source, n)
        if slot is source:
            n = self._context.reuse_prefix(slot.seq, prompt)
        else:
            self.clear(slot)
            if source is not None:
                self.cache.seq_cp(source.seq, slot.seq, 0, n)
        slot.tokens, slot.n_done, slot.text = prompt, n, text
        text.n_reused = n
        self.running.append(slot)
        return True

    def release(self, slot: Slot, keep: bool) -> None:
        """Ends the slot's text; with `keep` its cells stay for a text that begins alike."""
        self._clock += 1
        slot.last_used = self._clock
        slot.text, slot.tokens, slot.n_done = None, [], 0
        self.running.remove(slot)
        if not keep:
            self.clear(slot)

    def clear(self, slot: Slot) -> None:
        """Frees the cells of an idle slot."""
        self.cache.seq_rm(slot.seq)

    def make_room(self, n: int) -> None:
        """Frees cells of idle slots, the longest idle first, until `n` are free."""
        cache = self.cache
        if self._n_free < n:
            self._n_free = cache.size - cache.n_used
        while self._n_free < n:
            held = [s for s in self.all if s.text is None and cache.pos_max(s.seq) >= 0]
            if not held:
                raise ContextError(
                    f"{n} cells are needed and {self._n_free} are free; make n_ctx larger"
                )
            self.clear(min(held, key=lambda s: s.last_used))
            self._n_free = cache.size - cache.n_used
        self._n_free -= n

    def recover(self) -> bool:
        """After a failing device has emptied sequences: texts that run there begin anew with the
        tokens they have. Says whether there was one."""
        emptied = False
        self._n_free = 0
        for slot in self.running:
            if self.cache.pos_max(slot.seq) + 1 == slot.n_done:
                continue
            emptied = True
            self.cache.seq_rm(slot.seq)
            slot.n_done = 0
            if slot.text is not None:
                slot.text.read = []
        return emptied

    def may_grow(self, slot: Slot) -> bool:
        """Whether the slot's newest token has a cell; promises it where there are free ones."""
        text, n = slot.text, len(slot.tokens)
        assert text is not None
        if text.request.n_keep is not None:  # it makes room for itself
            return True
        if n > self._max_text:
            return False
        if n > text.promised:
            if self.n_promised >= self.cache.size:
                return False
            text.promised += 1
        return True

    def shift(self) -> None:
        """Drops older tokens of texts that may, where the context has no cell for the next one."""
        for slot in self.running:
            assert slot.text is not None
            n_keep = slot.text.request.n_keep
            if n_keep is not None and len(slot.tokens) > self._context.n_ctx:
                dropped = self._context.drop_oldest(slot.seq, n_keep)
                del slot.tokens[n_keep : n_keep + dropped]
                slot.n_done -= dropped
                self._n_free = 0

    def cancelled(self) -> list[Slot]:
        """Those whose texts nobody wants any more."""
        return [slot for slot in self.running if slot.text is not None and slot.text.cancelled]

    def _longest_prefix(self, prompt: list[int]) -> tuple[Slot | None, int]:
        """The slot whose sequence holds most of the prompt's first tokens, an idle one if it can
        be. The last token is never among them: its logits are needed."""
        best, most = None, 0
        shares = self.cache.states is None and self.cache.window is None
        for slot in self.all:
            if slot.text is not None and not shares:
                continue
            n = self._context.common_prefix(slot.seq, prompt)
            if n > most or (best and n == most and best.text and not slot.text):
                best, most = slot, n
        return best, most

    def _choose(self, source: Slot | None, n: int) -> Slot:
        """The slot for a text that shares `n` tokens with `source`: that itself where it would
        lose little or its cells cannot be shared, else the longest idle one, without tokens if
        there is such."""
        shares = self.cache.states is None and self.cache.window is None
        if source is not None and source.text is None:
            if not shares or 2 * n > self.cache.pos_max(source.seq):
                return source
        idle = [slot for slot in self.all if slot.text is None]
        return min(idle, key=lambda s: (self.cache.pos_max(s.seq) >= 0, s.last_used))
