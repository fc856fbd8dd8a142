"""One step's batch: a token of every text that is being written, and a share of every prompt.

Writers come first, so that a long prompt never stops them. What is left of the batch is shared out
evenly among prompts, and what a short one leaves over goes to the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from weft.llm.engine.slots import Slot

__all__ = ["Step", "pack", "share"]

SCORED = 64
"""Most tokens of a prompt in a step where it wants logits of each: 32 MiB with 128k tokens."""


@dataclass(slots=True)
class Step:
    """The arguments of `Context.decode`, and whose rows come back."""

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    seqs: list[tuple[int]] = field(default_factory=list)
    outputs: list[bool] = field(default_factory=list)
    parts: list[tuple[Slot, int]] = field(default_factory=list)
    """Slots and how many of their tokens are computed, in order."""
    rows: list[tuple[Slot, int]] = field(default_factory=list)
    """Slot of each row of logits, and the index of the token that it is about."""

    def add(self, slot: Slot, n: int) -> None:
        """Takes the next `n` tokens of a slot; the last one left wants logits, or all do."""
        start, end = slot.n_done, slot.n_done + n
        self.tokens += slot.tokens[start:end]
        self.positions += range(start, end)
        self.seqs += [(slot.seq,)] * n
        wanted = [slot.scores or i == len(slot.tokens) for i in range(start + 1, end + 1)]
        self.outputs += wanted
        self.parts.append((slot, n))
        self.rows += [(slot, start + 1 + i) for i in range(n) if wanted[i]]


def pack(slots: Sequence[Slot], most: int, most_beside: int) -> Step:
    """The next step of running slots, at most `most` tokens; `most_beside` of prompts where texts
    are being written."""
    step = Step()
    writing = [slot for slot in slots if slot.n_left == 1]
    for slot in writing[:most]:
        step.add(slot, 1)
    prompts = [slot for slot in slots if slot.n_left > 1]
    left = most - len(step.tokens)
    left = min(left, most_beside) if writing else left
    wants = [min(s.n_left, SCORED) if s.scores else s.n_left for s in prompts]
    for slot, n in zip(prompts, share(wants, left), strict=True):
        if n:
            step.add(slot, n)
    return step


def share(wants: Sequence[int], total: int) -> list[int]:
    """Shares `total` out evenly, nobody more than it wants; those that want most get what cannot
    be split."""
    given = [0] * len(wants)
    order = sorted(range(len(wants)), key=lambda i: wants[i])
    for at, i in enumerate(order):
        given[i] = min(wants[i], total // (len(order) - at))
        total -= given[i]
    return given
