"""A CUDA device as the backend asks it: buffers, staging, kernels with their parameters, graphs."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.backends.cuda.assembly import PREFIX
from weft.backends.cuda.calls import Calls, CudaError, Graph, Launching, Packed
from weft.backends.cuda.record import Record
from weft.backends.kernels import KernelDriver
from weft.backends.kernels.launch import Local
from weft.errors import DeviceError, OutOfMemoryError

__all__ = ["Buffer", "CudaDriver", "CudaKernel"]

_SLOT = 512 << 10
_SLOTS = 16
"""Copies to the device go through pinned memory, in pieces of half a MiB."""
_SHARED = 48 << 10
"""The bytes of dynamic shared memory that a kernel has without being allowed more."""


class Buffer:
    """Memory of the device, given back when nobody has it any more."""

    __slots__ = ("__weakref__", "address", "keep", "nbytes", "packed")

    def __init__(self, address: int, nbytes: int, keep: object = None) -> None:
        self.address = address
        self.nbytes = nbytes
        self.keep = keep
        self.packed = address.to_bytes(8, "little")


class CudaKernel:
    """A function and its present parameters."""

    __slots__ = ("file", "function", "keep", "name", "params", "shared")

    def __init__(self, function: Any, file: str, name: str) -> None:
        self.function = function
        self.file = file
        self.name = name
        self.params: list[bytes] = []
        self.keep: list[Buffer] = []
        self.shared = 0

    def bind(self, args: Sequence[Any]) -> None:
        """Sets the parameters: buffers as addresses, `Local` as places in shared memory."""
        self.params, self.keep, self.shared = [], [], 0
        for arg in args:
            if type(arg) is bytes:
                self.params.append(arg)
            elif type(arg) is Local:
                start = -(-self.shared // 16) * 16
                self.params.append(start.to_bytes(4, "little"))
                self.shared = start + arg.nbytes
            else:
                self.params.append(arg.packed)
                self.keep.append(arg)


class CudaDriver(KernelDriver):
    """A device, its stream and the staging memory.

    A kernel that breaks the context loses the device: every later request is a DeviceError that
    says so, while the process and other devices go on."""

    errors = CudaError

    def __init__(self, calls: Calls, name: str) -> None:
        super().__init__(name)
        self.calls = calls
        self.lost = ""
        """Why the device is lost; empty while it works."""
        self._lock = Lock()
        self._staging: list[NDArray[np.uint8]] = []
        self._busy: deque[tuple[int, Any]] = deque()
        self._tables: dict[bytes, Buffer] = {}
        self._scratch: dict[int, Buffer] = {}
        self._recording = 0

    @contextmanager
    def guarded(self, what: str) -> Iterator[None]:
        """Turns errors of calls into a DeviceError that begins with `what`; lack of memory becomes
        an OutOfMemoryError."""
        if self.lost:
            raise DeviceError(
                f"{what}: the device is lost ({self.lost}); start weft again to use it"
            )
        try:
            yield
        except CudaError as error:
            self._note(error)
            kind = OutOfMemoryError if error.no_memory else DeviceError
            raise kind(f"{what}: {error}") from error

    def _gone(self) -> str:
        return f"the device is lost ({self.lost}); start weft again to use it"

    def _note(self, error: CudaError) -> None:
        if error.sticky and not self.lost:
            self.lost = str(error)

    # ---- memory ----------------------------------------------------------------------------------

    def create(self, nbytes: int) -> Buffer:
        """A zeroed buffer."""
        words = max(1, -(-nbytes // 4))
        with self.guarded(f"{self.name}: a buffer of {nbytes} bytes could not be created"):
            address = self.calls.allocate(4 * words)
            buffer = Buffer(address, 4 * words)
            weakref.finalize(buffer, _free, weakref.ref(self), self.calls, address).atexit = False
            self.calls.clear(address, words)
        return buffer

    def table(self, data: bytes) -> Buffer:
        """A small buffer that holds these bytes, sent once."""
        buffer = self._tables.get(data)
        if buffer is None:
            buffer = self.create(len(data))
            self.write(buffer, 0, np.frombuffer(data, np.uint8))
            self._tables[data] = buffer
        return buffer

    def scratch(self, slot: int, nbytes: int) -> Buffer:
        """Memory of a slot, larger when it was too small; launches keep what they have."""
        buffer = self._scratch.get(slot)
        if buffer is None or buffer.nbytes < nbytes:
            buffer = self._scratch[slot] = self.create(nbytes)
        return buffer

    def adopt(self, data: NDArray[np.uint8]) -> Buffer:
        """The host's memory under its own address, on devices that share it."""
        return Buffer(data.ctypes.data, data.nbytes, data)

    def write(self, buffer: Buffer, offset: int, data: NDArray[np.uint8]) -> None:
        """Enqueues a copy from the host; `data` may change once this returns."""
        with self._lock, self.guarded(f"{self.name}: copy of {data.nbytes} bytes to the device"):
            for start in range(0, data.nbytes, _SLOT):
                piece = data[start : start + _SLOT]
                slot, event = self._free_slot(), None
                place = self._staging[slot][: piece.nbytes]
                place[:] = piece
                try:
                    begin = self._timed()
                    self.calls.send(buffer.address + offset + start, place)
                    event = self.calls.event(timed=False)
                    self._copied("to", piece.nbytes, begin)
                finally:
                    self._busy.append((slot, event))

    def _free_slot(self) -> int:
        """A piece of staging memory that no copy reads any more."""
        if len(self._staging) < _SLOTS:
            self._staging.append(self.calls.pinned(_SLOT))
            return len(self._staging) - 1
        slot, event = self._busy.popleft()
        try:
            if event is not None:
                self.calls.wait(event)
        except BaseException:
            self._busy.append((slot, None))  # that copy is over; the next may have the piece
            raise
        return slot

    def read_bytes(self, buffer: Buffer, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """Bytes of a buffer, once all work enqueued so far is done."""
        out = np.empty(nbytes, np.uint8)
        if nbytes:
            with self.guarded(f"{self.name}: copy of {nbytes} bytes from the device"):
                begin = self._timed()
                self.calls.fetch(buffer.address + offset, out)
                if buffer is not self._fault:
                    self._copied("from", nbytes, begin)
        return out

    def copy(self, to: Buffer, to_offset: int, source: Buffer, offset: int, nbytes: int) -> None:
        """Enqueues a copy within the device."""
        with self.guarded(f"{self.name}: copy of {nbytes} bytes within the device"):
            begin = self._timed()
            self.calls.copy(to.address + to_offset, source.address + offset, nbytes)
            self._copied("within", nbytes, begin)

    def clear(self, buffer: Buffer, nbytes: int) -> None:
        """Enqueues zeros for the first bytes of a buffer."""
        self.calls.clear(buffer.address, nbytes // 4)

    # ---- kernels ---------------------------------------------------------------------------------

    def kernel(self, file: str, defines: tuple[str, ...], name: str) -> CudaKernel:
        """A kernel whose parameters no other caller sets."""
        with self.guarded(f"{self.name}: kernel {name} of {file}"):
            there = PREFIX + name if file.endswith(".cl") else name
            return CudaKernel(self.calls.function(file, defines, there), file, name)

    def prepared(
        self,
        kernel: CudaKernel,
        grid: tuple[int, ...],
        group: tuple[int, ...],
        start: tuple[int, ...] | None,
    ) -> tuple[Launching]:
        """What `launch` takes. Kernels of all devices get the start of their grid in front."""
        params = kernel.params
        if kernel.file.endswith(".cl"):
            _, y, z = (*(start or ()), 0, 0, 0)[:3]
            params = [y.to_bytes(4, "little") + z.to_bytes(4, "little"), *params]
        if kernel.shared > _SHARED:
            self.calls.allow_shared(kernel.function, kernel.shared)
        return (
            Launching(
                kernel.function, _three(grid), _three(group), kernel.shared, Packed(params),
                kernel.name, kernel.keep,
            ),
        )  # fmt: skip

    def launch(self, *prepared: Any) -> Any:
        """Enqueues a kernel; returns its begin and end while recording."""
        if self.lost:
            raise CudaError(self._gone())
        begin = self._timed()
        try:
            self.calls.launch(*prepared)
        except CudaError as error:
            self._note(error)
            raise
        return None if begin is None else (begin, self.calls.event(timed=True))

    has_graphs = True

    def graph(self, launches: Sequence[tuple[Any, ...]]) -> Graph:
        """The launches as one graph."""
        with self.guarded(f"{self.name}: a graph of {len(launches)} kernels"):
            return self.calls.graph([launching for (launching,) in launches])

    def start(self, graph: Graph) -> None:
        """Enqueues a graph."""
        if self.lost:
            raise CudaError(self._gone())
        try:
            graph.run()
        except CudaError as error:
            self._note(error)
            raise

    def flush(self) -> None:
        """Does nothing: work starts as it is enqueued."""

    # ---- events ----------------------------------------------------------------------------------

    def marker(self) -> Any:
        """An event that is reached when all work enqueued so far is done."""
        with self.guarded(f"{self.name}: no event could be created"):
            return self.calls.event(timed=False)

    def is_done(self, event: Any) -> bool:
        """Whether an event is reached, or a lost device has given it up."""
        try:
            return bool(self.lost) or self.calls.is_done(event)
        except CudaError as error:
            self._note(error)
            return True

    def wait(self, event: Any = None) -> None:
        """Blocks until an event, or until all work is done."""
        with self.guarded(f"{self.name}: waiting for the device"):
            if event is None:
                self.calls.synchronize()
            else:
                self.calls.wait(event)

    # ---- times -----------------------------------------------------------------------------------

    def record_times(self, on: bool) -> None:
        """Records events from now on; ends with as many calls with False. Waits for the device."""
        self._recording += 1 if on else -1
        if self._recording == on:
            self.wait()
            self.record = Record(self, self.calls) if on else None

    def _timed(self) -> Any:
        """An event with a time, while recording."""
        return None if self.record is None else self.calls.event(timed=True)

    def _copied(self, kind: str, nbytes: int, begin: Any) -> None:
        if begin is not None:
            self.record.copy(kind, nbytes, (begin, self.calls.event(timed=True)))


def _three(sizes: tuple[int, ...]) -> tuple[int, int, int]:
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def _free(driver: weakref.ref[CudaDriver], calls: Calls, address: int) -> None:
    """Gives memory back; a lost device has given back all."""
    alive = driver()
    if alive is not None and alive.lost:
        return
    try:
        calls.free(address)
    except CudaError as error:
        if alive is not None:
            alive._note(error)
