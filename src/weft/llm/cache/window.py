"""The cells of sliding-window layers: enough for the window of each sequence and for one ubatch.

Such a layer sees only the last `window` positions. Its cells have a table of their own, much
smaller than the context, in which new tokens take the place of the oldest ones.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weft.errors import ContextFull
from weft.llm.cache.cells import Cells
from weft.llm.config import ModelConfig

__all__ = ["WindowCells", "window_size"]


def window_size(config: ModelConfig, n_ctx: int, n_seq_max: int, n_ubatch: int) -> int:
    """The number of cells that sliding-window layers need; 0 if the model has no such layers or
    they need as many cells as the others, as those of texts that are computed at once do."""
    cells = config.window * n_seq_max + n_ubatch
    return cells if config.window and config.causal and cells < n_ctx else 0


class WindowCells(Cells):
    """A table of cells that frees cells when no next token sees them and room is needed."""

    def __init__(self, size: int, n_seq_max: int, window: int) -> None:
        super().__init__(size, n_seq_max)
        self.window = window

    def seen(self) -> NDArray[np.bool_]:
        """Marks the cells [size] that the next token of one of their sequences would see."""
        last = np.where(self.members, self.pos, -1).max(axis=1)
        recent = self.pos > (last + 1 - self.window)[:, None]
        seen: NDArray[np.bool_] = (self.members & recent).any(axis=0)
        return seen

    def in_the_way(self, n: int) -> NDArray[np.int64]:
        """The oldest cells, as many as must be freed so that `n` cells are free. Raises
        ContextFull if too few cells are free or no longer seen."""
        free = self.size - self.n_used
        if free >= n:
            return np.empty(0, np.int64)
        old = np.flatnonzero((self.pos >= 0) & ~self.seen())
        if free + len(old) < n:
            raise ContextFull(
                f"{n} tokens do not fit into the {self.size} cells of the sliding window; decode "
                "fewer at once, or create the context with `swa_full` on"
            )
        oldest = np.argsort(self.pos[old], kind="stable")[: n - free]
        return old[oldest]

    def has_all(self, full: Cells, seq: int, position: int) -> bool:
        """True if this table still has all cells of `full` that tokens of `seq` see from `position`
        on."""
        low = position - self.window
        here, there = (c.members[seq] & (c.pos > low) for c in (self, full))
        return bool(here.sum() == there.sum())
