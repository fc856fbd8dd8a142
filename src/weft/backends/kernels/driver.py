"""The interface of a device with kernels: buffers, copies, kernels, events and failures.

A device has one queue, in order: a command starts when all before it are done. So work enqueued
from any thread sees the results of work enqueued before, and only the host ever waits. A device may
have a second queue for copies (`CopiesMeanwhile`), which only events order with the first.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from weft.backends.kernels.compiling import Compiling
from weft.backends.kernels.enums import Fault
from weft.backends.kernels.launch import Launch, View
from weft.errors import DeviceError

FAULT_BYTES = 24
"""Bytes of the buffer in which kernels record an index out of range."""


class Kernel(Protocol):
    """A kernel whose arguments no other caller sets."""

    name: str

    def bind(self, args: Sequence[Any]) -> None:
        """Sets the arguments of later launches: buffers of the driver, `bytes`, and `Local`."""


class KernelDriver(ABC):
    """All requests to a device. Raises DeviceError where it fails, OutOfMemoryError where it has no
    room.

    A subclass has the abstract methods, and is one of `MakesGraphs` and `CopiesMeanwhile` where the
    device can do that."""

    name: str
    """The device's name in `--devices`."""
    record: Any = None
    """The record of events, while recording."""
    errors: type[Exception] | tuple[type[Exception], ...] = ()
    """The exceptions that the library raises when `launch` or `flush` fails."""
    compiles_early = False
    """`expect` begins to compile, while other work goes on."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.compiling = Compiling(name)
        """The kernels that somebody has asked for."""
        self._recording = 0
        self._fault: Any = None
        self._watched: dict[str, int] = {}
        self._scratch: dict[int, tuple[int, Any]] = {}
        self._tables: dict[bytes, Any] = {}

    @abstractmethod
    def guarded(self, what: str) -> AbstractContextManager[None]:
        """Turns errors of the library into a DeviceError that begins with `what`; lack of memory
        becomes an OutOfMemoryError."""

    def said(self, error: Exception) -> str:
        """The text of an error of the library, in a line."""
        return " ".join(str(error).split())

    # ---- memory ----------------------------------------------------------------------------------

    @abstractmethod
    def create(self, nbytes: int) -> Any:
        """A zeroed buffer."""

    def table(self, data: bytes) -> Any:
        """A small buffer that holds these bytes, sent once."""
        buffer = self._tables.get(data)
        if buffer is None:
            buffer = self.create(len(data))
            self.write(buffer, 0, np.frombuffer(data, np.uint8))
            self._tables[data] = buffer
        return buffer

    def scratch(self, slot: int, nbytes: int) -> Any:
        """Memory of a slot, in which kernels of one step hand each other something; larger when it
        was too small. Launches keep what they have."""
        size, buffer = self._scratch.get(slot, (-1, None))
        if size < nbytes:
            buffer = self.create(nbytes)
            self._scratch[slot] = nbytes, buffer
        return buffer

    def window(self, view: View) -> View:
        """The view as kernels get it: in a window of its buffer where they may not have all of
        it."""
        return view

    @abstractmethod
    def write(self, buffer: Any, offset: int, data: NDArray[np.uint8]) -> None:
        """Enqueues a copy from the host; `data` may change once this returns."""

    @abstractmethod
    def read_bytes(self, buffer: Any, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """Bytes of a buffer, once all work enqueued so far is done."""

    @abstractmethod
    def copy(self, to: Any, to_offset: int, source: Any, offset: int, nbytes: int) -> None:
        """Enqueues a copy within the device."""

    def copy_across(
        self, to: Any, to_offset: int, other: KernelDriver, source: Any, offset: int, nbytes: int
    ) -> bool:
        """Enqueues a copy from another device's buffer; False (the default): by way of the host."""
        return False

    @abstractmethod
    def clear(self, buffer: Any, nbytes: int) -> None:
        """Enqueues zeros for the first bytes of a buffer, a multiple of 4."""

    # ---- kernels ---------------------------------------------------------------------------------

    @abstractmethod
    def expect(self, launch: Launch) -> None:
        """Counts the kernel of a launch that comes, or may come, among those asked for
        (`compiling`)."""

    @abstractmethod
    def kernel(self, file: str, defines: tuple[str, ...], name: str) -> Kernel:
        """A kernel of a file, built where that has not been done; raises DeviceError naming file,
        line and device when the source does not build."""

    @abstractmethod
    def prepared(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        group: tuple[int, ...],
        start: tuple[int, ...] | None,
    ) -> tuple[Any, ...]:
        """The arguments of `launch`, over `grid` groups of `group` items of which the first item is
        at `start`; with the kernel's present arguments."""

    @abstractmethod
    def launch(self, *prepared: Any) -> Any:
        """Enqueues a kernel and returns its event (None unless it records)."""

    @abstractmethod
    def flush(self) -> None:
        """Starts the work that is enqueued."""

    # ---- events ----------------------------------------------------------------------------------

    @abstractmethod
    def marker(self) -> Any:
        """An event that is reached when all work enqueued so far is done."""

    @abstractmethod
    def is_done(self, event: Any) -> bool:
        """Whether an event is reached, or a failing device has given it up."""

    @abstractmethod
    def wait(self, event: Any = None) -> None:
        """Blocks until an event, or until all work is done."""

    def reaches(self, other: KernelDriver) -> bool:
        """True if this device's queues wait for events of the other without the host
        (`CopiesMeanwhile.order`)."""
        return False

    # ---- times -----------------------------------------------------------------------------------

    why_untimed = ""
    """Why the device tells no times of kernels; empty where it does."""

    def record_times(self, on: bool) -> None:
        """Records events from now on; ends with as many calls with False. Waits for the device."""
        recording = self._recording + (1 if on else -1)
        if not on:
            self._recording = recording
        if recording == on and not self.why_untimed:
            if on:
                self.wait()
                self.record = self.new_record()
            else:
                self.record = None
                with suppress(DeviceError):  # whoever uses a lost device next is told
                    self.wait()
        self._recording = recording

    @abstractmethod
    def new_record(self) -> Any:
        """A record of events; called where the device tells times."""

    # ---- indices ---------------------------------------------------------------------------------

    @property
    def fault(self) -> Any:
        """The buffer in which kernels record an index that is out of range."""
        if self._fault is None:
            self._fault = self.create(FAULT_BYTES)
        return self._fault

    def watch(self, description: str) -> int:
        """A number for a step that looks things up, with which `check` can name it."""
        return self._watched.setdefault(description, len(self._watched))

    def read(self, buffer: Any, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """Bytes of a buffer, once all work enqueued so far is done and found without fault."""
        out = self.read_bytes(buffer, offset, nbytes)
        self.check()
        return out

    def check(self) -> None:
        """Raises DeviceError when a finished kernel met an index out of range."""
        if self._fault is None:
            return
        with self.guarded(f"{self.name}: reading the fault of a kernel"):
            out = self.read_bytes(self._fault, 0, FAULT_BYTES)
        self.check_fault(out)

    def check_fault(self, fault: NDArray[np.uint8]) -> None:
        """Raises DeviceError for the bytes of a fault, unless they are 0."""
        step, kind, index, n = struct.unpack("<2i2q", fault.tobytes())
        if step:
            with self.guarded(f"{self.name}: clearing the fault of a kernel"):
                self.clear(self._fault, FAULT_BYTES)
            where = next(text for text, number in self._watched.items() if number == step - 1)
            why = {
                Fault.BAD_INDEX: f"index {index} is outside 0..{n - 1}",
                Fault.BAD_WRAPPED_INDEX: f"index {index} is outside -{n} .. {n - 1}",
                Fault.DIVISION_BY_ZERO: "an integer is divided by 0",
            }[Fault(kind)]
            raise DeviceError(f"{self.name}: {where}: {why}")


class MakesGraphs(ABC):
    """A driver of a device that starts launches in a row as one object."""

    @abstractmethod
    def graph(self, launches: Sequence[tuple[Any, ...]]) -> Any:
        """The launches as one object, with `change(number, *launch)`."""

    @abstractmethod
    def start(self, graph: Any) -> None:
        """Enqueues a graph."""


class CopiesMeanwhile(ABC):
    """A driver of a device with a queue for copies, number 1, beside the queue of kernels."""

    @abstractmethod
    def in_queue(self, lane: int) -> AbstractContextManager[None]:
        """This thread's work goes into a queue by number, in no order with the other."""

    @abstractmethod
    def read_later(self, buffer: Any, offset: int, nbytes: int) -> Callable[[], NDArray[np.uint8]]:
        """`KernelDriver.read` behind the work so far: the function that it returns waits for the
        bytes."""

    @abstractmethod
    def order(self, event: Any, lane: int) -> None:
        """Lets later work of a queue start only after an event, without the host."""
