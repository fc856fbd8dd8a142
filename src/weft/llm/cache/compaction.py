"""Compaction: cells move together, so that attention looks at fewer of them.

    before   |aaaa|....|....|bbcc|....|c...|      pieces of cells, some all free
    after    |aaaa|bbcc|c...|                     the others in their order

Pieces that are free all over go; the others keep their order, and each cell its place in its piece.
So the cells of every sequence still go up, their numbers modulo STRIP as they were, and attention
adds up in the same order (see `weft.llm.cache.pages`); beginnings that sequences share stay shared.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weft.llm.cache.cells import Cells
from weft.llm.cache.kv_cache import KVCache
from weft.llm.cache.pages import PAGE, STRIP

__all__ = ["compact", "moves", "pays"]

_AT_ONCE = 4096
"""Cells whose rows are copied together; so much room of the host is needed."""


def moves(cells: Cells, unit: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Cells that move, ascending, and where to, when pieces of `unit` cells that are free go. No
    cell moves up, so that moving them in order overwrites none that has yet to move."""
    used = np.flatnonzero(cells.pos[: cells.n_seen] >= 0)
    is_kept = np.zeros(-(-cells.n_seen // unit), np.bool_)
    is_kept[used // unit] = True
    place = np.cumsum(is_kept) - 1
    target = place[used // unit] * unit + used % unit
    moved = target != used
    return used[moved], target[moved]


def pays(cells: Cells) -> bool:
    """Whether attention over all cells up to the last would look at less than half as many. Rows
    move once, at most as many as every later token has to read less."""
    seen = cells.n_seen
    if seen <= 2 * PAGE:
        return False
    strips = np.zeros(-(-seen // STRIP), np.bool_)
    strips[np.flatnonzero(cells.pos[:seen] >= 0) // STRIP] = True
    return 2 * STRIP * int(strips.sum()) <= seen


def compact(cache: KVCache, unit: int) -> int:
    """Moves the cells of a cache together, keys and values too, and gives how many moved.

    `unit`: PAGE or STRIP. Ctrl-C waits; if a device fails, the cache is empty."""
    source, target = moves(cache, unit)
    for at in range(0, len(source), _AT_ONCE):
        part = slice(at, at + _AT_ONCE)
        cache.relocate(source[part], target[part])
    n_moved = len(source)
    if cache.window is not None:
        source, target = moves(cache.window, STRIP)
        if len(source):
            cache.relocate_window(source, target)
        n_moved += len(source)
    cache.freed = False
    return n_moved
