"""Pinned memory through which bytes go between the host and a device."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from threading import RLock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.backends.cuda.calls import COPIES, KERNELS, Calls

_SLOT = 512 << 10
_SLOTS = 16
"""Copies go through pieces of half a MiB, of which there are 16."""
_AT_ONCE = 8
"""Pieces that are fetched before the host waits."""
LATER = _SLOT
"""The most bytes of an array that is fetched later."""
_ALIGNED = 64

Bytes = NDArray[np.uint8]


class _Filling:
    """The piece that copies of a lane to the device are put into, one behind the other."""

    __slots__ = ("at", "slot")

    def __init__(self) -> None:
        self.slot = -1
        self.at = _SLOT


class _Coming:
    """Copies from the device that are under way."""

    __slots__ = ("_staging", "event", "parts", "slots")

    def __init__(self, staging: Staging, slots: list[int], parts: list[Bytes]) -> None:
        self._staging = staging
        self.slots = slots
        self.parts = parts
        self.event: Any = None

    def take(self) -> None:
        """Waits for them and fills the arrays."""
        if self.slots:
            self._staging.take(self)
            self.__del__()

    def __del__(self) -> None:
        slots, self.slots = self.slots, []
        self._staging.give_back(slots, self.event)


class Staging:
    """Pieces of pinned memory, each used again once the copies from it are done.

    Small copies share a piece, so that one event stands for all of them."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._lock = RLock()  # an object that is deleted meanwhile gives pieces back
        self._pieces: list[Bytes] = []
        self._busy: deque[tuple[int, Any]] = deque()
        """Pieces with the event behind the copies from them; None: they are over."""
        self._filling = {lane: _Filling() for lane in (KERNELS, COPIES)}

    def send(self, address: int, data: Bytes, lane: int) -> None:
        """Enqueues a copy of `data`, which may change once this returns."""
        with self._lock:
            filling = self._filling[lane]
            for start in range(0, data.nbytes, _SLOT):
                piece = data[start : start + _SLOT]
                if filling.at + piece.nbytes > _SLOT:
                    self._next(filling, lane)
                place = self._pieces[filling.slot][filling.at : filling.at + piece.nbytes]
                filling.at += -(-piece.nbytes // _ALIGNED) * _ALIGNED
                place[:] = piece
                self._calls.send(address + start, place, lane)

    def fetch(self, wanted: Sequence[tuple[int, Bytes]], lane: int) -> None:
        """Fills arrays from addresses, once the lane has come so far."""
        parts = [
            (address + start, out[start : start + _SLOT])
            for address, out in wanted
            for start in range(0, out.nbytes, _SLOT)
        ]
        for first in range(0, len(parts), _AT_ONCE):
            self._begin(parts[first : first + _AT_ONCE], lane).take()

    def fetch_later(self, wanted: Sequence[tuple[int, Bytes]], lane: int) -> Callable[[], None]:
        """Enqueues what `fetch` does, of arrays of at most half a MiB: the function that it returns
        waits and fills them."""
        return self._begin(wanted, lane).take

    def _begin(self, parts: Sequence[tuple[int, Bytes]], lane: int) -> _Coming:
        with self._lock:
            slots = [self._free_slot() for _ in parts]
        coming = _Coming(self, slots, [part for _, part in parts])
        for slot, (address, part) in zip(slots, parts, strict=True):
            self._calls.fetch(address, self._pieces[slot][: part.nbytes], lane)
        coming.event = self._calls.event(False, lane)
        return coming

    def take(self, coming: _Coming) -> None:
        """Fills the arrays of copies once they are done."""
        if coming.event is not None:
            self._calls.wait(coming.event)
        for slot, part in zip(coming.slots, coming.parts, strict=True):
            part[:] = self._pieces[slot][: part.nbytes]
        coming.event = None

    def give_back(self, slots: Sequence[int], event: Any) -> None:
        """Pieces that are free once an event is reached."""
        with self._lock:
            self._busy.extend((slot, event) for slot in slots)

    def _next(self, filling: _Filling, lane: int) -> None:
        """Takes another piece for the copies of a lane."""
        if filling.slot >= 0:
            full, filling.slot, filling.at = filling.slot, -1, _SLOT
            self._busy.append((full, self._calls.event(False, lane)))
        filling.slot, filling.at = self._free_slot(), 0

    def _free_slot(self) -> int:
        """A piece of memory that no copy uses any more."""
        busy = self._busy
        if not busy or (busy[0][1] is not None and len(self._pieces) < _SLOTS):
            self._pieces.append(self._calls.pinned(_SLOT))
            return len(self._pieces) - 1
        slot, event = busy.popleft()
        try:
            if event is not None:
                self._calls.wait(event)
        except BaseException:
            busy.append((slot, None))  # that copy is over; the next may have the piece
            raise
        return slot
