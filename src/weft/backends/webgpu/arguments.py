"""The arguments of launches: words in a few buffers, of which each launch has a slot.

A kernel finds its slot by a dynamic offset. Words are kept on the host and sent when work starts,
with one write for all that changed in a buffer."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from weft.errors import DeviceError

WINDOW = 4096
"""Bytes that a kernel can read from the beginning of its slot; the largest slot."""
_SIZE = 1 << 20
"""Bytes of slots in a buffer."""


class Place(NamedTuple):
    """Bytes of a buffer."""

    block: _Block
    start: int
    end: int


class Slot:
    """The words of a launch, free for others once nothing refers to it and the work that was
    enqueued until then has started."""

    __slots__ = ("_given_back", "offset", "place")

    def __init__(self, place: Place, given_back: deque[Place]) -> None:
        self.place = place
        self.offset = place.start
        self._given_back = given_back

    @property
    def buffer(self) -> Any:
        """The buffer that it is in."""
        return self.place.block.buffer

    def __del__(self) -> None:
        self._given_back.append(self.place)  # a deque, since any thread may do this at any time


class _Block:
    """A buffer with its words on the host, and its free places in order."""

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer
        self.words = np.zeros(_SIZE, np.uint8)
        self.free: list[tuple[int, int]] = [(0, _SIZE)]
        self.changed: tuple[int, int] | None = None

    def take(self, nbytes: int) -> int | None:
        """The beginning of a free place, the first that is large enough."""
        for i, (start, end) in enumerate(self.free):
            if end - start >= nbytes:
                self.free[i : i + 1] = [(start + nbytes, end)] if end - start > nbytes else []
                return start
        return None

    def give_back(self, start: int, end: int) -> None:
        i = bisect_left(self.free, (start, end))
        if i < len(self.free) and self.free[i][0] == end:
            end = self.free.pop(i)[1]
        if i and self.free[i - 1][1] == start:
            i -= 1
            start = self.free.pop(i)[0]
        self.free.insert(i, (start, end))

    def put(self, start: int, data: bytes) -> None:
        end = start + len(data)
        self.words[start:end] = np.frombuffer(data, np.uint8)
        low, high = self.changed or (start, end)
        self.changed = min(low, start), max(high, end)


class Arguments:
    """The arguments of all launches of a device. Callers hold the device's lock."""

    def __init__(self, create: Callable[[int], Any], alignment: int) -> None:
        """`create` makes a buffer of a number of bytes; slots begin at multiples of
        `alignment`."""
        self._create = create
        self._alignment = alignment
        self._blocks: list[_Block] = []
        self._given_back: deque[Place] = deque()

    def slot(self, words: bytes) -> Slot:
        """A slot that holds these bytes, a multiple of 4, when the next work starts. Raises
        DeviceError for more than `WINDOW`."""
        if len(words) > WINDOW:
            raise DeviceError(f"a kernel has {len(words)} bytes of arguments; {WINDOW} are allowed")
        nbytes = -(-len(words) // self._alignment) * self._alignment
        block, start = self._find(nbytes)
        block.put(start, words)
        return Slot(Place(block, start, start + nbytes), self._given_back)

    def _find(self, nbytes: int) -> tuple[_Block, int]:
        for block in self._blocks:
            start = block.take(nbytes)
            if start is not None:
                return block, start
        block = _Block(self._create(_SIZE + WINDOW))  # the last slot has a window, too
        self._blocks.append(block)
        return block, block.take(nbytes) or 0

    def changed(self) -> Sequence[tuple[Any, int, np.ndarray[Any, np.dtype[np.uint8]]]]:
        """The writes that come before work starts: buffer, offset and bytes."""
        found = []
        for block in self._blocks:
            if block.changed is not None:
                low, high = block.changed
                block.changed = None
                found.append((block.buffer, low, block.words[low:high]))
        return found

    def started(self) -> None:
        """All enqueued work has started, so that slots given back may hold other words."""
        while self._given_back:
            block, start, end = self._given_back.popleft()
            block.give_back(start, end)
