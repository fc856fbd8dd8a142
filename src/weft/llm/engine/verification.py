"""`Verification`: drafts in the batch of a step, and what is taken back of them.

A draft stands behind the last token of its text, and there are logits for each of its tokens. The
sampler draws from them one after another, as if each had been computed in a step of its own: the
rows have the same bits, because no row depends on what is computed beside it. At the first drawn
token that is not the draft's, the rows behind are left unread and their cells are taken back. So
texts, random numbers, constraints and the cache are what they would be without drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from weft.llm.cache.pages import has_room_behind
from weft.llm.compute.context import Context
from weft.llm.drafting.drafting import (
    MOST_COLUMNS,
    MOST_TEXTS,
    Drafting,
    Outcome,
    Wanted,
    why_no_drafts,
)
from weft.llm.engine.batches import StepBatch
from weft.llm.engine.request import Ticket
from weft.llm.engine.slots import Slot, Slots
from weft.llm.engine.stats import EngineStats
from weft.llm.planning.plan import ContextPlan
from weft.records import dataclass


@dataclass(slots=True)
class Check:
    """The draft of one text in a step."""

    text: Ticket
    draft: Sequence[int]
    start: int
    """Number of tokens in the cache before the step."""
    end: int
    """Number of tokens of the text before the step."""
    state: int | None
    """The recurrent state before the step."""
    n_drawn: int = 0
    failed: bool = False

    def note(self, token: int) -> None:
        """Notes the token that has been drawn."""
        if self.n_drawn < len(self.draft):
            self.failed = token != self.draft[self.n_drawn]
        self.n_drawn += 1


class Verification:
    """Puts drafts behind the texts of a step and takes back what was wrong."""

    def __init__(self, context: Context, slots: Slots, drafting: Drafting) -> None:
        self._context = context
        self._slots = slots
        self.drafting = drafting
        self.checks: dict[Slot, Check] = {}
        self._outcomes: list[Outcome] = []
        self._learns = False
        self._ended: list[int] = []
        self._plan: ContextPlan | None = None
        self._never = ""

    def prepare(self) -> None:
        """Sets the drafts of a step. While a prompt is read there are none."""
        self.drop()
        drafting = self.drafting
        self._learns = not drafting.rests
        while self._ended:
            self.drafting.forget(self._ended.pop())
        if drafting.rests:
            drafting.rests -= 1
            return
        running, context = self._slots.running, self._context
        if not running or not self.may_draft():
            return
        n_base, wanted = 0, []
        for slot in running:
            text = slot.text
            if text is None or not text.growth.n_drawn:
                return
            n_base += slot.n_left
            # a recurrent state that goes back would make it read the same tokens a third time
            most = self._slots.most_drafted(slot) if slot.n_left == 1 else 0
            wanted.append(Wanted(slot.seq, slot.tokens, most))
        room = min(MOST_COLUMNS, context.n_ubatch, context.n_batch) - n_base
        room = min(room, context.n_outputs - len(running))
        if room < 1:
            return
        room = min(room, self._slots.room_beside(n_base))
        n_vocab = context.model.config.n_vocab
        for slot, guess in zip(running, self.drafting.propose(wanted, n_base, room), strict=True):
            draft = list(takewhile(n_vocab.__gt__, guess))  # ids beyond are of images
            n = slot.n_left + len(draft)
            if draft and slot.text is not None and has_room_behind(context.cache, slot.seq, n):
                slot.draft = draft
                state = self._slots.state_of(slot)
                end = len(slot.tokens)
                self.checks[slot] = Check(slot.text, draft, slot.n_done, end, state)

    def may_draft(self) -> bool:
        """Whether drafts of the texts that run now can be checked."""
        context = self._context
        if len(self._slots.running) > MOST_TEXTS:
            return False
        if context.plan is not self._plan:
            self._plan, self._never = context.plan, why_no_drafts(context)
        return not (self._never or context.is_watched)

    def take(self, batch: StepBatch) -> None:
        """Hands what was computed of a batch to drafters that read it."""
        states, at = self._context.states, 0
        if states is None:
            return
        for slot, n in batch.parts:
            with_draft = slot.n_done + n == len(slot.tokens) and not slot.scores
            n += len(slot.draft) if with_draft else 0
            self.drafting.take(slot.seq, slot.n_done, states[at : at + n])
            at += n

    def follow(self, batch: StepBatch) -> None:
        """Lets drafters read what a batch had of prompts."""
        if self.may_draft():
            for slot in batch.prompts:
                if slot.text is not None:
                    self.drafting.follow(slot.seq, slot.tokens[: slot.n_done])

    def dropped(self, slot: Slot, start: int, n: int) -> None:
        """Notes that a text has lost `n` tokens from position `start` on."""
        self.drafting.drop(slot.seq, start, n)

    def end(self, slot: Slot) -> None:
        """Notes that the text of a slot has ended."""
        self._ended.append(slot.seq)

    def drop(self) -> None:
        """Forgets the drafts of this step."""
        if self.checks:
            for slot in self.checks:
                slot.draft = ()
            self.checks.clear()
        self._outcomes.clear()

    def settle(self, stats: EngineStats) -> None:
        """Takes back the wrong parts of all drafts, after the tokens of this step were drawn."""
        for slot, check in self.checks.items():
            if slot.text is not None and slot.n_done < check.end:  # not in the batch yet
                continue
            n, drawn = len(check.draft), check.n_drawn
            right = check.end + max(drawn, 1) - 1
            if drawn > n:
                if slot.text is not None:
                    slot.n_done = right
            else:
                self._slots.take_back(slot, check.start, right, check.state)
            accepted = drawn - 1 if check.failed else min(drawn, n)
            check.text.growth.n_drafted += n
            check.text.growth.n_accepted += accepted
            stats.drafted_tokens += n
            stats.accepted_tokens += accepted
            self._outcomes.append(Outcome(slot.seq, n, drawn, check.failed))

    def learn(self, n_columns: int, n_texts: int, batch: float, seconds: float, n: int) -> None:
        """Tells `drafting` what a step took: its columns and texts, the seconds of its batch, all
        its seconds, and the number `n` of tokens drawn."""
        if self._learns:
            self.drafting.note(n_columns, n_texts, batch, seconds, n, self._outcomes)
