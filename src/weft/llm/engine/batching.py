"""One step's batch: a token of every text that is being written, and a share of every prompt.

Writers come first, so that a long prompt never stops them. What is left of the batch is shared out
evenly among prompts, and what a short one leaves over goes to the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from weft.llm.engine.slots import Slot

__all__ = ["Batch", "pack", "share"]

SCORED = 64
"""Most tokens of a prompt in a step where it wants logits of each: 32 MiB with 128k tokens."""


@dataclass(slots=True)
class Batch:
    """The arguments of `Context.decode`, and whose rows come back."""

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    seqs: list[tuple[int]] = field(default_factory=list)
    outputs: list[bool] = field(default_factory=list)
    parts: list[tuple[Slot, int]] = field(default_factory=list)
    """Slots and how many of their tokens are computed, in order."""
    prompts: list[Slot] = field(default_factory=list)
    """Those of them that read their prompts."""
    n_prompt: int = 0
    """Tokens of prompts."""
    rows: list[tuple[Slot, int]] = field(default_factory=list)
    """Slot of each row of logits, and the index of the token that it is about."""

    def add(self, slot: Slot, n: int) -> None:
        """Takes the next `n` tokens of a slot; the last one left wants logits, or all do."""
        start, end, last = slot.n_done, slot.n_done + n, len(slot.tokens)
        self.tokens += slot.tokens[start:end]
        self.positions += range(start, end)
        self.seqs += [(slot.seq,)] * n
        self.parts.append((slot, n))
        if slot.text is not None and not slot.text.draft.n_drawn:
            self.prompts.append(slot)
            self.n_prompt += n
        if slot.scores:
            self.outputs += [True] * n
            self.rows += [(slot, i) for i in range(start + 1, end + 1)]
            return
        self.outputs += [False] * (n - 1) + [end == last]
        if end == last:
            self.rows.append((slot, end))


def pack(slots: Sequence[Slot], most: int, most_beside: int) -> Batch:
    """The next batch of running slots, at most `most` tokens; `most_beside` of prompts where texts
    are being written."""
    batch = Batch()
    writing = [slot for slot in slots if slot.n_left == 1]
    for slot in writing[:most]:
        batch.add(slot, 1)
    if len(writing) == len(slots):
        return batch
    prompts = [slot for slot in slots if slot.n_left > 1]
    left = most - len(batch.tokens)
    left = min(left, most_beside) if writing else left
    wants = [min(s.n_left, SCORED) if s.scores else s.n_left for s in prompts]
    for slot, n in zip(prompts, share(wants, left), strict=True):
        if n:
            batch.add(slot, n)
    return batch


def share(wants: Sequence[int], total: int) -> list[int]:
    """Shares `total` out evenly, nobody more than it wants; those that want most get what cannot
    be split."""
    given = [0] * len(wants)
    order = sorted(range(len(wants)), key=lambda i: wants[i])
    for at, i in enumerate(order):
        given[i] = min(wants[i], total // (len(order) - at))
        total -= given[i]
    return given
