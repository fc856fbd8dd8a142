"""Cells of sliding-window layers: as many as can be seen, and those of one ubatch.

A layer that looks back `window` positions has no use for older ones. Its cells are a table of their
own, much smaller than the context; the oldest give way when room is needed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weft.errors import ContextError
from weft.llm.cache.cells import Cells
from weft.llm.config import ModelConfig

__all__ = ["WindowCells", "window_size"]


def window_size(config: ModelConfig, n_ctx: int, n_seq_max: int, n_ubatch: int) -> int:
    """Cells that layers with a sliding window need, 0 where they need as many as the others (or
    there are none)."""
    cells = config.window * n_seq_max + n_ubatch
    return cells if config.window and cells < n_ctx else 0


class WindowCells(Cells):
    """A table in which cells that no next token sees make room for new ones."""

    def __init__(self, size: int, n_seq_max: int, window: int) -> None:
        super().__init__(size, n_seq_max)
        self.window = window

    def seen(self) -> NDArray[np.bool_]:
        """Which cells the next token of one of their sequences would see."""
        last = np.where(self.members, self.pos, -1).max(axis=1)
        recent = self.pos > (last + 1 - self.window)[:, None]
        found: NDArray[np.bool_] = (self.members & recent).any(axis=0)
        return found

    def in_the_way(self, n: int) -> NDArray[np.int64]:
        """The cells to free so that `n` are free, the oldest; raises ContextError when those that
        are seen take too much room."""
        free = self.size - self.n_used
        if free >= n:
            return np.empty(0, np.int64)
        old = np.flatnonzero((self.pos >= 0) & ~self.seen())
        if free + len(old) < n:
            raise ContextError(
                f"{n} tokens do not fit into the {self.size} cells of the sliding window; decode "
                "fewer at once, or create the context with swa_full=True"
            )
        oldest = np.argsort(self.pos[old], kind="stable")[: n - free]
        return old[oldest]

    def has_all(self, full: Cells, seq: int, position: int) -> bool:
        """Whether everything that a token of `seq` at `position`, or behind it, sees of what
        `full` has is still here."""
        low = position - self.window
        here, there = (c.members[seq] & (c.pos > low) for c in (self, full))
        return bool(here.sum() == there.sum())
