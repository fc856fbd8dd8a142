"""A CUDA device as the backend asks it: buffers, staging, kernels with their parameters, graphs."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import local
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.backends.cuda.assembly import PREFIX
from weft.backends.cuda.calls import COPIES, KERNELS, Calls, CudaError, Graph, Launching, Packed
from weft.backends.cuda.record import CudaRecord
from weft.backends.cuda.staging import LATER, Staging
from weft.backends.kernels import KernelDriver
from weft.backends.kernels.compiling import Compiled
from weft.backends.kernels.driver import CopiesMeanwhile, MakesGraphs
from weft.backends.kernels.launch import Launch, Local
from weft.errors import DeviceError, OutOfMemoryError

_SHARED = 48 << 10
"""The bytes of dynamic shared memory that a kernel has without being allowed more."""


class Buffer:
    """Memory of the device, freed with the last reference."""

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


class CudaDriver(KernelDriver, MakesGraphs, CopiesMeanwhile):
    """A device, its lanes and the staging memory.

    Work of a queue (`in_queue`) goes into that queue's lane, and whoever drives the queues orders
    the lanes. All other work goes into the lane of kernels, behind everything before it and before
    everything behind it.

    A kernel that breaks the context loses the device: every later request is a DeviceError that
    says so, while the process and other devices go on."""

    errors = CudaError

    def __init__(self, calls: Calls, name: str) -> None:
        super().__init__(name)
        self.calls = calls
        self.lost = ""
        """Why the device is lost; empty while it works."""
        self._staging = Staging(calls)
        self._queue = local()
        """`lane`: the lane of the queue whose work this thread enqueues; missing outside of
        queues."""
        self._copied: tuple[int, Any] = (0, None)
        """The number of the last work in the lane of copies, and the event behind it."""
        self._awaited = 0
        """The number of the last work in the lane of copies for which the lane of kernels waits."""
        self._apart = False
        """There is work in the lane of kernels that came from no queue."""

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

    # ---- lanes -----------------------------------------------------------------------------------

    @contextmanager
    def in_queue(self, lane: int) -> Iterator[None]:
        """Enqueues this thread's work into a lane, in no order with the other."""
        self._queue.lane = lane
        try:
            yield
        finally:
            del self._queue.lane

    def _lane(self) -> int:
        """The lane of the next work."""
        lane: int | None = getattr(self._queue, "lane", None)
        if lane is None:
            self._join()
            self._apart = True
            return KERNELS
        if lane == COPIES and self._apart:
            self._apart = False
            self.calls.order(self.calls.event(False, KERNELS), COPIES)
        return lane

    def _join(self) -> None:
        """Lets later kernels start behind all copies so far."""
        number, event = self._copied
        if number != self._awaited:
            self.calls.order(event, KERNELS)
            self._awaited = number

    def order(self, event: Any, lane: int) -> None:
        """Lets later work of a lane start only after an event, of this or another device that
        `reaches` says."""
        with self.guarded(f"{self.name}: waiting for an event"):
            self.calls.order(event, lane)

    def reaches(self, other: KernelDriver) -> bool:
        """Whether events and copies of another device need no host."""
        return isinstance(other, CudaDriver) and self.calls.reaches(other.calls)

    # ---- memory ----------------------------------------------------------------------------------

    def create(self, nbytes: int) -> Buffer:
        """A zeroed buffer."""
        words = max(1, -(-nbytes // 4))
        with self.guarded(f"{self.name}: a buffer of {nbytes} bytes could not be created"):
            address = self.calls.allocate(4 * words)
            buffer = Buffer(address, 4 * words)
            weakref.finalize(buffer, _free, weakref.ref(self), self.calls, address).atexit = False
            self._apart = True
            self.calls.clear(address, words)
        return buffer

    def adopt(self, data: NDArray[np.uint8]) -> Buffer:
        """The host's memory under its own address, on devices that share it."""
        return Buffer(data.ctypes.data, data.nbytes, data)

    def write(self, buffer: Buffer, offset: int, data: NDArray[np.uint8]) -> None:
        """Enqueues a copy from the host; `data` may change once this returns."""
        with self.guarded(f"{self.name}: copy of {data.nbytes} bytes to the device"):
            lane = self._lane()
            begin = self._timed(lane)
            self._staging.send(buffer.address + offset, data, lane)
            self._copied_bytes("to", data.nbytes, begin, lane)

    def read(self, buffer: Buffer, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """Bytes of a buffer, once all work before is done and found without fault."""
        out = np.empty(nbytes, np.uint8)
        found = self._fetch(buffer, offset, out, self._staging.fetch)
        self._require(found)
        return out

    def read_later(
        self, buffer: Buffer, offset: int, nbytes: int
    ) -> Callable[[], NDArray[np.uint8]]:
        """`read` behind the work so far: the function that it returns waits for the bytes."""
        if not 0 < nbytes <= LATER:
            at_once = self.read(buffer, offset, nbytes)
            return lambda: at_once
        out = np.empty(nbytes, np.uint8)
        coming: list[Callable[[], None]] = []

        def begin(wanted: Sequence[tuple[int, NDArray[np.uint8]]], lane: int) -> None:
            coming.append(self._staging.fetch_later(wanted, lane))

        found = self._fetch(buffer, offset, out, begin)

        def arrived() -> NDArray[np.uint8]:
            with self.guarded(f"{self.name}: copy of {nbytes} bytes from the device"):
                coming[0]()
            self._require(found)
            return out

        return arrived

    def read_bytes(self, buffer: Buffer, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """Bytes of a buffer, once all work enqueued so far is done."""
        out = np.empty(nbytes, np.uint8)
        with self.guarded(f"{self.name}: copy of {nbytes} bytes from the device"):
            self._staging.fetch([(buffer.address + offset, out)], self._lane())
        return out

    def _fetch(
        self,
        buffer: Buffer,
        offset: int,
        out: NDArray[np.uint8],
        fetch: Callable[[Sequence[tuple[int, NDArray[np.uint8]]], int], None],
    ) -> NDArray[np.uint8] | None:
        """Fetches into `out`, and with it the fault of a kernel, which is returned."""
        wanted = [(buffer.address + offset, out)]
        fault: Buffer | None = self._fault
        found = None if fault is None else np.empty(fault.nbytes, np.uint8)
        if fault is not None and found is not None:
            wanted.append((fault.address, found))
        with self.guarded(f"{self.name}: copy of {out.nbytes} bytes from the device"):
            lane = self._lane()
            begin = self._timed(lane)
            fetch(wanted, lane)
            self._copied_bytes("from", out.nbytes, begin, lane)
        return found

    def _require(self, found: NDArray[np.uint8] | None) -> None:
        """Raises DeviceError where a kernel has left a fault."""
        if found is not None and found[:4].any():
            self.check()

    def copy(self, to: Buffer, to_offset: int, source: Buffer, offset: int, nbytes: int) -> None:
        """Enqueues a copy within the device."""
        with self.guarded(f"{self.name}: copy of {nbytes} bytes within the device"):
            lane = self._lane()
            begin = self._timed(lane)
            self.calls.copy(to.address + to_offset, source.address + offset, nbytes, lane)
            self._copied_bytes("within", nbytes, begin, lane)

    def copy_across(
        self,
        to: Buffer,
        to_offset: int,
        other: KernelDriver,
        source: Buffer,
        offset: int,
        nbytes: int,
    ) -> bool:
        """Enqueues a copy from another device of this kind, between the work of both."""
        if not isinstance(other, CudaDriver) or not self.reaches(other):
            return False
        if source.keep is not None or to.keep is not None:
            return False  # memory of the host
        outside = not hasattr(self._queue, "lane")
        with self.guarded(f"{self.name}: copy of {nbytes} bytes from {other.name}"):
            lane = self._lane()
            if outside:
                with other.guarded(f"{other.name}: an event"):
                    self.calls.order(other.calls.event(False, other._lane()), lane)
            begin = self._timed(lane)
            there, here = source.address + offset, to.address + to_offset
            self.calls.copy_from(other.calls, here, there, nbytes, lane)
            self._copied_bytes("to", nbytes, begin, lane)
            if outside:
                other.order(self.calls.event(False, lane), KERNELS)
        return True

    def clear(self, buffer: Buffer, nbytes: int) -> None:
        """Enqueues zeros for the first bytes of a buffer."""
        self._join()
        self._apart = True
        self.calls.clear(buffer.address, nbytes // 4)

    # ---- kernels ---------------------------------------------------------------------------------

    def kernel(self, file: str, defines: tuple[str, ...], name: str) -> CudaKernel:
        """A kernel whose parameters no other caller sets."""
        with self.guarded(f"{self.name}: kernel {name} of {file}"):
            return CudaKernel(self._function(file, defines, name).get(), file, name)

    def expect(self, launch: Launch) -> None:
        """Counts the kernel of a launch, which `kernel` compiles."""
        self._function(launch.file, launch.defines, launch.kernel)

    def _function(self, file: str, defines: tuple[str, ...], name: str) -> Compiled:
        there = PREFIX + name if file.endswith(".cl") else name
        key = file, defines, there
        return self.compiling.asked(key, lambda: self.calls.function(*key))

    def prepared(
        self,
        kernel: CudaKernel,
        grid: tuple[int, ...],
        group: tuple[int, ...],
        start: tuple[int, ...] | None,
    ) -> tuple[Launching]:
        """The arguments of `launch`. Kernels of all devices get the start of their grid in
        front."""
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
        begin = self._timed(KERNELS)
        try:
            self._lane()
            self.calls.launch(*prepared)
        except CudaError as error:
            self._note(error)
            raise
        return None if begin is None else (begin, self.calls.event(timed=True))

    def graph(self, launches: Sequence[tuple[Any, ...]]) -> Graph:
        """The launches as one graph."""
        with self.guarded(f"{self.name}: a graph of {len(launches)} kernels"):
            return self.calls.graph([launching for (launching,) in launches])

    def start(self, graph: Graph) -> None:
        """Enqueues a graph."""
        if self.lost:
            raise CudaError(self._gone())
        try:
            self._lane()
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
            lane = self._lane()
            event = self.calls.event(False, lane)
            if lane == COPIES:
                self._copied = (self._copied[0] + 1, event)
            return event

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

    def new_record(self) -> CudaRecord:
        """A record of pairs of events."""
        return CudaRecord(self, self.calls)

    def _timed(self, lane: int) -> Any:
        """An event with a time, while recording."""
        return None if self.record is None else self.calls.event(True, lane)

    def _copied_bytes(self, kind: str, nbytes: int, begin: Any, lane: int) -> None:
        if begin is not None:
            self.record.copy(kind, nbytes, (begin, self.calls.event(True, lane)))


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
