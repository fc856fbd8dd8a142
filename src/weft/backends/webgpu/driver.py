"""All requests to a device: buffers, copies, kernels, waiting, and their failures."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import RLock
from time import perf_counter_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.backends.kernels import KernelDriver
from weft.backends.kernels.driver import FAULT_BYTES
from weft.backends.kernels.launch import Launch, View
from weft.backends.kernels.record import Kind
from weft.backends.kernels.windows import windowed
from weft.backends.webgpu.arguments import Arguments
from weft.backends.webgpu.devices import SUBGROUPS, TIMES, WIDE, Found
from weft.backends.webgpu.edges import Edge, Edges, split
from weft.backends.webgpu.launches import Binder, Graph, encoding
from weft.backends.webgpu.library import guarded, library, said
from weft.backends.webgpu.pipelines import Pipelines
from weft.backends.webgpu.readback import Readback
from weft.backends.webgpu.record import Timed, WebGPURecord
from weft.errors import DeviceError

_ALIGNMENT = 256
"""Bytes between the arguments of launches: what every device allows."""
_PIECE = 16 << 20
_UNSENT = 64 << 20
"""Maximum number of bytes of one copy from the host, and of all copies that the library may hold
until the device has done them."""


class WebGPUKernel:
    """A kernel with the arguments of later launches."""

    __slots__ = ("args", "defines", "file", "name")

    def __init__(self, file: str, defines: tuple[str, ...], name: str) -> None:
        self.file, self.defines, self.name = file, defines, name
        self.args: list[Any] = []

    def bind(self, args: Sequence[Any]) -> None:
        """Sets the arguments of later launches."""
        self.args = list(args)


class Driver(KernelDriver):
    """A device and its queue. Raises DeviceError where the device fails, OutOfMemoryError where it
    has no room."""

    def __init__(self, device: Found, name: str) -> None:
        super().__init__(name)
        self.device = device
        self._wgpu = library()
        self.errors = (self._wgpu.GPUError, RuntimeError)
        names = (
            "max-storage-buffers-per-shader-stage", "max-storage-buffer-binding-size",
            "max-buffer-size", "max-compute-workgroup-storage-size",
            "max-compute-invocations-per-workgroup", "max-compute-workgroup-size-x",
            "max-compute-workgroup-size-y",
        )  # fmt: skip
        with guarded(f"{name}: {device.name} could not be opened"):
            self._device = device.handle.request_device_sync(
                required_limits={key: device.limits[key] for key in names},
                required_features=[f for f in (WIDE, TIMES, SUBGROUPS) if f in device.features],
            )
        self._queue = self._device.queue
        if TIMES not in device.features:
            self.why_untimed = f"{device.name} has no feature {TIMES}"
        self._lock = RLock()
        self._tables: dict[bytes, Any] = {}
        self._encoder: Any = None
        self._pass: Any = None
        usage = self._wgpu.BufferUsage
        self._usage = usage.STORAGE | usage.COPY_SRC | usage.COPY_DST
        pipelines = Pipelines(name, self._device, device, self._wgpu.ShaderStage.COMPUTE)
        self._arguments = Arguments(self.create, _ALIGNMENT)
        self._binder = Binder(self._device, pipelines, self._arguments)
        self._encoding = encoding()
        self._writer = Edges(self._device, pipelines, self._arguments)
        self._edges: list[tuple[Any, Edge]] = []  # written before all other work that comes
        self._readback = Readback(self._device, usage.MAP_READ | usage.COPY_DST)
        self._last = self.create(4)
        most = device.max_binding
        self._binding = None if most == device.max_buffer else most
        self._unsent = 0
        self._pid = os.getpid()

    def guarded(self, what: str) -> AbstractContextManager[None]:
        """Turns errors of the library into a DeviceError that begins with `what`."""
        return guarded(what)

    def said(self, error: Exception) -> str:
        """The text of an error of the library, in a line."""
        return said(error)

    # ---- memory ----------------------------------------------------------------------------------

    def create(self, nbytes: int) -> Any:
        """A zeroed buffer; kernels may read it as vectors of 16 bytes."""
        with guarded(f"{self.name}: a buffer of {nbytes} bytes could not be created"):
            size = -(-max(nbytes, 16) // 16) * 16
            return self._device.create_buffer(size=size, usage=self._usage)

    def window(self, view: View) -> View:
        """The view in a window of its buffer, where the buffer is larger than a binding."""
        most = self._binding
        return view if most is None else windowed(view, view.buffer.size, most)

    def table(self, data: bytes) -> Any:
        """A small buffer that holds these bytes, sent once."""
        buffer = self._tables.get(data)
        if buffer is None:
            buffer = self._tables[data] = self.create(len(data))
            self.write(buffer, 0, np.frombuffer(data, np.uint8))
        return buffer

    def write(self, buffer: Any, offset: int, data: NDArray[np.uint8]) -> None:
        """Enqueues a copy from the host; `data` may change once this returns."""
        with self._lock, guarded(f"{self.name}: copy of {data.nbytes} bytes to the device"):
            begin, end = _words(offset, data.nbytes)
            if any(to is buffer and begin <= e.offset < end for to, e in self._edges):
                self._flush_all()
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
                        self._read((self._last, 0, 4))

    def _read(self, *ranges: tuple[Any, int, int]) -> list[NDArray[np.uint8]]:
        """Ranges of whole words (buffer, offset, bytes); all that was enqueued before is done and
        sent by then."""
        self._flush_all()
        found = self._readback.read(self._device.create_command_encoder(), ranges)
        self._unsent = 0
        return found

    def read(self, buffer: Any, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """Bytes of a buffer, once all work enqueued so far is done and found without fault, which
        is read with them."""
        if not nbytes or self._fault is None:
            return super().read(buffer, offset, nbytes)
        with self._lock, guarded(f"{self.name}: copy of {nbytes} bytes from the device"):
            start, end = _words(offset, nbytes)
            with self._timed("from", nbytes):
                data, fault = self._read(
                    (buffer, start, end - start), (self._fault, 0, FAULT_BYTES)
                )
        self.check_fault(fault)
        return data[offset - start : offset - start + nbytes]

    def read_bytes(self, buffer: Any, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """Bytes of a buffer, once all work enqueued so far is done."""
        if not nbytes:
            return np.empty(0, np.uint8)
        with self._lock, guarded(f"{self.name}: copy of {nbytes} bytes from the device"):
            start, end = _words(offset, nbytes)
            timed = nullcontext() if buffer is self._fault else self._timed("from", nbytes)
            with timed:
                (found,) = self._read((buffer, start, end - start))
            return found[offset - start : offset - start + nbytes]

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

    has_early = True

    def expect(self, launch: Launch) -> None:
        """Compiles the pipeline of a launch while other work goes on."""
        self._binder.expect(launch)

    def launch(self, *prepared: Any) -> Any:
        """Enqueues a kernel; returns its timestamps while recording."""
        (parts,) = prepared
        with self._lock:
            timed = self._begin_pass()
            self._encoding.encode(self._compute(), parts)
            return timed

    has_graphs = True

    def graph(self, launches: Sequence[tuple[Any, ...]]) -> Graph:
        """The launches as one object."""
        return Graph(launches)

    def start(self, graph: Graph) -> None:
        """Enqueues the launches of a graph."""
        with self._lock:
            self._encoding.encode(self._compute(), graph.dispatches)

    def _compute(self) -> Any:
        """The present compute pass."""
        if self._pass is None:
            self._pass = self._encode().begin_compute_pass()
        return self._pass

    def _begin_pass(self) -> Timed | None:
        """A new pass with timestamps while recording; None otherwise."""
        if self.record is None:
            return None
        self._end_pass()
        timed: Timed = self.record.timed()
        self._pass = self._encode().begin_compute_pass(timestamp_writes=timed.around())
        return timed

    def _encode(self) -> Any:
        if self._encoder is None:
            self._encoder = self._device.create_command_encoder()
            if self._edges:
                edges = [self._writer.ready(buffer, edge) for buffer, edge in self._edges]
                self._edges = []
                self._encoding.encode(self._compute(), edges)
                self._end_pass()
        return self._encoder

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
                self._send_arguments()
                self._queue.submit([encoder.finish()])
                self._arguments.started()

    def _flush_all(self) -> None:
        if self._edges:
            self._encode()
        self.flush()

    def _send_arguments(self) -> None:
        for buffer, offset, words in self._arguments.changed():
            self._queue.write_buffer(buffer, offset, words)

    def marker(self) -> Any:
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
        return WebGPURecord(self, self._wgpu, self._device)

    @contextmanager
    def _timed(self, kind: Kind, nbytes: int) -> Iterator[None]:
        """A copy that is noted while recording."""
        record: WebGPURecord | None = self.record
        if record is None:
            yield
            return
        self._end_pass()
        timed = record.timed()
        record.mark(self._encode(), timed.before())
        yield
        if kind == "from":  # the host has the bytes
            timed.end = perf_counter_ns()
        else:
            self._end_pass()
            record.mark(self._encode(), timed.behind())
        if kind == "to":
            self.flush()  # so that the mark waits for no work that is encoded later
        record.copy(kind, nbytes, timed)


def _words(offset: int, nbytes: int) -> tuple[int, int]:
    """The begin and the end of the whole words that hold some bytes."""
    return offset // 4 * 4, -(-(offset + nbytes) // 4) * 4
