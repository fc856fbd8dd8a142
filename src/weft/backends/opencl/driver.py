"""All requests to the driver: buffers, copies, kernels, waiting, and their failures.

There is one context and one queue for each device, in order: a command starts when all before it
are done. So work enqueued from any thread sees the results of work enqueued before, and only the
host ever waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.backends.kernels import KernelDriver
from weft.backends.kernels.compiling import Compiled
from weft.backends.kernels.launch import Launch, Local
from weft.backends.opencl.builds import Programs
from weft.backends.opencl.devices import Found
from weft.backends.opencl.library import bytes_setter, guarded, library
from weft.backends.opencl.record import OpenCLRecord

_SLOT = 512 << 10
_SLOTS = 16
"""Copies to the device go through page-locked memory, in pieces of half a MiB."""


class OpenCLKernel:
    """A kernel object, of which only arguments that change are set again."""

    __slots__ = ("_local", "_present", "_set_bytes", "kernel", "name")

    def __init__(self, kernel: Any, name: str, local: Any) -> None:
        self.kernel = kernel
        self.name = name
        self._local = local
        self._set_bytes = bytes_setter(kernel)
        self._present: list[Any] = []

    def bind(self, args: Sequence[Any]) -> None:
        """Sets the arguments of later launches."""
        present = self._present
        for i, arg in enumerate(args):
            if i < len(present) and (present[i] is arg or present[i] == arg):
                continue
            if type(arg) is bytes:
                self._set_bytes(i, arg)
            else:
                self.kernel.set_arg(i, self._local(arg.nbytes) if type(arg) is Local else arg)
        present[:] = args


class Driver(KernelDriver):
    """A context, its queue, and the staging memory. Raises DeviceError where the device fails,
    OutOfMemoryError where it has no room."""

    def __init__(self, device: Found, name: str) -> None:
        super().__init__(name)
        cl = library()
        self.device = device
        self.errors = cl.Error
        with guarded(f"{name}: no context could be created on {device.name}"):
            self.context = cl.Context([device.handle])
            self.queue = cl.CommandQueue(self.context, device.handle)
        self._plain: Any = self.queue
        self._timed: Any = None
        self.programs = Programs(self.context, device)
        self._cl = cl
        self._lock = Lock()
        self._staging: list[NDArray[np.uint8]] = []
        self._busy: deque[tuple[int, Any]] = deque()
        self._local = lru_cache(maxsize=None)(cl.LocalMemory)

    def guarded(self, what: str) -> AbstractContextManager[None]:
        """Turns errors of the driver into a DeviceError that begins with `what`."""
        return guarded(what)

    # ---- memory ----------------------------------------------------------------------------------

    def create(self, nbytes: int) -> Any:
        """A zeroed buffer."""
        flags = self._cl.mem_flags.READ_WRITE
        with guarded(f"{self.name}: a buffer of {nbytes} bytes could not be created"):
            buffer = self._cl.Buffer(self.context, flags, max(4, -(-nbytes // 4) * 4))
            self._cl.enqueue_fill_buffer(self.queue, buffer, b"\0\0\0\0", 0, buffer.size)
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

    def read_bytes(self, buffer: Any, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """Bytes of a buffer, once all work enqueued so far is done."""
        out = np.empty(nbytes, np.uint8)
        if nbytes:
            with guarded(f"{self.name}: copy of {nbytes} bytes from the device"):
                event = self._cl.enqueue_copy(self.queue, out, buffer, src_offset=offset)
                if self.record is not None and buffer is not self._fault:
                    self.record.copy("from", nbytes, event)
        return out

    def copy(self, to: Any, to_offset: int, source: Any, offset: int, nbytes: int) -> None:
        """Enqueues a copy within the device."""
        with guarded(f"{self.name}: copy of {nbytes} bytes within the device"):
            event = self._cl.enqueue_copy(
                self.queue, to, source, byte_count=nbytes, src_offset=offset, dst_offset=to_offset
            )
            if self.record is not None:
                self.record.copy("within", nbytes, event)

    def clear(self, buffer: Any, nbytes: int) -> None:
        """Enqueues zeros for the first bytes of a buffer."""
        self._cl.enqueue_fill_buffer(self.queue, buffer, b"\0\0\0\0", 0, nbytes)

    # ---- kernels ---------------------------------------------------------------------------------

    def kernel(self, file: str, defines: tuple[str, ...], name: str) -> OpenCLKernel:
        """A kernel object of its own, whose arguments no other caller sets."""
        program = self._program(file, defines).get()
        with guarded(f"kernel {name} of {file} on {self.device.name}"):
            return OpenCLKernel(self._cl.Kernel(program, name), name, self._local)

    def expect(self, launch: Launch) -> None:
        """Counts the program of a launch, which `kernel` compiles."""
        self._program(launch.file, launch.defines)

    def _program(self, file: str, defines: tuple[str, ...]) -> Compiled:
        return self.compiling.asked((file, defines), lambda: self.programs.get(file, defines))

    def prepared(
        self,
        kernel: OpenCLKernel,
        grid: tuple[int, ...],
        group: tuple[int, ...],
        start: tuple[int, ...] | None,
    ) -> tuple[Any, ...]:
        """The arguments of `launch`: kernel object, number of items, items of a group, first
        item."""
        items = tuple(n * m for n, m in zip(grid, group, strict=True))
        return kernel.kernel, items, group, start

    def launch(self, *prepared: Any) -> Any:
        """Enqueues a kernel and returns its event."""
        return self._cl.enqueue_nd_range_kernel(self.queue, *prepared)

    def flush(self) -> None:
        """Starts the work that is enqueued."""
        self.queue.flush()

    def marker(self) -> Any:
        """An event that is reached when all work enqueued so far is done."""
        with guarded(f"{self.name}: no event could be created"):
            event = self._cl.enqueue_marker(self.queue)
            self.queue.flush()
        return event

    def is_done(self, event: Any) -> bool:
        """Whether an event is reached, or a failing device has given it up."""
        complete = self._cl.command_execution_status.COMPLETE
        return bool(event.command_execution_status <= complete)

    def wait(self, event: Any = None) -> None:
        """Blocks until an event, or until all work is done."""
        with guarded(f"{self.name}: waiting for the device"):
            if event is None:
                self.queue.finish()
            else:
                event.wait()

    # ---- times -----------------------------------------------------------------------------------

    def record_times(self, on: bool) -> None:
        """Records events from now on; ends with as many calls with False. Waits for the device."""
        super().record_times(on)
        if self.record is None:
            self.queue = self._plain

    def new_record(self) -> OpenCLRecord:
        """A record of the events of a queue that keeps their times."""
        if self._timed is None:
            timed = self._cl.command_queue_properties.PROFILING_ENABLE
            with guarded(f"{self.name}: no queue with times could be created"):
                self._timed = self._cl.CommandQueue(self.context, self.device.handle, timed)
        self.queue = self._timed
        return OpenCLRecord(self)
