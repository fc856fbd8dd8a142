"""All requests to a device: buffers, copies, kernels, waiting, and their failures."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from threading import RLock
from time import perf_counter_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.backends.kernels import KernelDriver
from weft.backends.kernels.driver import FAULT_BYTES, MakesGraphs
from weft.backends.kernels.launch import Launch, View
from weft.backends.kernels.record import Kind
from weft.backends.kernels.windows import windowed
from weft.backends.webgpu.arguments import Arguments
from weft.backends.webgpu.devices import NEEDED, SUBGROUPS, TIMES, WIDE, Found
from weft.backends.webgpu.edges import Edge, split, words
from weft.backends.webgpu.launches import Binder, Graph, encoding
from weft.backends.webgpu.library import guarded, library, period, said
from weft.backends.webgpu.pipelines import Pipelines
from weft.backends.webgpu.record import Timed, WebGPURecord
from weft.errors import DeviceError

_PIECE = 16 << 20
_UNSENT = 64 << 20
"""Maximum number of bytes of one copy from the host, and of all copies that the library may hold
until the device has done them."""
_KEPT = 4 << 20
"""Bytes of the largest buffer that is kept for later reads."""

U8 = NDArray[np.uint8]


class WebGPUKernel:
    """A kernel with the arguments of later launches."""

    __slots__ = ("args", "defines", "file", "name")

    def __init__(self, file: str, defines: tuple[str, ...], name: str) -> None:
        self.file, self.defines, self.name = file, defines, name
        self.args: list[Any] = []

    def bind(self, args: Sequence[Any]) -> None:
        """Sets the arguments of later launches."""
        self.args = list(args)


class Driver(KernelDriver, MakesGraphs):
    """A device and its queue. Raises DeviceError where the device fails, OutOfMemoryError where it
    has no room."""

    guarded = staticmethod(guarded)
    said = staticmethod(said)
    compiles_early = True

    def __init__(self, device: Found, name: str) -> None:
        super().__init__(name)
        self.device = device
        self._wgpu = library()
        self.errors = (self._wgpu.GPUError, RuntimeError)
        with guarded(f"{name}: {device.name} could not be opened"):
            self._device = device.handle.request_device_sync(
                required_limits={key: device.limits[key] for key in NEEDED},
                required_features=[f for f in (WIDE, TIMES, SUBGROUPS) if f in device.features],
            )
        self._queue = self._device.queue
        self._period = period(self._queue)
        if TIMES not in device.features:
            self.why_untimed = f"{device.name} has no feature {TIMES}"
        elif not self._period:
            self.why_untimed = "this version of wgpu does not tell the length of a tick"
        self._lock = RLock()
        self._encoder: Any = None
        self._pass: Any = None
        usage = self._wgpu.BufferUsage
        self._usage = usage.STORAGE | usage.COPY_SRC | usage.COPY_DST
        compute = self._wgpu.ShaderStage.COMPUTE
        self._pipelines = Pipelines(self.compiling, self._device, device, compute)
        self._arguments = Arguments(self.create)
        self._binder = Binder(self._device, self._pipelines, self._arguments, self.table)
        self._encoding = encoding()
        self._edges: list[tuple[Any, Edge]] = []  # written before all other work that comes
        self._last = self.create(4)
        self._reads = usage.MAP_READ | usage.COPY_DST
        self._readable: Any = None
        self._unsent = 0
        self._pid = os.getpid()

    # ---- memory ----------------------------------------------------------------------------------

    def create(self, nbytes: int) -> Any:
        """A zeroed buffer; kernels may read it as vectors of 16 bytes."""
        with guarded(f"{self.name}: a buffer of {nbytes} bytes could not be created"):
            size = -(-max(nbytes, 16) // 16) * 16
            return self._device.create_buffer(size=size, usage=self._usage)

    def window(self, view: View) -> View:
        """The view in a window of its buffer, where the buffer is larger than a binding."""
        return windowed(view, view.buffer.size, self.device.max_binding)

    def write(self, buffer: Any, offset: int, data: U8) -> None:
        """Enqueues a copy from the host; `data` may change once this returns."""
        with self._lock, guarded(f"{self.name}: copy of {data.nbytes} bytes to the device"):
            begin, end = words(offset, data.nbytes)
            if any(to is buffer and begin <= e.offset < end for to, e in self._edges):
                self._encode()
            self.flush()
            edges, start, data = split(offset, data)
            with self._timed("to", data.nbytes):
                self.flush()  # what the record encoded: writes come before what is encoded later
                self._edges += [(buffer, edge) for edge in edges]
                for at in range(0, data.nbytes, _PIECE):
                    piece = data[at : at + _PIECE]
                    self._queue.write_buffer(buffer, start + at, piece)
                    self._unsent += piece.nbytes
                    if self._unsent >= _UNSENT:
                        self.wait()

    def read(self, buffer: Any, offset: int, nbytes: int) -> U8:
        """Bytes of a buffer, once all work enqueued so far is done and found without fault, which
        is read with them."""
        if not nbytes or self._fault is None:
            return super().read(buffer, offset, nbytes)
        with self._lock, guarded(f"{self.name}: copy of {nbytes} bytes from the device"):
            start, end = words(offset, nbytes)
            with self._timed("from", nbytes):
                found = self._read((buffer, start, end - start), (self._fault, 0, FAULT_BYTES))
        self.check_fault(found[end - start :])
        return found[offset - start : offset - start + nbytes]

    def read_bytes(self, buffer: Any, offset: int, nbytes: int) -> U8:
        """Bytes of a buffer, once all work enqueued so far is done."""
        if not nbytes:
            return np.empty(0, np.uint8)
        with self._lock, guarded(f"{self.name}: copy of {nbytes} bytes from the device"):
            start, end = words(offset, nbytes)
            with nullcontext() if buffer is self._fault else self._timed("from", nbytes):
                found = self._read((buffer, start, end - start))
            return found[offset - start : offset - start + nbytes]

    def _read(self, *ranges: tuple[Any, int, int]) -> U8:
        """Ranges of whole words (buffer, offset, bytes), one behind the other, once all that was
        enqueued before is done."""
        self._end_pass()
        total, at = sum(nbytes for *_, nbytes in ranges), 0
        into, self._readable = self._readable, None  # where the device fails, it is not used again
        if into is None or into.size < total:
            size = -(-total // 4096) * 4096
            into = self._device.create_buffer(size=size, usage=self._reads)
        for buffer, offset, nbytes in ranges:
            self._encode().copy_buffer_to_buffer(buffer, offset, into, at, nbytes)
            at += nbytes
        self.flush()
        self._unsent = 0
        into.map_async("READ_NOSYNC", 0, total).sync_wait()
        found = np.frombuffer(into.read_mapped(0, total), np.uint8)  # a copy
        into.unmap()
        if into.size <= _KEPT:
            self._readable = into
        else:
            into.destroy()
        return found

    def copy(self, to: Any, to_offset: int, source: Any, offset: int, nbytes: int) -> None:
        """Enqueues a copy within the device."""
        with self._lock, guarded(f"{self.name}: copy of {nbytes} bytes within the device"):
            if not nbytes:
                return
            if (to_offset | offset | nbytes) % 4:
                self.write(to, to_offset, self.read_bytes(source, offset, nbytes))
                return
            self._end_pass()
            with self._timed("within", nbytes):
                if to is source:  # WebGPU copies between two buffers
                    between = self.create(nbytes)
                    self._encode().copy_buffer_to_buffer(source, offset, between, 0, nbytes)
                    source, offset = between, 0
                self._encode().copy_buffer_to_buffer(source, offset, to, to_offset, nbytes)

    def clear(self, buffer: Any, nbytes: int) -> None:
        """Enqueues zeros for the first bytes of a buffer."""
        with self._lock, guarded(f"{self.name}: clearing {nbytes} bytes"):
            self._end_pass()
            self._encode().clear_buffer(buffer, 0, nbytes)

    # ---- kernels ---------------------------------------------------------------------------------

    def expect(self, launch: Launch) -> None:
        """Compiles the pipeline of a launch while other work goes on."""
        self._binder.expect(launch)

    def kernel(self, file: str, defines: tuple[str, ...], name: str) -> WebGPUKernel:
        """A kernel object of its own, whose arguments no other caller sets."""
        return WebGPUKernel(file, defines, name)

    def prepared(
        self,
        kernel: WebGPUKernel,
        grid: tuple[int, ...],
        group: tuple[int, ...],
        start: tuple[int, ...] | None,
    ) -> tuple[Any, ...]:
        """The arguments of `launch`: the grid in parts, with their arguments."""
        with self._lock:
            return (self._binder.ready(kernel, grid, group, start or ()),)

    def launch(self, *prepared: Any) -> Timed | None:
        """Enqueues a kernel; returns its timestamps while recording."""
        (parts,) = prepared
        with self._lock:
            timed: Timed | None = None
            if self.record is not None:
                self._end_pass()
                timed = self.record.timed()
                self._pass = self._encode().begin_compute_pass(timestamp_writes=timed.writes(0, 1))
            self._encoding.encode(self._compute(), parts)
            return timed

    def graph(self, launches: Sequence[tuple[Any, ...]]) -> Graph:
        """The launches as one object."""
        return Graph(launches)

    def start(self, graph: Graph) -> None:
        """Enqueues the launches of a graph."""
        with self._lock:
            self._encoding.encode(self._compute(), graph.dispatches)

    def _encode(self) -> Any:
        """The present encoder; a new one has the parts of words that wait."""
        if self._encoder is None:
            self._encoder = self._device.create_command_encoder()
            if self._edges:
                edges = [self._binder.edge(buffer, edge) for buffer, edge in self._edges]
                self._edges = []
                self._encoding.encode(self._compute(), edges)
                self._end_pass()
        return self._encoder

    def _compute(self) -> Any:
        """The present compute pass."""
        if self._pass is None:
            self._pass = self._encode().begin_compute_pass()
        return self._pass

    def _end_pass(self) -> None:
        if self._pass is not None:
            ended, self._pass = self._pass, None
            ended.end()

    def flush(self) -> None:
        """Starts the work that is enqueued, except parts of words, which wait for more work."""
        if os.getpid() != self._pid:  # the threads of the library are not in this process
            raise DeviceError(
                f"{self.name} was opened by the process that this one was forked from, which alone "
                "can use it; start processes by spawn, and open the device there"
            )
        with self._lock:
            self._end_pass()
            if self._encoder is not None:
                encoder, self._encoder = self._encoder, None
                for buffer, offset, changed in self._arguments.changed():
                    self._queue.write_buffer(buffer, offset, changed)
                self._queue.submit([encoder.finish()])
                self._arguments.started()

    def marker(self) -> list[bool]:
        """An event that is reached when all work enqueued so far is done."""
        with guarded(f"{self.name}: work could not be started"):
            self.flush()
        return [False]

    def is_done(self, event: Any) -> bool:
        """Whether an event is reached, or a failing device has given it up."""
        self.wait(event)
        return True

    def wait(self, event: Any = None) -> None:
        """Blocks until an event, or until all work is done."""
        if event is not None and event[0]:
            return
        with self._lock, guarded(f"{self.name}: waiting for the device"):
            self._read((self._last, 0, 4))  # in order, so that all work is done
        if event is not None:
            event[0] = True

    # ---- times -----------------------------------------------------------------------------------

    def new_record(self) -> WebGPURecord:
        """A record of timestamps."""
        return WebGPURecord(self, self._wgpu, self._device, self._pipelines, self._period)

    @contextmanager
    def _timed(self, kind: Kind, nbytes: int) -> Iterator[None]:
        """A copy that is noted while recording."""
        record: WebGPURecord | None = self.record
        if record is None:
            yield
            return
        self._end_pass()
        timed = record.timed()
        record.mark(self._encode(), timed.writes(end=0))
        yield
        if kind == "from":  # the host has the bytes
            timed.end = perf_counter_ns()
        else:
            self._end_pass()
            record.mark(self._encode(), timed.writes(begin=1))
        if kind == "to":
            self.flush()  # so that the mark waits for no work that is encoded later
        record.copy(kind, nbytes, timed)
