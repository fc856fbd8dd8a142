"""Packing: items with a lifetime and a size into as few bytes as possible.

Dynamic storage allocation is NP-hard. This packer puts an item at the lowest offset that no item
living at the same time covers; the plan depends on the order of items. `ORDERS` are those of the
literature; `search.py` looks for better ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from weft.allocate.lifetime import Item
from weft.native import _native
from weft.records import dataclass

_NO_LIMIT = 2**63 - 1
# The number of pairs of items that live at the same time above which sorted arrays are faster than
# lists of neighbours.
_PAIRS = 200_000
_PAIRS_PER_ITEM = 50


@dataclass(slots=True)
class Packing:
    """The chunk and the offset of each item; the size of each chunk and the limit to which it may
    grow; the items that end above a bound, and by how many bytes, summed."""

    offsets: list[int]
    chunk_of: list[int]
    chunks: list[int]
    limits: list[int]
    above: list[int]
    excess: int

    @property
    def size(self) -> int:
        """Bytes of all chunks."""
        return sum(self.chunks)


class Problem:
    """The items of one arena, and for each the items that live at the same time."""

    __slots__ = ("ends", "limit", "n_pairs", "neighbours", "packer", "sizes", "starts")

    def __init__(self, items: Sequence[Item], limit: int | None) -> None:
        """`limit` is the size of the largest chunk in bytes. `neighbours` and `packer` are None if
        there are very many."""
        self.starts = [item.start for item in items]
        self.ends = [item.end for item in items]
        self.sizes = [item.size for item in items]
        self.limit = limit
        self.n_pairs = 0
        self.neighbours: list[list[int]] | None = self._pairs()
        self.packer: _native.Packer | None = None
        if self.neighbours is not None:
            bytes = _NO_LIMIT if limit is None else limit
            self.packer = _native.Packer(self.sizes, self.neighbours, bytes)

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
    problem: Problem,
    order: Sequence[int],
    bound: int = _NO_LIMIT,
    start: Packing | None = None,
    first: int = 0,
) -> Packing:
    """Puts the items one after the other at the lowest free offset.

    With `start`, the items `order[:first]` keep their places in it. Where the size of a chunk is
    limited, an item goes to the chunk that grows least."""
    if problem.packer is None:
        return _pack_dense(problem, order)
    offsets, chunk_of = (start.offsets, start.chunk_of) if start is not None else ([], [])
    return Packing(*problem.packer.pack(order, first, bound, offsets, chunk_of))


def _pack_dense(problem: Problem, order: Sequence[int]) -> Packing:
    """`pack` for very many items that live at the same time.

    It keeps arrays sorted by offset instead of lists of neighbours. An item goes to the first chunk
    that has room."""
    n = len(order)
    plan = Packing([0] * n, [0] * n, [], [], [], 0)
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
