"""Packing: items with a lifetime and a size into as few bytes as possible.

Dynamic storage allocation is NP-hard. This packer puts an item at the lowest offset that no item
living at the same time covers; the plan depends on the order of items. `ORDERS` are those of the
literature; `search.py` looks for better ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from weft.allocate.lifetime import Item
from weft.records import dataclass

__all__ = ["ORDERS", "Packing", "Problem", "pack"]

_NO_LIMIT = 2**63 - 1
# The number of pairs of items that live at the same time above which sorted arrays are faster than
# lists of neighbours.
_PAIRS = 200_000
_PAIRS_PER_ITEM = 50


@dataclass(slots=True)
class Packing:
    """The chunk and the offset of each item; the size of each chunk and the limit to which it may
    grow."""

    offsets: list[int]
    chunk_of: list[int]
    chunks: list[int]
    limits: list[int]

    @property
    def size(self) -> int:
        """Bytes of all chunks."""
        return sum(self.chunks)


class Problem:
    """The items of one arena, and for each the items that live at the same time."""

    __slots__ = ("ends", "limit", "n_pairs", "neighbours", "sizes", "starts")

    def __init__(self, items: Sequence[Item], limit: int | None) -> None:
        """`limit` is the size of the largest chunk in bytes. `neighbours` is None if there are very
        many."""
        self.starts = [item.start for item in items]
        self.ends = [item.end for item in items]
        self.sizes = [item.size for item in items]
        self.limit = limit
        self.n_pairs = 0
        self.neighbours: list[list[int]] | None = self._pairs()

    def _pairs(self) -> list[list[int]] | None:
        ends = self.ends
        most = _PAIRS + _PAIRS_PER_ITEM * len(ends)
        neighbours: list[list[int]] = [[] for _ in ends]
        live: list[int] = []
        for i in self.order("start"):
            start = self.starts[i]
            live = [j for j in live if ends[j] >= start]
            self.n_pairs += len(live)
            if self.n_pairs > most:
                return None
            own = neighbours[i]
            for j in live:
                own.append(j)
                neighbours[j].append(i)
            live.append(i)
        return neighbours

    def order(self, name: str) -> list[int]:
        """The items in one of the `ORDERS`."""
        key = ORDERS[name]
        keys = [key(*item) for item in zip(self.starts, self.ends, self.sizes, strict=True)]
        return sorted(range(len(keys)), key=keys.__getitem__)


ORDERS: dict[str, Callable[[int, int, int], tuple[int, ...]]] = {
    "size": lambda start, end, size: (-size, start - end, start),
    "area": lambda start, end, size: (-size * (end - start + 1), start),
    "length": lambda start, end, size: (start - end, -size),
    "start": lambda start, end, size: (start, -size, -end),
}


def pack(
    problem: Problem, order: Sequence[int], start: Packing | None = None, first: int = 0
) -> Packing:
    """Puts the items one after the other at the lowest free offset.

    With `start`, the items `order[:first]` keep their places in it. Where the size of a chunk is
    limited, an item goes to the chunk that grows least."""
    if problem.neighbours is None:
        return _pack_dense(problem, order)
    n = len(order)
    if start is None:
        plan = Packing([-1] * n, [0] * n, [], [])
    else:
        plan = Packing(list(start.offsets), list(start.chunk_of), [], [])
        for i in order[first:]:
            plan.offsets[i] = -1
    if problem.limit is None:
        _pack_one_chunk(problem.sizes, problem.neighbours, order[first:], plan)
    else:
        _pack_chunks(problem, problem.neighbours, order, first, plan)
    return plan


def _pack_one_chunk(
    sizes: list[int], neighbours: list[list[int]], order: Sequence[int], plan: Packing
) -> None:
    offsets = plan.offsets
    for i in order:
        size = sizes[i]
        free = 0
        occupied = [(offsets[j], sizes[j]) for j in neighbours[i] if offsets[j] >= 0]
        occupied.sort()
        for low, length in occupied:
            if low - free >= size:
                break
            if low + length > free:
                free = low + length
        offsets[i] = free
    tops = map(int.__add__, offsets, sizes)
    plan.chunks[:] = [max(tops)] if offsets else []


def _pack_chunks(
    problem: Problem, neighbours: list[list[int]], order: Sequence[int], first: int, plan: Packing
) -> None:
    offsets, chunk_of, sizes = plan.offsets, plan.chunk_of, problem.sizes
    limit = problem.limit or 0
    chunks, limits = plan.chunks, plan.limits
    for i in order[:first]:
        _open_chunks(chunk_of[i] + 1, chunks, limits, limit)
        top = offsets[i] + sizes[i]
        chunks[chunk_of[i]] = max(chunks[chunk_of[i]], top)
        limits[chunk_of[i]] = max(limits[chunk_of[i]], top)
    for i in order[first:]:
        size = sizes[i]
        occupied: list[list[tuple[int, int]]] = [[] for _ in chunks]
        for j in neighbours[i]:
            if offsets[j] >= 0:
                occupied[chunk_of[j]].append((offsets[j], offsets[j] + sizes[j]))
        best, least = -1, 0
        for c, ranges in enumerate(occupied):
            free = 0
            for low, high in sorted(ranges):
                if low - free >= size:
                    break
                free = max(free, high)
            growth = max(0, free + size - chunks[c])
            if free + size <= limits[c] and (best < 0 or growth < least):
                best, least, offsets[i] = c, growth, free
                if growth == 0:
                    break
        if best < 0:
            best, offsets[i] = len(chunks), 0
            _open_chunks(best + 1, chunks, limits, max(limit, size))
        chunk_of[i] = best
        chunks[best] = max(chunks[best], offsets[i] + size)


def _open_chunks(n: int, chunks: list[int], limits: list[int], limit: int) -> None:
    while len(chunks) < n:
        chunks.append(0)
        limits.append(limit)


def _pack_dense(problem: Problem, order: Sequence[int]) -> Packing:
    """`pack` for very many items that live at the same time.

    It keeps arrays sorted by offset instead of lists of neighbours. An item goes to the first chunk
    that has room."""
    n = len(order)
    plan = Packing([0] * n, [0] * n, [], [])
    # rows: start, end, offset, end of memory, chunk
    placed = np.empty((5, n), np.int64)
    for k, i in enumerate(order):
        size = problem.sizes[i]
        earlier = placed[:, :k]
        live = (earlier[0] <= problem.ends[i]) & (earlier[1] >= problem.starts[i])
        for chunk, limit in enumerate(plan.limits):
            here = live & (earlier[4] == chunk) if len(plan.chunks) > 1 else live
            low, high = earlier[2, here], earlier[3, here]
            free = np.concatenate(([0], np.maximum.accumulate(high)))
            gaps = np.flatnonzero(low - free[:-1] >= size)
            offset = int(free[gaps[0]] if gaps.size else free[-1])
            if offset + size <= limit:
                break
        else:
            chunk, offset = len(plan.chunks), 0
            plan.chunks.append(0)
            plan.limits.append(_NO_LIMIT if problem.limit is None else max(problem.limit, size))
        plan.offsets[i], plan.chunk_of[i] = offset, chunk
        plan.chunks[chunk] = max(plan.chunks[chunk], offset + size)
        at = int(np.searchsorted(earlier[2], offset))
        placed[:, at + 1 : k + 1] = placed[:, at:k].copy()
        placed[:, at] = (problem.starts[i], problem.ends[i], offset, offset + size, chunk)
    return plan
