"""Slots: the sequences of a context, one a text, and the cells they may take.

A slot keeps what it computed after its text has ended, until its cells are needed. A new text takes
the longest prefix that any slot has: its own is kept, another's cells become members of both
(`seq_cp`), so that nothing is computed or stored twice.

Cells are promised when a text starts: its prompt and its `max_tokens`, or some room to grow where
it set no limit. Texts that keep to it are never cut short by others.
"""

from __future__ import annotations

from weft.errors import ContextError
from weft.llm.context import Context
from weft.llm.engine.request import Ticket
from weft.llm.kv_cache import KVCache
from weft.llm.sampling import TokenLogprobs
from weft.llm.stop_strings import StopStrings
from weft.llm.tokenizer import Tokenizer

__all__ = ["ROOM", "Slot", "Slots", "Text"]

ROOM = 256
"""Cells promised to a text without `max_tokens`, beside its prompt; then one by one."""


class Text:
    """A text that is being generated."""

    __slots__ = ("n_generated", "n_reused", "pending", "promised", "read", "stops",
                 "stream", "ticket")  # fmt: skip

    def __init__(self, ticket: Ticket, tokenizer: Tokenizer) -> None:
        self.ticket = ticket
        self.stream = tokenizer.stream(special=ticket.request.special)
        self.stops = StopStrings(ticket.stops)
        self.pending: list[TokenLogprobs] = []
        """Tokens whose text is held back."""
        self.read: list[TokenLogprobs] = []
        """Tokens of the prompt, where they are asked for."""
        self.n_generated = 0
        self.n_reused = 0
        self.promised = 0


class Slot:
    """A sequence of the context."""

    __slots__ = ("last_used", "n_done", "seq", "text", "tokens")

    def __init__(self, seq: int) -> None:
        self.seq = seq
        self.tokens: list[int] = []
        """Of the text, in order of position."""
        self.n_done = 0
        """How many of them are in the cache."""
        self.text: Text | None = None
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
            text is not None
            and not text.n_generated
            and text.ticket.request.prompt_logprobs is not None
        )


class Slots:
    """All slots of a context, and its cells."""

    def __init__(self, context: Context, max_text: int) -> None:
        """`max_text`: most tokens of one text."""
        self._context = context
        self._max_text = max_text
        cache = self.cache
        self.all = [Slot(seq) for seq in range(cache.n_seq_max)]
        # recurrent states cannot be cut short, nor can windows that have forgotten what was before
        self._shares = cache.states is None and cache.window is None
        self._clock = 0

    @property
    def cache(self) -> KVCache:
        """The context's; another one when it goes on without a device."""
        return self._context.cache

    @property
    def running(self) -> list[Slot]:
        """Slots with a text."""
        return [slot for slot in self.all if slot.text is not None]

    @property
    def n_promised(self) -> int:
        """Cells that running texts may count on."""
        return sum(slot.text.promised for slot in self.all if slot.text is not None)

    def need(self, ticket: Ticket) -> int:
        """Cells to promise to a request. The last token drawn needs none."""
        request = ticket.request
        n = ROOM if request.max_tokens is None else request.max_tokens
        return min(len(request.prompt) + max(n, 1) - 1, self._max_text)

    def admit(self, ticket: Ticket, tokenizer: Tokenizer) -> Text | None:
        """Starts a text; None when no slot is idle or too few cells are left."""
        need = self.need(ticket)
        idle = [slot for slot in self.all if slot.text is None]
        if not idle or self.n_promised + need > self.cache.size:
            return None
        text = Text(ticket, tokenizer)
        text.promised = need
        prompt = list(ticket.request.prompt)
        scores = ticket.request.prompt_logprobs is not None
        source, n = (None, 0) if scores else self._longest_prefix(prompt)
        slot = self._choose(idle, source, n)
        if slot is source:
            self.cache.seq_rm(slot.seq, n)
        else:
            self.clear(slot)
            if source is not None:
                self.cache.seq_cp(source.seq, slot.seq, 0, n)
        slot.tokens, slot.n_done, slot.text = prompt, n, text
        text.n_reused = n
        return text

    def release(self, slot: Slot, keep: bool) -> None:
        """Ends the slot's text; with `keep` its cells stay for a text that begins alike."""
        slot.text = None
        self._clock += 1
        slot.last_used = self._clock
        if keep and self._shares:
            del slot.tokens[slot.n_done :]
        else:
            self.clear(slot)

    def clear(self, slot: Slot) -> None:
        """Frees the cells of an idle slot."""
        self.cache.seq_rm(slot.seq)
        slot.tokens, slot.n_done = [], 0

    def make_room(self, n: int) -> None:
        """Frees cells of idle slots, the longest idle first, until `n` are free."""
        free = self.cache.size - self.cache.n_used
        while free < n:
            idle = [slot for slot in self.all if slot.text is None and slot.tokens]
            if not idle:
                raise ContextError(f"{n} cells are needed and {free} are free; make n_ctx larger")
            self.clear(min(idle, key=lambda s: s.last_used))
            free = self.cache.size - self.cache.n_used

    def recover(self) -> None:
        """After a failing device has emptied sequences: texts that run there begin anew with the
        tokens they have, others are forgotten."""
        for slot in self.all:
            if self.cache.pos_max(slot.seq) + 1 == slot.n_done:
                continue
            self.cache.seq_rm(slot.seq)
            slot.n_done = 0
            if slot.text is None:
                slot.tokens = []
            else:
                slot.text.read = []

    def may_grow(self, slot: Slot) -> bool:
        """Whether the slot's newest token has a cell; promises it where there are free ones."""
        assert slot.text is not None
        if len(slot.tokens) > slot.text.promised:
            if self.n_promised >= self.cache.size:
                return False
            slot.text.promised += 1
        return True

    def _longest_prefix(self, prompt: list[int]) -> tuple[Slot | None, int]:
        """The slot with most of the prompt's first tokens in the cache, an idle one if it can be.
        The last token is never among them: its logits are needed."""
        best, most = None, 0
        for slot in self.all if self._shares else ():
            n = _common(slot.tokens, prompt, min(slot.n_done, len(prompt) - 1))
            if n > most or (best and n == most and best.text and not slot.text):
                best, most = slot, n
        return best, most

    @staticmethod
    def _choose(idle: list[Slot], source: Slot | None, n: int) -> Slot:
        """The slot for a text that shares `n` tokens with `source`: that itself where it would
        lose little, else the longest idle one, without tokens if there is such."""
        if source is not None and source.text is None and 2 * n >= source.n_done:
            return source
        return min(idle, key=lambda s: (len(s.tokens) > 0, s.last_used))


def _common(a: list[int], b: list[int], most: int) -> int:
    """Length of the common prefix of two lists, at most `most`."""
    if a[:most] == b[:most]:
        return most
    return next(i for i in range(most) if a[i] != b[i])
