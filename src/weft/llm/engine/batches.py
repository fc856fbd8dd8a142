"""Packs the batch of one step, a token of every text being written and a share of every prompt;
`Flights` has the batches that are being computed.

Texts being written come first, so that a long prompt never stops them. The remaining tokens of the
batch are shared evenly among prompts; a short prompt leaves its surplus to the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import field

from weft.llm.compute.batch import Batch
from weft.llm.compute.context import Context
from weft.llm.compute.steps import Step
from weft.llm.engine.slots import Slot
from weft.records import dataclass

__all__ = ["Flights", "StepBatch", "pack", "share"]

SCORED = 64
"""Maximum number of tokens per step of a prompt that needs logits of each token: 32 MiB of logits
for a vocabulary of 128k tokens."""


@dataclass(slots=True, eq=False)
class StepBatch(Batch):
    """The batch of one step, and the slots that the rows of its result belong to."""

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    seqs: list[tuple[int]] = field(default_factory=list)
    outputs: list[bool] = field(default_factory=list)
    start: float = 0.0
    """Time at which the step began, in seconds."""
    parts: list[tuple[Slot, int]] = field(default_factory=list)
    """The slots in order, each with the number of its tokens in the batch."""
    prompts: list[Slot] = field(default_factory=list)
    """The slots that read their prompts."""
    n_prompt: int = 0
    """Number of tokens of prompts."""
    wanted: list[tuple[Slot, int]] = field(default_factory=list)
    """For each row of logits, its slot and the index of the token that it predicts."""

    def add(self, slot: Slot, n: int) -> None:
        """Adds the next `n` tokens of a slot. Logits are computed for the last token of the slot
        and for those of its draft, or for all tokens if their log-probabilities are wanted."""
        start, end, last = slot.n_done, slot.n_done + n, len(slot.tokens)
        self.tokens += slot.tokens[start:end]
        self.positions += range(start, end)
        self.seqs += [(slot.seq,)] * n
        self.parts.append((slot, n))
        if slot.text is not None and not slot.text.growth.n_drawn:
            self.prompts.append(slot)
            self.n_prompt += n
        if slot.scores:
            self.outputs += [True] * n
            self.wanted += [(slot, i) for i in range(start + 1, end + 1)]
            return
        self.outputs += [False] * (n - 1) + [end == last]
        if end == last:
            self.wanted.append((slot, end))
            if slot.draft:
                self._add_draft(slot, end)

    def _add_draft(self, slot: Slot, end: int) -> None:
        n = len(slot.draft)
        self.tokens += slot.draft
        self.positions += range(end, end + n)
        self.seqs += [(slot.seq,)] * n
        self.outputs += [True] * n
        self.wanted += [(slot, end + i) for i in range(1, n + 1)]


def pack(slots: Sequence[Slot], most: int, most_beside: int, *, delays: bool = False) -> StepBatch:
    """Packs the next batch of running slots, of at most `most` tokens. If texts are being written,
    by these slots or, with `delays`, by others, at most `most_beside` of them belong to prompts."""
    batch = StepBatch()
    writing = [slot for slot in slots if slot.n_left == 1]
    for slot in writing[:most]:
        batch.add(slot, 1)
    if len(writing) == len(slots):
        return batch
    prompts = [slot for slot in slots if slot.n_left > 1]
    room = most - len(batch.tokens)
    room = min(room, most_beside) if writing or delays else room
    wants = [min(s.n_left, SCORED) if s.scores else s.n_left for s in prompts]
    for slot, n in zip(prompts, share(wants, room), strict=True):
        if n:
            batch.add(slot, slot.whole(n))
    return batch


def share(wants: Sequence[int], total: int) -> list[int]:
    """Divides `total` evenly, giving nobody more than `wants`. A remainder goes to those that want
    most."""
    shares = [0] * len(wants)
    order = sorted(range(len(wants)), key=lambda i: wants[i])
    for at, i in enumerate(order):
        shares[i] = min(wants[i], total // (len(order) - at))
        total -= shares[i]
    return shares


class Flights:
    """The batches that are being computed, the oldest first.

    Where layers are on several machines, texts are in as many groups as there are machines: the
    batch of one group is submitted, and the batch of another, which was submitted before, is
    collected."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._steps: deque[tuple[StepBatch, Step]] = deque()
        self.n_submitted = 0

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def are_full(self) -> bool:
        """True if no other batch can be submitted before one was collected."""
        return len(self._steps) >= self._context.most_in_flight

    def next_group(self, running: Sequence[Slot]) -> list[Slot]:
        """The slots of the next batch: those in no flight whose last flight is the longest ago."""
        ready = [] if self.are_full else [slot for slot in running if not slot.in_flight]
        ready.sort(key=lambda slot: slot.turn)
        return ready[: -(-len(running) // self._context.most_in_flight)]

    def submit(self, batch: StepBatch) -> bool:
        """Begins to compute a batch; False: it has to be computed when no other is in flight."""
        step = self._context.submit(batch)
        if step is None:
            return False
        self.n_submitted += 1
        for slot, _ in batch.parts:
            slot.in_flight, slot.turn = True, self.n_submitted
        self._steps.append((batch, step))
        return True

    def take(self) -> tuple[StepBatch, Step]:
        """Takes the oldest batch out, whose step is to be collected next."""
        batch, step = self._steps.popleft()
        for slot, _ in batch.parts:
            slot.in_flight = False
        return batch, step
