"""Slots: the sequences of a context, one for each text, and the cells that they may take.

The tokens of a text stay in the cache after its end, until their cells are needed. A new text takes
over the longest prefix of its prompt that any sequence holds: either it continues that sequence, or
both share the cells (`seq_cp`), so that nothing is computed or stored twice. What has to leave the
cache is kept beside it (`prefixes.py`) and comes back from there.

A text is promised cells when it starts: for its prompt and `max_tokens`, or for some growth if it
set no limit. A text within its promise is never cut short by others.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from weft.errors import ContextFull
from weft.llm.cache.events import EventDetails
from weft.llm.cache.kv_cache import KVCache
from weft.llm.cache.pages import has_room_in_order
from weft.llm.cache.snapshots import LEAST, Checkpoint, cut, share
from weft.llm.compute.context import Context
from weft.llm.engine.prefixes import Prefixes, why_not_reused
from weft.llm.engine.request import Ticket
from weft.records import dataclass

ROOM = 256
"""Number of cells promised to a text without `max_tokens`, besides its prompt; further cells are
promised one by one."""

SHARED = 32
"""Minimum number of tokens that a text waits for where another one is computing them."""

MOST_COMPARED = 4
"""The most sequences whose cells are compared with a prompt, those that can hold most of it."""


class Slot:
    """A sequence of the context, and the text that it holds."""

    __slots__ = (
        "draft", "in_flight", "known", "last_used", "lent", "n_done", "runs", "seq", "stops",
        "text", "tokens", "turn",
    )  # fmt: skip

    def __init__(self, seq: int) -> None:
        self.seq = seq
        self.text: Ticket | None = None
        self.tokens: list[int] = []
        """The tokens of the text, in order of position."""
        self.n_done = 0
        """Number of tokens of the text that are in the cache."""
        self.draft: Sequence[int] = ()
        """Tokens that may follow, to be checked in this step."""
        self.in_flight = False
        """True while the next tokens of the slot are being computed."""
        self.turn = 0
        """Number of the last batch in flight that had this slot."""
        self.known: NDArray[np.int64] | None = None
        """The prompt of the text, or all tokens that the last text left; None: not known."""
        self.last_used = 0
        self.lent: tuple[float, int] | None = None
        """The turn of a text that waits for a beginning, and the number of tokens of that."""
        self.runs: list[tuple[int, int]] = []
        """First and end token of each image whose tokens are computed at once."""
        self.stops: list[int] = []
        """Numbers of tokens after which the state is kept, in ascending order."""

    @property
    def n_left(self) -> int:
        """Number of tokens to compute before the next one can be drawn."""
        return len(self.tokens) - self.n_done

    def whole(self, n: int) -> int:
        """The number of next tokens near `n` that cuts no image and passes no stop."""
        end = next((at for at in self.stops if at > self.n_done), self.n_done + n)
        end = min(end, self.n_done + n)
        for first, last in self.runs:
            if first < end < last:
                return (first if first > self.n_done else last) - self.n_done
        return end - self.n_done

    def may_share(self, prompt: NDArray[np.int64]) -> int:
        """The most tokens of the prompt that the sequence can hold. Reads no cells."""
        if self.known is None:
            return len(prompt)
        least = min(len(self.known), len(prompt))
        differ = self.known[:least] != prompt[:least]
        n = int(differ.argmax()) if differ.any() else least
        if self.text is None:
            return n
        if n == len(self.known):  # what was drawn may go on like the prompt
            n = len(prompt)
        return min(n, self.n_done)

    def shares_later(self, prompt: NDArray[np.int64]) -> int:
        """The number of tokens of the prompt that the sequence will hold once its own prompt has
        been read; 0: that is not being read."""
        if self.text is None or self.known is None or self.n_left < 2 or self.scores:
            return 0
        if not len(prompt) or self.known[0] != prompt[0]:
            return 0
        least = min(len(self.known), len(prompt))
        differ = self.known[:least] != prompt[:least]
        return int(differ.argmax()) if differ.any() else least

    @property
    def due(self) -> float:
        """The turn of its text among others whose prompts are read, or an earlier one that a text
        lends it until their common beginning has been read."""
        if self.text is None:
            return 0.0
        if self.lent is None or self.n_done >= self.lent[1]:
            return self.text.turn
        return min(self.text.turn, self.lent[0])

    @property
    def scores(self) -> bool:
        """True if it reads a prompt whose log-probabilities are wanted."""
        text = self.text
        return (
            text is not None
            and not text.growth.n_drawn
            and text.request.prompt_logprobs is not None
        )


@dataclass(slots=True, eq=False)
class Beginning:
    """A sequence that begins like a prompt."""

    slot: Slot | None
    """None: there is no such sequence."""
    n: int
    """Number of tokens from which the prompt can go on."""
    same: int
    """The most tokens that a sequence has in common with the prompt; at least `n`."""
    checkpoint: Checkpoint | None = None
    """The state after `n` tokens; None: the sequence can go on without one."""


class Slots:
    """All slots of a context, and the use of its cells."""

    def __init__(self, context: Context, max_text: int, prefixes: Prefixes) -> None:
        """`max_text` is the most tokens of one text. `prefixes` keeps what leaves the cache."""
        self._context = context
        self._prefixes = prefixes
        self._max_text = max_text
        self.all = [Slot(seq) for seq in range(context.cache.n_seq_max)]
        for slot in self.all:
            if context.cache.pos_max(slot.seq) < 0:
                slot.known = np.empty(0, np.int64)
        self.running: list[Slot] = []
        """The slots with a text, in order of their start."""
        self._clock = 0
        self._n_free = 0
        """A lower bound of the free cells, because counting them takes too long for every step."""

    @property
    def cache(self) -> KVCache:
        """The cache of the context. The context replaces it after the failure of a device."""
        return self._context.cache

    @property
    def _shares_cells(self) -> bool:
        """True if sequences can share cells at any position."""
        causal = self._context.model.config.causal
        return causal and self.cache.states is None and self.cache.window is None

    @property
    def n_promised(self) -> int:
        """Number of cells that running texts may count on."""
        return sum(slot.text.promised for slot in self.running if slot.text is not None)

    def need(self, text: Ticket) -> int:
        """The number of cells to promise to a text; its last token needs none."""
        request = text.request
        if not self._context.model.config.causal:
            return 0  # it has cells during a step alone
        room = self._max_text if request.whole else ROOM
        n = room if request.max_tokens is None else request.max_tokens
        first = self._context.model.config.n_encoder > 0  # the decoder's first token
        return min(len(request.prompt) + first + max(n, 1) - 1, self._max_text)

    @property
    def has_idle(self) -> bool:
        """True if some slot has no text."""
        return len(self.running) < len(self.all)

    def n_unread(self, text: Ticket) -> int:
        """About how many tokens of a prompt have to be computed. Reads no cells and no files."""
        request = text.request
        n = len(request.prompt)
        if not request.reuse or request.prompt_logprobs is not None:
            return n
        prompt = np.array(request.prompt[:-1], np.int64)
        idle = (s for s in self.all if s.known is not None and len(s.known))
        return n - max((slot.may_share(prompt) for slot in idle), default=0)

    def waits_for(self, text: Ticket) -> Slot | None:
        """The slot whose text is computing a beginning that it has in common with a waiting text,
        which starts when it can share these cells; None: it need not wait.

        The texts of a shared beginning so compute it once, and start together."""
        if text.behind is not None:
            slot: Slot = text.behind[0]
            _, other, n = text.behind
            if slot.text is other and slot.n_done < n and slot.n_left > 1:
                return slot
            text.behind = None
        request = text.request
        if not self._shares_cells or not request.reuse or request.prompt_logprobs is not None:
            return None
        if not any(slot.n_left > 1 for slot in self.running):
            return None
        beginning = np.array(request.prompt[:-1], np.int64)
        best = max(self.running, key=lambda slot: slot.shares_later(beginning))
        n = best.shares_later(beginning)
        if n < SHARED or best.text is None or self.cache.scale_key(best.seq) != self._scales(text):
            return None
        now = max(slot.may_share(beginning) for slot in self.all)
        if n - now < SHARED:
            return None
        text.behind = best, best.text, n
        turn, end = best.lent or (text.turn, n)
        best.lent = min(turn, text.turn), max(end, n)  # else it would wait for others, too
        return best

    def admit(self, text: Ticket) -> bool:
        """Starts a text; False if no slot is idle or too few cells can be promised."""
        need = self.need(text)
        if len(self.running) == len(self.all) or self.n_promised + need > self.cache.size:
            return False
        self._n_free = 0
        text.promised = need
        prompt = self._context.beginning(text.request.prompt)
        key = self._scales(text)
        slot, n = self._begin(text, prompt, key)
        scores = text.request.prompt_logprobs is not None
        slot.stops = [] if scores else self._prefixes.stops(prompt, n)
        slot.tokens, slot.n_done, slot.text, slot.lent = prompt, n, text, None
        slot.known = np.array(prompt, np.int64)
        spans = self._context.input_rows.spans(prompt)
        slot.runs = [(a, b) for a, b, run in spans if run is not None and run.together]
        text.n_reused = min(n, len(text.request.prompt))
        if self._context.model.config.n_encoder:
            text.growth.begin_anew()
        self.running.append(slot)
        return True

    def _begin(self, text: Ticket, prompt: list[int], key: bytes) -> tuple[Slot, int]:
        """The slot for a text, and how many tokens of its prompt it holds."""
        ids, request = np.array(prompt[:-1], np.int32), text.request
        if not request.reuse or request.prompt_logprobs is not None:
            text.why_not_reused = why_not_reused(request, self._context, 0, 0)
            return self._empty(text), 0
        while True:
            live = self._longest_prefix(prompt, key)
            found, same = self._prefixes.find(key, ids, live.n)
            if found is not None:
                slot = self._empty(text)
                self.make_room(found.n)
                self._n_free = 0
                n = self._prefixes.restore(found, slot.seq, key)
                if not n:  # its file is damaged
                    continue
            elif live.slot is not None:
                slot, n = self._take_over(live.slot, live, text)
            else:
                slot, n = self._empty(text), 0
            same = max(same, live.same)
            text.why_not_reused = why_not_reused(request, self._context, n, same)
            return slot, n

    def _take_over(self, source: Slot, live: Beginning, text: Ticket) -> tuple[Slot, int]:
        """Continues a sequence, or shares its cells, from token `live.n` on."""
        cache, n = self.cache, live.n
        length = cache.pos_max(source.seq) + 1
        slot = self._choose(source, n, shares=self._shares_cells or live.checkpoint is not None)
        if slot is not source:
            self._empty(text, slot)
            share(cache, source.seq, slot.seq, n, live.checkpoint)
        else:
            if length - n >= LEAST:
                self._prefixes.keep(slot.seq)
            with cache.noting("reused", (slot.seq,), EventDetails(n_saved=n)):
                if n < length:
                    cut(cache, slot.seq, n, live.checkpoint)
            if n == length and self._prefixes.needed:  # the end of an answer
                self._prefixes.note(slot.seq, cache.tokens[cache.cells_of(slot.seq)])
        return slot, n

    def _empty(self, text: Ticket, slot: Slot | None = None) -> Slot:
        """An idle slot without tokens, for a text with its adapters and control vectors."""
        slot = self._choose(None, 0) if slot is None else slot
        self.clear(slot)
        self._context.use_adapters(text.request.adapters, slot.seq)
        self._context.use_control_vectors(text.request.control_vectors, slot.seq)
        return slot

    def note_stops(self, slots: Sequence[Slot]) -> None:
        """Keeps the states of slots whose prompts have come to a stop."""
        for slot in slots:
            if slot.n_done in slot.stops:
                self._prefixes.note(slot.seq, slot.tokens[: slot.n_done])

    def keep_all(self) -> None:
        """Copies the texts of all idle slots to where they are kept."""
        for slot in self.all:
            if slot.text is None:
                self._prefixes.keep(slot.seq)

    def release(self, slot: Slot, keep: bool) -> None:
        """Ends the text of a slot. With `keep`, its cells stay for a text with the same
        beginning."""
        self._clock += 1
        slot.last_used = self._clock
        slot.known = np.array(slot.tokens[: slot.n_done], np.int64)
        slot.text, slot.tokens, slot.n_done, slot.draft = None, [], 0, ()
        slot.stops = []
        self.running.remove(slot)
        if not keep:
            self.cache.seq_rm(slot.seq)
            self.clear(slot)

    def clear(self, slot: Slot) -> None:
        """Frees the cells of an idle slot, whose text is kept beside the cache."""
        if self.cache.pos_max(slot.seq) >= 0:
            self._prefixes.keep(slot.seq)
        self.cache.seq_rm(slot.seq)
        slot.known = np.empty(0, np.int64)

    def make_room(self, n: int) -> None:
        """Frees cells of idle slots, the longest idle first, until `n` are free."""
        cache = self.cache
        if self._n_free < n:
            self._n_free = cache.size - cache.n_used
        while self._n_free < n:
            if not self._clear_one():
                raise ContextFull(
                    f"{n} cells are needed and {self._n_free} are free; make `n_ctx` larger"
                )
        self._n_free -= n

    def make_room_for(self, parts: Sequence[tuple[Slot, int]]) -> None:
        """Makes room for the next tokens of slots, the draft of each among them. Idle slots also
        give way where a text would lose the order of its cells, so that its numbers, to the last
        bit, do not depend on texts that have ended."""
        wanted = [(slot.seq, n + len(slot.draft)) for slot, n in parts]
        self.make_room(sum(n for _, n in wanted))
        while not has_room_in_order(self.cache, wanted) and self._clear_one():
            pass

    def _clear_one(self) -> bool:
        """Frees the cells of the slot that is idle for the longest time; False: none has any."""
        idle = [s for s in self.all if s.text is None and self.cache.pos_max(s.seq) >= 0]
        if not idle:
            return False
        before = self.cache.n_used
        self.clear(min(idle, key=lambda s: s.last_used))
        self._n_free += before - self.cache.n_used
        return True

    def room_beside(self, n: int) -> int:
        """Number of cells that are free beside the next `n`, without those of idle slots."""
        if self._n_free < n + 64:
            self._n_free = self.cache.size - self.cache.n_used
        return max(self._n_free - n, 0)

    def most_drafted(self, slot: Slot) -> int:
        """The most tokens that may be drafted for a text: no more than it can still have."""
        text, n = slot.text, len(slot.tokens)
        assert text is not None
        most = min(self._context.n_ctx_seq, self._max_text) - n
        if text.request.max_tokens is not None:
            most = min(most, text.request.max_tokens - text.growth.n_drawn - 1)
        return max(most, 0)

    def state_of(self, slot: Slot) -> int | None:
        """The recurrent state that a sequence has now; None: the model has none."""
        states = self.cache.states
        return None if states is None else int(states.slot[slot.seq])

    def take_back(self, slot: Slot, start: int, right: int, state: int | None) -> None:
        """Removes the tokens from position `right` on, the wrong part of a draft, that were just
        decoded from position `start` on.

        A recurrent state goes back to `state`, the one before; right tokens are then decoded
        again."""
        right = right if state is None else start
        self._n_free += self.cache.take_back(slot.seq, right, state)
        if slot.text is not None:
            slot.n_done = right

    def recover(self) -> bool:
        """Restarts texts whose sequences were emptied by the failure of a device, with the tokens
        they have so far. True if there were any."""
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
        """True if there is a cell for the newest token of the slot, which is then promised."""
        text, n = slot.text, len(slot.tokens)
        assert text is not None
        if text.request.n_keep is not None:  # `shift` makes room for it
            return True
        if n > self._max_text:
            return False
        if n > text.promised:
            if self.n_promised >= self.cache.size:
                return False
            text.promised += 1
        return True

    def shift(self) -> list[tuple[Slot, int, int]]:
        """Drops older tokens of texts with `n_keep` that have filled the context. Returns their
        slots, with the first position and the number of the tokens that are gone."""
        dropped = []
        for slot in self.running:
            assert slot.text is not None
            n_keep = slot.text.request.n_keep
            if n_keep is not None and len(slot.tokens) > self._context.n_ctx:
                n_dropped = self._context.drop_oldest(slot.seq, n_keep)
                del slot.tokens[n_keep : n_keep + n_dropped]
                slot.n_done -= n_dropped
                self._n_free = 0
                dropped.append((slot, n_keep, n_dropped))
        return dropped

    def cancelled(self) -> list[Slot]:
        """The slots whose texts have been cancelled, and that are in no step now."""
        idle = (slot for slot in self.running if not slot.in_flight)
        return [slot for slot in idle if slot.text is not None and slot.text.cancelled]

    def _scales(self, text: Ticket) -> bytes:
        """Tells texts apart that may not share cells, because their adapters or control vectors
        differ."""
        request = text.request
        rows = self._context.model.scale_rows(request.adapters, request.control_vectors)
        return b"".join(row.tobytes() for row in rows.values())

    def _longest_prefix(self, prompt: list[int], key: bytes) -> Beginning:
        """The longest prefix of the prompt that a sequence with the scales `key` holds and can go
        on from, preferably an idle one. The last token does not count, because its logits are
        needed."""
        beginning = np.array(prompt[:-1], np.int64)
        checkpoints = self._prefixes.checkpoints(key, beginning.astype(np.int32))
        slots = [
            s
            for s in self.all
            if (s.text is None or self._shares_cells or checkpoints)
            and self.cache.scale_key(s.seq) == key
        ]
        most_first = [(slot.may_share(beginning), slot) for slot in slots]
        most_first.sort(key=lambda pair: (pair[0], pair[1].text is None), reverse=True)
        best = Beginning(None, 0, 0)
        for may_share, slot in most_first[:MOST_COMPARED]:
            if may_share <= best.n:
                break
            n, checkpoint = self._context.common_prefix(slot.seq, prompt), None
            same = n = min(n, may_share)  # what is still being computed may fail
            if self._prefixes.needed and (n == 0 or slot.text is not None):
                same = self.cache.common_prefix(slot.seq, beginning)
                checkpoint = next((c for c in reversed(checkpoints) if c.n <= same), None)
                n = 0 if checkpoint is None else checkpoint.n
            best = Beginning(slot, n, same, checkpoint) if n > best.n else best
            best.same = max(best.same, same)
        return best

    def _choose(self, source: Slot | None, n: int, *, shares: bool = True) -> Slot:
        """Chooses an idle slot for a text that shares `n` tokens with `source`.

        This is `source` itself if it would lose few tokens or its cells cannot be shared (`shares`
        is false), else the slot that has been idle longest, preferably one without tokens."""
        if source is not None and source.text is None:
            if not shares or 2 * n > self.cache.pos_max(source.seq):
                return source
        idle = [slot for slot in self.all if slot.text is None]
        return min(idle, key=lambda s: (self.cache.pos_max(s.seq) >= 0, s.last_used))
