"""Packing: items with a lifetime and a size into as few bytes as possible.

Dynamic storage allocation is NP-hard. Here an item is put at the lowest offset where no item that
lives at the same time is; which plan comes out depends on the order. `ORDERS` are those of the
literature; `search.py` looks for better ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from weft.allocate.lifetime import Item

__all__ = ["ORDERS", "Packing", "Problem", "pack", "pack_dense"]


@dataclass(slots=True)
class Packing:
    """Per item, its chunk and the offset in it; per chunk, its size and how far it may grow."""

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

    __slots__ = ("ends", "limit", "neighbours", "sizes", "starts")

    def __init__(self, items: Sequence[Item], limit: int | None, max_pairs: int) -> None:
        """`limit`: largest chunk. Without `neighbours` if there are more than `max_pairs`."""
        self.starts = [item.start for item in items]
        self.ends = [item.end for item in items]
        self.sizes = [item.size for item in items]
        self.limit = limit
        self.neighbours = self._pairs(max_pairs)

    def _pairs(self, max_pairs: int) -> list[list[int]]:
        ends = self.ends
        found: list[list[int]] = [[] for _ in ends]
        live: list[int] = []
        n_pairs = 0
        for i in self.order("start"):
            start = self.starts[i]
            live = [j for j in live if ends[j] >= start]
            n_pairs += len(live)
            if n_pairs > max_pairs:
                return []
            mine = found[i]
            for j in live:
                mine.append(j)
                found[j].append(i)
            live.append(i)
        return found

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

    With `start`, the items `order[:first]` stay where they are in it. Where the size of a chunk is
    limited, an item goes to the chunk that grows least."""
    n = len(order)
    if start is None:
        plan = Packing([-1] * n, [0] * n, [], [])
    else:
        plan = Packing(list(start.offsets), list(start.chunk_of), [], [])
        for i in order[first:]:
            plan.offsets[i] = -1
    if problem.limit is None:
        _pack_one_chunk(problem, order[first:], plan)
    else:
        _pack_chunks(problem, order, first, plan)
    return plan


def _pack_one_chunk(problem: Problem, order: Sequence[int], plan: Packing) -> None:
    offsets, sizes, neighbours = plan.offsets, problem.sizes, problem.neighbours
    for i in order:
        size = sizes[i]
        free = 0
        taken = [(offsets[j], sizes[j]) for j in neighbours[i] if offsets[j] >= 0]
        taken.sort()
        for low, length in taken:
            if low - free >= size:
                break
            if low + length > free:
                free = low + length
        offsets[i] = free
    tops = map(int.__add__, offsets, sizes)
    plan.chunks[:] = [max(tops)] if offsets else []


def _pack_chunks(problem: Problem, order: Sequence[int], first: int, plan: Packing) -> None:
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
        taken: list[list[tuple[int, int]]] = [[] for _ in chunks]
        for j in problem.neighbours[i]:
            if offsets[j] >= 0:
                taken[chunk_of[j]].append((offsets[j], offsets[j] + sizes[j]))
        best, least = -1, 0
        for c, ranges in enumerate(taken):
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


def pack_dense(problem: Problem, order: Sequence[int]) -> Packing:
    """The same for very many items that live at the same time, in one chunk: with arrays that are
    kept sorted by offset, instead of lists of neighbours."""
    n = len(order)
    # rows: start, end, offset, end of memory
    placed = np.empty((4, n), np.int64)
    offsets = [0] * n
    for k, i in enumerate(order):
        start, end, size = problem.starts[i], problem.ends[i], problem.sizes[i]
        known = placed[:, :k]
        live = (known[0] <= end) & (known[1] >= start)
        low, high = known[2, live], known[3, live]
        free = np.concatenate(([0], np.maximum.accumulate(high)))
        gaps = np.flatnonzero(low - free[:-1] >= size)
        offset = int(free[gaps[0]] if gaps.size else free[-1])
        offsets[i] = offset
        at = int(np.searchsorted(known[2], offset))
        placed[:, at + 1 : k + 1] = placed[:, at:k].copy()
        placed[:, at] = (start, end, offset, offset + size)
    tops = [o + s for o, s in zip(offsets, problem.sizes, strict=True)]
    return Packing(offsets, [0] * n, [max(tops)] if tops else [], [])
