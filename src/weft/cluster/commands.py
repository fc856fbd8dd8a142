"""The commands of a client: what they do to the memory, weights and programs that it has here.

Every value comes from the client and is checked. A command that fails raises; `session.py` tells
the client.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.backends.base import Executable, NativeRun
from weft.backends.memory import HostMemory, Memory
from weft.backends.remote.encode import decoded, whole
from weft.cluster.lent import Device, Lender, answered
from weft.cluster.run_times import RunTimes
from weft.cluster.streams import Inlet, Outlet
from weft.cluster.weights import Incoming
from weft.compiler.check import check_program
from weft.dtype import dtype_from_id
from weft.errors import AbortedError, DeviceError, LinkError, ProgramError, WeftError
from weft.program import LAYOUTS, Program
from weft.records import dataclass

MOST = 1 << 62
"""Largest number that a client may send."""
_OBJECTS = 1_000_000
"""Maximum number of blocks, and of executables, of a client."""


@dataclass(slots=True)
class _Block:
    memory: Memory
    device: Device
    layout: str = "rows"
    charged: int = 0
    """Bytes of memory that count towards the worker's limit."""


@dataclass(slots=True)
class Lowered:
    """A split of a program that a device here has taken."""

    executable: Executable
    device: Device
    program: Program
    label: str
    stopped: tuple[int, int] = (1, 0)
    """The first and the last of the runs that the client has cancelled."""

    def wants(self, run: int) -> bool:
        """True unless the run is cancelled."""
        return not self.stopped[0] <= run <= self.stopped[1]


class Commands:
    """The objects of one client on this machine, and the commands that change them."""

    def __init__(self, worker: Lender) -> None:
        self._worker = worker
        self._blocks: dict[int, _Block] = {}
        self._lowered: dict[int, Lowered] = {}
        self._inlets: dict[int, tuple[str, Inlet]] = {}
        self._outlets: dict[str, Outlet] = {}
        self._coming: dict[int, Incoming] = {}
        self._ended = False
        self._running: tuple[Lowered, int] | None = None
        self._stopping = threading.Lock()
        self._times: RunTimes | None = None
        self._handlers: dict[str, Callable[..., Any]] = {
            name.removeprefix("_do_"): getattr(self, name)
            for name in dir(type(self))
            if name.startswith("_do_")
        }

    def _free_all(self) -> None:
        for number in list(self._lowered):
            self._do_drop([], number)
        for number in list(self._blocks):
            self._do_free([], number)
        for secret, _ in self._inlets.values():
            self._worker.inlets.pop(secret, None)
        for coming in self._coming.values():
            coming.drop()

    # ---- questions -------------------------------------------------------------------------------

    def _do_ask(self, arrays: list[Any], device: object, question: object, *values: Any) -> Any:
        return answered(self._device(device).backend, question, values)

    # ---- memory ----------------------------------------------------------------------------------

    def _device(self, number: object) -> Device:
        devices = self._worker.devices
        return devices[whole(number, 0, len(devices) - 1, "a device")]

    def _block(self, number: object) -> _Block:
        found = self._blocks.get(whole(number, 0, MOST, "a block"))
        if found is None:
            raise DeviceError(f"there is no block {number}")
        return found

    def _add(self, number: object, block: _Block) -> None:
        n = whole(number, 0, MOST, "a block")
        if n in self._blocks or len(self._blocks) >= _OBJECTS:
            raise DeviceError(f"block {n} exists, or there are too many")
        self._blocks[n] = block

    def _do_nothing(self, arrays: list[Any]) -> None:
        return None

    def _do_alloc(
        self, arrays: list[Any], number: object, device: object, nbytes: object, raw: object = False
    ) -> None:
        n = whole(nbytes, 0, MOST, "bytes")
        where = self._device(device)
        self._worker.charge(n)
        try:
            if raw is True:
                memory: Memory = HostMemory.zeros(n)
            else:
                memory = where.backend.buffer_type.allocate(n)
            self._add(number, _Block(memory, where, charged=n))
        except BaseException:
            self._worker.charge(-n)
            raise

    def _do_left(self, arrays: list[Any], device: object) -> int | None:
        return self._device(device).left(self._worker.left)

    def _do_free(self, arrays: list[Any], number: int) -> None:
        block = self._blocks.pop(number, None)
        if block is not None:
            self._worker.charge(-block.charged)

    def _do_write(self, arrays: list[Any], number: object, offset: object) -> None:
        if not arrays:
            raise DeviceError("write without bytes")
        data = np.frombuffer(arrays.pop(0), np.uint8)
        self._block(number).memory.write(whole(offset, 0, MOST, "an offset"), data)

    def _do_read(
        self, arrays: list[Any], number: object, offset: object, nbytes: object
    ) -> NDArray[np.uint8]:
        n = whole(nbytes, 0, 1 << 30, "bytes")
        return self._block(number).memory.read(whole(offset, 0, MOST, "an offset"), n)

    def _do_copy(
        self, arrays: list[Any], to: object, offset: object, source: object, start: object,
        nbytes: object,
    ) -> None:  # fmt: skip
        n = whole(nbytes, 0, MOST, "bytes")
        data = self._bytes(source, start, n)
        self._block(to).memory.write(whole(offset, 0, MOST, "an offset"), data)

    def _bytes(self, number: object, offset: object, n: int) -> NDArray[np.uint8]:
        memory = self._block(number).memory
        at = whole(offset, 0, MOST, "an offset")
        host = memory.host()
        if host is None:
            return memory.read(at, n)
        if at + n > host.nbytes:
            raise DeviceError(f"bytes {at}..{at + n} of a block of {host.nbytes} bytes")
        return host[at : at + n]

    # ---- weights ---------------------------------------------------------------------------------

    def _do_has(self, arrays: list[Any], size: object) -> bool:
        return self._worker.weights.has_size(whole(size, 1, MOST, "a size"))

    def _do_map(
        self, arrays: list[Any], number: object, device: object, sha: str, size: object,
        offset: object, nbytes: object, raw: object = False,
    ) -> bool:  # fmt: skip
        where, n = self._device(device), whole(nbytes, 1, MOST, "bytes")
        at, whole_size = whole(offset, 0, MOST, "an offset"), whole(size, 1, MOST, "a size")
        return self._adopt(number, where, self._worker.weights.part(sha, whole_size, at, n), raw)

    def _do_stored(
        self, arrays: list[Any], number: object, device: object, sha: str, nbytes: object,
        raw: object = False,
    ) -> bool:  # fmt: skip
        n = whole(nbytes, 1, MOST, "bytes")
        return self._adopt(number, self._device(device), self._worker.weights.stored(sha, n), raw)

    def _adopt(
        self, number: object, device: Device, data: NDArray[np.uint8] | None, raw: object
    ) -> bool:
        if data is None:
            return False
        if raw is True or device.backend.buffer_type.is_host:
            self._add(number, _Block(HostMemory(data), device))
            return True
        self._worker.charge(data.nbytes)
        try:
            memory = device.backend.buffer_type.allocate(data.nbytes)
            memory.write(0, data)
            self._add(number, _Block(memory, device, charged=data.nbytes))
        except BaseException:
            self._worker.charge(-data.nbytes)
            raise
        return True

    def _do_store(
        self, arrays: list[Any], number: object, sha: str, nbytes: object, at: object
    ) -> None:
        if not arrays:
            raise DeviceError("store without bytes")
        piece = np.frombuffer(arrays.pop(0), np.uint8)
        n = whole(number, 0, MOST, "a block")
        coming = self._coming.get(n)
        if coming is None:
            if len(self._coming) >= 16:
                raise DeviceError("too many tensors are coming at once")
            coming = self._worker.weights.incoming(sha, whole(nbytes, 1, MOST, "bytes"))
            self._coming[n] = coming
        if coming.sha != sha or coming.at != whole(at, 0, MOST, "an offset"):
            raise DeviceError("pieces of a tensor came in another order")
        if coming.add(piece):
            self._worker.weights.store(self._coming.pop(n))

    def _do_load(
        self, arrays: list[Any], number: object, device: object, source: object, layout: object,
        type_id: object, sizes: object,
    ) -> None:  # fmt: skip
        where, raw = self._device(device), self._block(source)
        dtype = dtype_from_id(whole(type_id, 0, 1 << 16, "a type"))
        if dtype is None or not isinstance(sizes, list) or len(sizes) != 4:
            raise DeviceError("weights have a type and four sizes")
        ne = [whole(n, 1, 1 << 40, "a size") for n in sizes]
        if layout not in LAYOUTS or raw.device is not where or raw.layout != "rows":
            raise DeviceError(f"block {source} cannot be loaded as {str(layout)[:40]}")
        host = raw.memory.host()
        if host is None or where.weights is None:
            raise DeviceError(f"{where.name} has no memory for weights in another layout")
        if ne[0] % dtype.block or host.nbytes != (
            dtype.row_bytes(ne[0]) * ne[1] * ne[2] * ne[3] + dtype.tail
        ):
            raise DeviceError(f"a tensor of {dtype.name} {ne} does not have {host.nbytes} bytes")
        memory_type = where.weights(layout)
        self._worker.charge(0 if layout == "ordered" else host.nbytes)
        charged = 0 if layout == "ordered" else host.nbytes
        try:
            with where.lock:
                memory = memory_type.load(where.shared(host), dtype, tuple(ne))
            self._add(number, _Block(memory, where, str(layout), charged))
        except BaseException:
            self._worker.charge(-charged)
            raise

    # ---- programs --------------------------------------------------------------------------------

    def _do_lower(
        self, arrays: list[Any], number: object, device: object, data: object, blocks: object
    ) -> None:
        where, n = self._device(device), whole(number, 0, MOST, "a program's number")
        if n in self._lowered or len(self._lowered) >= _OBJECTS:
            raise DeviceError(f"program {n} exists, or there are too many")
        program = decoded(data, where.backend.buffer_type, where.backend.name)
        if not isinstance(blocks, list) or len(blocks) != len(program.buffers):
            raise ProgramError("a program has as many blocks as buffers")
        used = [self._block(b) for b in blocks]
        check_program(program)
        for i, (spec, block) in enumerate(zip(program.buffers, used, strict=True)):
            if block.device is not where or block.memory.nbytes < spec.size:
                raise ProgramError(f"buffer {i} is not in a block of {spec.size} bytes there")
        for t in program.tensors:
            if used[t.buffer].layout != t.layout and used[t.buffer].layout != "ordered":
                raise ProgramError(f"{t.name} is {t.layout}, its block {used[t.buffer].layout}")
        executable = where.backend.lower(program, 0, [b.memory for b in used])
        self._lowered[n] = Lowered(executable, where, program, _label(program, where.name))

    def _do_run(self, arrays: list[Any], number: int, run: object, *values: object) -> None:
        lowered = self._lowered.get(number)
        if lowered is None:
            raise DeviceError(f"there is no program {number}")
        n = whole(run, 1, MOST, "a run's number")
        symbols = lowered.program.symbols.values()
        if len(values) != len(symbols):
            raise DeviceError(f"{lowered.label} takes {len(symbols)} values")
        given = {
            s.name: whole(v, s.min, s.max, s.name) for s, v in zip(symbols, values, strict=True)
        }
        executable = lowered.executable
        with lowered.device.lock:
            with self._stopping:
                if self._ended or not lowered.wants(n):
                    if self._times is not None:
                        self._times.skip()
                    return
                self._running = lowered, n
            try:
                if self._times is not None:
                    self._times.run(executable, given, len(lowered.program.splits[0].steps))
                else:
                    executable.run(given)
            except AbortedError:
                return  # the client has said so
            except WeftError as error:
                raise type(error)(f"{lowered.label}: {error}") from error
            finally:
                with self._stopping:
                    self._running = None
                if isinstance(executable, NativeRun):
                    executable.clear_abort()

    def stop(self, number: object, first: object, last: object) -> None:
        """Ends runs of a program, by their numbers: the one under way between two pieces of work,
        and those that wait before they begin. Called while another thread does commands."""
        lowered = self._lowered.get(whole(number, 0, MOST, "a program's number"))
        if lowered is None:
            return
        with self._stopping:
            lowered.stopped = whole(first, 1, MOST, "a run"), whole(last, 1, MOST, "a run")
            if self._running is not None:
                running, n = self._running
                if not running.wants(n):
                    abort(running)

    def _do_record(self, arrays: list[Any], on: object) -> None:
        self._times = RunTimes() if on else None

    def _do_spans(self, arrays: list[Any]) -> NDArray[np.uint8]:
        return np.zeros(0, np.uint8) if self._times is None else self._times.taken()

    def _do_drop(self, arrays: list[Any], number: int) -> None:
        self._lowered.pop(number, None)

    # ---- copies from worker to worker ------------------------------------------------------------

    def _do_inlet(self, arrays: list[Any], number: object, secret: object, source: object) -> None:
        if not isinstance(secret, str) or not 16 <= len(secret) <= 64 or len(self._inlets) >= 256:
            raise DeviceError("a stream has a secret of 16 to 64 characters")
        if secret in self._worker.inlets:
            raise DeviceError("this stream exists")
        inlet = Inlet(str(source)[:200])
        self._inlets[whole(number, 0, MOST, "a stream")] = secret, inlet
        self._worker.inlets[secret] = inlet

    def _do_outlet(
        self, arrays: list[Any], secret: str, host: object, port: object, target: object
    ) -> bool:
        if not isinstance(host, str) or len(host) > 255 or len(self._outlets) >= 256:
            raise DeviceError("a stream goes to a host")
        address = (host, whole(port, 1, 65535, "a port"))
        worker = self._worker
        try:
            self._outlets[secret] = Outlet(
                secret, address, worker.key, worker.facts, str(target)[:200]
            )
        except LinkError:
            return False
        return True

    def _do_send(
        self, arrays: list[Any], secret: str, number: int, block: object, offset: object,
        nbytes: object,
    ) -> None:  # fmt: skip
        outlet = self._outlets[secret]
        outlet.send(number, self._bytes(block, offset, whole(nbytes, 0, MOST, "bytes")))

    def _do_take(
        self, arrays: list[Any], stream: int, number: int, block: object, offset: object,
        nbytes: object,
    ) -> None:  # fmt: skip
        n = whole(nbytes, 0, MOST, "bytes")
        data = np.frombuffer(self._inlets[stream][1].take(number), np.uint8)
        if data.nbytes != n:
            raise DeviceError(f"{data.nbytes} bytes came where {n} were due")
        self._block(block).memory.write(whole(offset, 0, MOST, "an offset"), data)


def abort(running: Lowered) -> None:
    """Ends the run under way between two pieces of work, if its device can."""
    if isinstance(running.executable, NativeRun):
        running.executable.abort()


def _label(program: Program, device: str) -> str:
    names = [program.tensors[step.dst].name for step in program.splits[0].steps]
    return f"{device} (nodes {names[0]} .. {names[-1]})" if names else device
