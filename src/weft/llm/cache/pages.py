"""Which free cells the next tokens of a sequence take.

The cells of a sequence go up, and the number of each is one more than that of the one before it,
modulo STRIP. Attention adds up in the order of cells and keeps sums modulo STRIP apart
(`native/src/kernels/attention/attention_sums.h`): so a text is the same to the last bit wherever
its cells are. Whole free pages come first, since attention skips what is hidden by the page.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["PAGE", "STRIP", "TIDY", "cells_from", "moved"]

PAGE = 64
"""Cells that attention looks at together."""
STRIP = 16
"""Cells that sums are kept apart for."""
TIDY = ((PAGE, STRIP), (STRIP,))
"""Pieces that leave the strips of others alone."""


def cells_from(
    free: NDArray[np.bool_], start: int, n: int, sizes: tuple[int, ...]
) -> NDArray[np.int64] | None:
    """`n` free cells in order, from `start` on, the first with the number `start` modulo STRIP and
    each other with the next one; None where there are too few.

    `sizes`: of the pieces that must be free to go on in one, those to be tried first first."""
    found, cell = [np.empty(0, np.int64)], start
    while n:
        if cell % PAGE == 0 or cell >= len(free) or not free[cell]:
            cell = next((c for size in sizes if (c := _start(free, cell, size)) >= 0), -1)
            if cell < 0:
                return None
        end = min(cell + n, (cell // PAGE + 1) * PAGE, len(free))
        run = free[cell:end]
        length = len(run) if run.all() else int(run.argmin())
        found.append(np.arange(cell, cell + length))
        n -= length
        cell += length
    return np.concatenate(found)


def _start(free: NDArray[np.bool_], cell: int, size: int) -> int:
    """The first cell from `cell` on with its number modulo STRIP, in a free piece; -1: none."""
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
    """Other cells for `own`, the last ones of a sequence and its alone, and `n` cells behind them.
    All are behind cell `floor`, and numbers modulo STRIP stay. None where that cannot be."""
    free = free.copy()
    free[own] = True
    cuts = np.flatnonzero(np.diff(own) != 1) + 1
    found, last = [], floor
    for run in np.split(own, cuts):
        at = cells_from(free, last + 1 + (int(run[0]) - last - 1) % STRIP, len(run), sizes)
        if at is None:
            return None
        found.append(at)
        last = int(at[-1])
    after = cells_from(free, last + 1, n, sizes)
    return None if after is None else (np.concatenate(found), after)
