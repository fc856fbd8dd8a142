"""Packing: items with a lifetime and a size into as few bytes as possible.

Dynamic storage allocation is NP-hard; each planner here is an order and a rule where to put the
next item. The orders are those of the literature: by size, by start, by area (size x lifetime).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from weft.allocate.lifetime import Item

__all__ = ["ORDERS", "Packing", "pack"]


@dataclass(frozen=True, slots=True)
class Packing:
    """Per item (chunk, offset), and the size of each chunk."""

    places: list[tuple[int, int]]
    chunks: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes of all chunks."""
        return sum(self.chunks)


ORDERS: dict[str, Callable[[Item], tuple[int, ...]]] = {
    "size": lambda i: (-i.size, i.start - i.end, i.start),
    "start": lambda i: (i.start, -i.size, -i.end),
    "area": lambda i: (-i.size * (i.end - i.start + 1), i.start),
    "length": lambda i: (i.start - i.end, -i.size),
}


def pack(items: Sequence[Item], order: Sequence[int], limit: int | None, best_fit: bool) -> Packing:
    """Puts the items, in `order`, at the lowest free offset (or in the tightest gap).

    `limit`: largest chunk; an item goes to the first chunk that has room for it. A larger item
    gets a chunk of its own size."""
    n = len(items)
    starts, ends = np.empty(n, np.int64), np.empty(n, np.int64)
    offsets, tops = np.empty(n, np.int64), np.empty(n, np.int64)
    owner = np.empty(n, np.int64)
    places: list[tuple[int, int]] = [(0, 0)] * n
    chunks: list[int] = []
    capacity: list[int | None] = []
    for k, index in enumerate(order):
        item = items[index]
        live = (starts[:k] <= item.end) & (ends[:k] >= item.start)
        placed = np.flatnonzero(live)
        at = offsets[placed]
        by_offset = np.argsort(at, kind="stable")
        low, high = at[by_offset].tolist(), tops[placed][by_offset].tolist()
        in_chunk = owner[placed][by_offset].tolist() if len(chunks) > 1 else None
        number = -1
        for c in range(len(chunks)):
            if in_chunk is None:
                taken = list(zip(low, high, strict=True))
            else:
                taken = [(lo, hi) for lo, hi, o in zip(low, high, in_chunk, strict=True) if o == c]
            offset = _gap(taken, item.size, best_fit)
            room = capacity[c]
            if room is None or offset + item.size <= room:
                number = c
                break
        if number < 0:
            number, offset = len(chunks), 0
            chunks.append(0)
            capacity.append(None if limit is None else max(limit, item.size))
        chunks[number] = max(chunks[number], offset + item.size)
        starts[k], ends[k] = item.start, item.end
        offsets[k], tops[k], owner[k] = offset, offset + item.size, number
        places[index] = (number, offset)
    return Packing(places, tuple(chunks))


def _gap(taken: list[tuple[int, int]], size: int, best_fit: bool) -> int:
    """Offset of the lowest (or the smallest) gap of at least `size` between the ranges `taken`,
    which are sorted by their start; else their end."""
    free = 0
    best, best_size = -1, 0
    for low, high in taken:
        gap = low - free
        if gap >= size and (best < 0 or gap < best_size):
            if not best_fit:
                return free
            best, best_size = free, gap
        if high > free:
            free = high
    return free if best < 0 else best
