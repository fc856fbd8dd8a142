"""All requests to the driver: buffers, copies, kernels, waiting, and their failures.

There is one context and one queue for each device, in order: a command starts when all before it
are done. So work enqueued from any thread sees the results of work enqueued before, and only the
host ever waits.
"""

from __future__ import annotations

import struct
from collections import deque
from functools import lru_cache
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.backends.opencl.builds import Programs
from weft.backends.opencl.devices import Found
from weft.backends.opencl.enums import Fault
from weft.backends.opencl.library import guarded, library
from weft.backends.opencl.record import Record
from weft.errors import DeviceError

__all__ = ["Driver"]

_SLOT = 512 << 10
_SLOTS = 16
"""Copies to the device go through page-locked memory, in pieces of half a MiB."""


class Driver:
    """A context, its queue, and the staging memory. Raises DeviceError where the device fails,
    OutOfMemoryError where it has no room."""

    def __init__(self, device: Found, name: str) -> None:
        cl = library()
        self.device = device
        self.name = name
        with guarded(f"{name}: no context could be created on {device.name}"):
            self.context = cl.Context([device.handle])
            self.queue = cl.CommandQueue(self.context, device.handle)
        self.record: Record | None = None
        """The record of events, while recording."""
        self._plain: Any = self.queue
        self._timed: Any = None
        self._recording = 0
        self.programs = Programs(self.context, device)
        self._cl = cl
        self._lock = Lock()
        self._staging: list[NDArray[np.uint8]] = []
        self._busy: deque[tuple[int, Any]] = deque()
        self._fault: Any = None
        self._watched: dict[str, int] = {}
        self._tables: dict[bytes, Any] = {}
        self.local = lru_cache(maxsize=None)(cl.LocalMemory)
        """Local memory of a number of bytes, as an argument of a kernel."""

    # ---- memory ----------------------------------------------------------------------------------

    def create(self, nbytes: int) -> Any:
        """A zeroed buffer."""
        flags = self._cl.mem_flags.READ_WRITE
        with guarded(f"{self.name}: a buffer of {nbytes} bytes could not be created"):
            buffer = self._cl.Buffer(self.context, flags, max(4, -(-nbytes // 4) * 4))
            self._cl.enqueue_fill_buffer(self.queue, buffer, b"\0\0\0\0", 0, buffer.size)
        return buffer

    def table(self, data: bytes) -> Any:
        """A small buffer that holds these bytes, sent once."""
        buffer = self._tables.get(data)
        if buffer is None:
            flags = self._cl.mem_flags.READ_ONLY | self._cl.mem_flags.COPY_HOST_PTR
            with guarded(f"{self.name}: a table of {len(data)} bytes could not be created"):
                host = np.frombuffer(data, np.uint8)
                buffer = self._cl.Buffer(self.context, flags, hostbuf=host)
            self._tables[data] = buffer
        return buffer

    def adopt(self, data: NDArray[np.uint8]) -> Any:
        """A buffer over memory of the host, which must not change or move while the buffer
        lives."""
        flags = self._cl.mem_flags.READ_ONLY | self._cl.mem_flags.USE_HOST_PTR
        with guarded(f"{self.name}: {data.nbytes} bytes of host memory could not be shared"):
            return self._cl.Buffer(self.context, flags, hostbuf=data)

    def write(self, buffer: Any, offset: int, data: NDArray[np.uint8]) -> None:
        """Enqueues a copy from the host; `data` may change once this returns."""
        with self._lock, guarded(f"{self.name}: copy of {data.nbytes} bytes to the device"):
            for start in range(0, data.nbytes, _SLOT):
                piece = data[start : start + _SLOT]
                slot, event = self._free_slot(), None
                place = self._staging[slot][: piece.nbytes]
                place[:] = piece
                try:
                    event = self._cl.enqueue_copy(
                        self.queue, buffer, place, dst_offset=offset + start, is_blocking=False
                    )
                    if self.record is not None:
                        self.record.copy("to", piece.nbytes, event)
                finally:
                    self._busy.append((slot, event))
            self.queue.flush()

    def _free_slot(self) -> int:
        """A piece of staging memory that no copy reads any more."""
        if len(self._staging) < _SLOTS:
            flags = self._cl.mem_flags.READ_WRITE | self._cl.mem_flags.ALLOC_HOST_PTR
            buffer = self._cl.Buffer(self.context, flags, _SLOT)
            access = self._cl.map_flags.READ | self._cl.map_flags.WRITE
            mapped, _ = self._cl.enqueue_map_buffer(
                self.queue, buffer, access, 0, (_SLOT,), np.uint8
            )
            self._staging.append(mapped)
            return len(self._staging) - 1
        slot, event = self._busy.popleft()
        try:
            if event is not None:
                event.wait()
        except BaseException:
            self._busy.append((slot, None))  # that copy is over; the next may have the piece
            raise
        return slot

    def read(self, buffer: Any, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """Bytes of a buffer, once all work enqueued so far is done."""
        out = np.empty(nbytes, np.uint8)
        if nbytes:
            with guarded(f"{self.name}: copy of {nbytes} bytes from the device"):
                event = self._cl.enqueue_copy(self.queue, out, buffer, src_offset=offset)
                if self.record is not None:
                    self.record.copy("from", nbytes, event)
        self.check()
        return out

    def copy(self, to: Any, to_offset: int, source: Any, offset: int, nbytes: int) -> None:
        """Enqueues a copy within the device."""
        with guarded(f"{self.name}: copy of {nbytes} bytes within the device"):
            event = self._cl.enqueue_copy(
                self.queue, to, source, byte_count=nbytes, src_offset=offset, dst_offset=to_offset
            )
            if self.record is not None:
                self.record.copy("within", nbytes, event)

    # ---- kernels ---------------------------------------------------------------------------------

    def launch(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        group: tuple[int, ...],
        start: tuple[int, ...] | None = None,
    ) -> Any:
        """Enqueues a kernel and returns its event; `grid` counts items, of which the first is at
        `start`."""
        return self._cl.enqueue_nd_range_kernel(self.queue, kernel, grid, group, start)

    def flush(self) -> None:
        """Starts the work that is enqueued."""
        self.queue.flush()

    def marker(self) -> Any:
        """An event that is reached when all work enqueued so far is done."""
        with guarded(f"{self.name}: no event could be created"):
            event = self._cl.enqueue_marker(self.queue)
            self.queue.flush()
        return event

    def wait(self, event: Any = None) -> None:
        """Blocks until an event, or until all work is done."""
        with guarded(f"{self.name}: waiting for the device"):
            if event is None:
                self.queue.finish()
            else:
                event.wait()

    # ---- times -----------------------------------------------------------------------------------

    def record_times(self, on: bool) -> None:
        """Records events from now on, in a queue that keeps their times.

        It ends with as many calls with False. Waits for the device."""
        self._recording += 1 if on else -1
        if self._recording != on:
            return
        self.wait()
        if on and self._timed is None:
            timed = self._cl.command_queue_properties.PROFILING_ENABLE
            with guarded(f"{self.name}: no queue with times could be created"):
                self._timed = self._cl.CommandQueue(self.context, self.device.handle, timed)
        self.queue = self._timed if on else self._plain
        self.record = Record(self) if on else None

    # ---- indices ---------------------------------------------------------------------------------

    @property
    def fault(self) -> Any:
        """The buffer in which kernels record an index that is out of range."""
        if self._fault is None:
            self._fault = self.create(24)
        return self._fault

    def watch(self, description: str) -> int:
        """A number for a step that looks things up, with which `check` can name it."""
        return self._watched.setdefault(description, len(self._watched))

    def check(self) -> None:
        """Raises DeviceError when a finished kernel met an index out of range."""
        if self._fault is None:
            return
        out = np.empty(24, np.uint8)
        with guarded(f"{self.name}: reading the fault of a kernel"):
            self._cl.enqueue_copy(self.queue, out, self._fault)
        step, kind, index, n = struct.unpack("<2i2q", out.tobytes())
        if step:
            with guarded(f"{self.name}: clearing the fault of a kernel"):
                self._cl.enqueue_fill_buffer(self.queue, self._fault, b"\0\0\0\0", 0, 24)
            where = next(text for text, number in self._watched.items() if number == step - 1)
            why = {
                Fault.BAD_INDEX: f"index {index} is outside 0..{n - 1}",
                Fault.BAD_WRAPPED_INDEX: f"index {index} is outside -{n} .. {n - 1}",
                Fault.DIVISION_BY_ZERO: "an integer is divided by 0",
            }[Fault(kind)]
            raise DeviceError(f"{self.name}: {where}: {why}")
