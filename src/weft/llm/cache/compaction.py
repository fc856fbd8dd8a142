"""`compact` moves the cells of a cache together, so that attention reads fewer of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weft.llm.cache.cells import Cells
from weft.llm.cache.kv_cache import KVCache
from weft.llm.cache.pages import PAGE, STRIP

_AT_ONCE = 4096
"""Number of cells whose rows are copied at once, which bounds the host memory needed."""


def moves(cells: Cells, unit: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The cells that move when free pieces of `unit` cells are dropped, and their targets.

    The cells are in ascending order and every target is lower, so moving them in order overwrites
    none that has yet to move."""
    used = np.flatnonzero(cells.pos[: cells.n_seen] >= 0)
    is_kept = np.zeros(-(-cells.n_seen // unit), np.bool_)
    is_kept[used // unit] = True
    place = np.cumsum(is_kept) - 1
    target = place[used // unit] * unit + used % unit
    moved = target != used
    return used[moved], target[moved]


def pays(cells: Cells) -> bool:
    """True if compaction would at least halve the cells that attention reads.

    It then moves at most as many rows, once, as it saves every later token."""
    seen = cells.n_seen
    if seen <= 2 * PAGE:
        return False
    strips = np.zeros(-(-seen // STRIP), np.bool_)
    strips[np.flatnonzero(cells.pos[:seen] >= 0) // STRIP] = True
    return 2 * STRIP * int(strips.sum()) <= seen


def compact(cache: KVCache, unit: int) -> int:
    """Removes free pieces of `unit` cells (PAGE or STRIP) between used ones, so that attention
    reads fewer cells. Returns the number of moved cells.

        before   |aaaa|....|....|bbcc|....|c...|      pieces of cells, some of them free
        after    |aaaa|bbcc|c...|                     the other pieces, in their order

    Each cell keeps its place in its piece. So the cells of a sequence stay in ascending order with
    the same numbers modulo STRIP, and attention adds up in the same order (see
    `weft.llm.cache.pages`). Shared cells stay shared. Keys and values move with their cells. Ctrl-C
    takes effect afterwards. If a device fails, the cache is emptied."""
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
