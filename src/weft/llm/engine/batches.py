"""Packs the batch of one step, a token of every text being written and a share of every prompt;
`Flights` has the batches that are being computed.

Texts being written come first, so that a long prompt never stops them. The remaining tokens of the
batch go to prompts in the order of their turns (`admission.py`), to as few at a time as fill it:
shared among all, every prompt would end with the last one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import field

from weft.errors import ContextError
from weft.llm.compute.batch import Batch
from weft.llm.compute.context import Context
from weft.llm.compute.steps import Step
from weft.llm.engine.slots import Slot
from weft.records import dataclass

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
    prompts = sorted((slot for slot in slots if slot.n_left > 1), key=lambda slot: slot.due)
    room = most - len(batch.tokens)
    room = min(room, most_beside) if writing or delays else room
    for slot in prompts:
        if room <= 0:
            break
        n = slot.whole(min(slot.n_left, room, SCORED if slot.scores else room))
        batch.add(slot, n)
        room -= n
    return batch


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


DELAY = 0.2
"""Default seconds that prompts of others may add to a step."""
LEAST = 16
"""Fewest tokens of a chunk, so that prompts go on however slow the machine is. Steps with fewer are
not learned from, as they tell little about what a token costs."""
FIRST = 64
"""Tokens of a chunk before anything was measured."""
MULTIPLE = 8
"""Chunks are whole multiples of this, which fills the tiles of products."""
WEIGHT = 0.5
"""Weight of the newest step in averages."""


class Pace:
    """Chooses the size of chunks so that each delays a step by about `delay` seconds.

    A token of a prompt costs what a step with prompts took longer than a step of equally many texts
    without. Until such a step was seen, the whole step counts, so chunks are small rather than
    large. Nothing here reads a clock."""

    def __init__(self, delay: float = DELAY, *, most: int) -> None:
        """`most` is the largest chunk in tokens; `LEAST` where it is less. Raises ContextError for
        a delay that is not between 1 ms and 60 s."""
        if not 0.001 <= delay <= 60:
            raise ContextError(
                f"prompt_delay is {delay:g}; it is the seconds that prompts may delay a step, "
                "0.001 to 60"
            )
        self.delay = delay
        self._most = max(most, LEAST)
        self._cost: float | None = None
        """Seconds of a token of a prompt."""
        self._writing: dict[int, float] = {}
        """Seconds of a step without prompts, by its number of tokens: one of each text, and the
        tokens of drafts."""

    @property
    def cost(self) -> float | None:
        """Seconds of a token of a prompt; None: not known yet."""
        return self._cost

    @property
    def chunk(self) -> int:
        """The most tokens of prompts in the next step in which texts are written too."""
        if self._cost is None:
            return min(FIRST, self._most)
        n = self.delay / max(self._cost, 1e-9)
        if n >= self._most:
            return self._most
        return max(int(n) // MULTIPLE * MULTIPLE, LEAST)

    def learn(self, n_prompt: int, n_writing: int, seconds: float) -> None:
        """Learns from a step of `n_prompt` tokens of prompts and `n_writing` of texts that were
        being written, which took `seconds`."""
        if not n_prompt:
            self._writing[n_writing] = _average(self._writing.get(n_writing), seconds)
        elif n_prompt >= LEAST:
            extra = max(seconds - self._without_prompts(n_writing), 0.0)
            self._cost = _average(self._cost, extra / n_prompt)

    def _without_prompts(self, n_writing: int) -> float:
        """Seconds of a step of so many tokens, or of the closest number not above it."""
        known = [n for n in self._writing if n <= n_writing]
        return self._writing[max(known)] if known else 0.0


def _average(old: float | None, new: float) -> float:
    return new if old is None else old + WEIGHT * (new - old)
