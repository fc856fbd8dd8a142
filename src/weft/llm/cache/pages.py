"""Chooses the free cells for the next tokens of a sequence.

The cells of a sequence are in ascending order, and modulo STRIP each number is one more than that
of the cell before it. Attention adds up in the order of cells and has a sum for each number modulo
STRIP (`native/src/kernels/attention/attention_sums.h`), so a text is the same to the last bit in
whatever cells it is. Free pages are used first, because attention skips pages that are masked.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["PAGE", "STRIP", "TIDY", "cells_from", "moved"]

PAGE = 64
"""Number of cells in a page; attention skips a page whose cells are all masked."""
STRIP = 16
"""Number of cells in a strip, and of the sums that attention has."""
TIDY = ((PAGE, STRIP), (STRIP,))
"""Sizes of pieces, in the order to try, that leave alone strips with cells of other sequences."""


def cells_from(
    free: NDArray[np.bool_], start: int, n: int, sizes: tuple[int, ...]
) -> NDArray[np.int64] | None:
    """Chooses `n` free cells in ascending order, none below `start`. The first is congruent to
    `start` modulo STRIP, and each other one to its predecessor plus one. None: there are too few.

    Where cells are not consecutive, they go on in a free piece of one of the `sizes`, in the order
    in which these are to be tried."""
    runs, cell = [np.empty(0, np.int64)], start
    while n:
        if cell % PAGE == 0 or cell >= len(free) or not free[cell]:
            cell = next((c for size in sizes if (c := _start(free, cell, size)) >= 0), -1)
            if cell < 0:
                return None
        end = min(cell + n, (cell // PAGE + 1) * PAGE, len(free))
        run = free[cell:end]
        length = len(run) if run.all() else int(run.argmin())
        runs.append(np.arange(cell, cell + length))
        n -= length
        cell += length
    return np.concatenate(runs)


def _start(free: NDArray[np.bool_], cell: int, size: int) -> int:
    """The first cell from `cell` on that is congruent to it modulo STRIP and in a free piece of
    `size` cells; -1: there is none."""
    if size == 1:
        alone = free[cell::STRIP]
        return cell + int(alone.argmax()) * STRIP if alone.any() else -1
    first = -(-cell // size)
    whole = free[first * size : len(free) // size * size].reshape(-1, size).all(axis=1)
    return (first + int(whole.argmax())) * size + cell % STRIP if whole.any() else -1


def moved(
    free: NDArray[np.bool_],
    own: NDArray[np.int64],
    floor: int,
    n: int,
    sizes: tuple[int, ...],
) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Chooses new cells for `own`, the last cells of a sequence, which no other one has, and `n`
    free cells behind them.

    All are behind the cell `floor`, and each is congruent to its old cell modulo STRIP. None: there
    are no such cells."""
    free = free.copy()
    free[own] = True
    cuts = np.flatnonzero(np.diff(own) != 1) + 1
    runs, last = [], floor
    for run in np.split(own, cuts):
        at = cells_from(free, last + 1 + (int(run[0]) - last - 1) % STRIP, len(run), sizes)
        if at is None:
            return None
        runs.append(at)
        last = int(at[-1])
    after = cells_from(free, last + 1, n, sizes)
    return None if after is None else (np.concatenate(runs), after)
