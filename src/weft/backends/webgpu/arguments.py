"""The arguments of launches: words in a few buffers, of which each launch has a slot.

A kernel finds its slot by a dynamic offset. Words are kept on the host and sent when work starts,
with one write for all that changed in a buffer."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import DeviceError

WINDOW = 4096
"""Bytes that a kernel can read from the beginning of its slot; the largest slot."""
_ALIGNMENT = 256
"""Bytes between slots: what every device allows."""
_SIZE = 1 << 20
"""Bytes of slots in a buffer."""


class _Block:
    """A buffer with its words on the host."""

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer
        self.words = np.zeros(_SIZE, np.uint8)
        self.used = 0
        self.changed: tuple[int, int] | None = None

    def put(self, start: int, data: bytes) -> None:
        end = start + len(data)
        self.words[start:end] = np.frombuffer(data, np.uint8)
        low, high = self.changed or (start, end)
        self.changed = min(low, start), max(high, end)


_Place = tuple[int, int, int]
"""The number of a block, where a slot begins in it, and the slot's bytes."""


class Slot:
    """The words of a launch, free for others once nothing refers to it and the work that was
    enqueued until then has started."""

    __slots__ = ("_given_back", "_place", "buffer", "offset")

    def __init__(self, buffer: Any, place: _Place, given_back: deque[_Place]) -> None:
        self.buffer = buffer
        self.offset = place[1]
        self._place = place
        self._given_back = given_back

    def __del__(self) -> None:
        self._given_back.append(self._place)  # a deque, since any thread may do this at any time


class Arguments:
    """The arguments of all launches of a device. Callers hold the device's lock."""

    def __init__(self, create: Callable[[int], Any]) -> None:
        """`create` makes a buffer of a number of bytes."""
        self._create = create
        self._blocks: list[_Block] = []
        self._free: defaultdict[int, list[_Place]] = defaultdict(list)  # heaps, by bytes
        self._given_back: deque[_Place] = deque()

    def slot(self, words: bytes) -> Slot:
        """A slot that holds these bytes, a multiple of 4, when the next work starts. Raises
        DeviceError for more than `WINDOW`."""
        if len(words) > WINDOW:
            raise DeviceError(f"a kernel has {len(words)} bytes of arguments; {WINDOW} are allowed")
        nbytes = -(-len(words) // _ALIGNMENT) * _ALIGNMENT
        free = self._free[nbytes]
        place = heappop(free) if free else self._new(nbytes)
        block = self._blocks[place[0]]
        block.put(place[1], words)
        return Slot(block.buffer, place, self._given_back)

    def _new(self, nbytes: int) -> _Place:
        if not self._blocks or self._blocks[-1].used + nbytes > _SIZE:
            self._blocks.append(_Block(self._create(_SIZE + WINDOW)))  # the last slot has a window
        block = self._blocks[-1]
        block.used += nbytes
        return len(self._blocks) - 1, block.used - nbytes, nbytes

    def changed(self) -> Iterator[tuple[Any, int, NDArray[np.uint8]]]:
        """The writes that come before work starts: buffer, offset and bytes."""
        for block in self._blocks:
            if block.changed is not None:
                low, high = block.changed
                block.changed = None
                yield block.buffer, low, block.words[low:high]

    def started(self) -> None:
        """All enqueued work has started, so that slots given back may hold other words."""
        while self._given_back:
            place = self._given_back.popleft()
            heappush(self._free[place[2]], place)
