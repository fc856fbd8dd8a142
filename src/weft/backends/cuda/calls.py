"""The calls of a CUDA device, which `bindings` sends to NVIDIA's driver.

A device has two lanes, each of which does its work in order: kernels are in the first, copies in
either. Only events order work of different lanes or devices. Addresses are numbers; kernels and
events are whatever the implementation makes of them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

KERNELS, COPIES = 0, 1
"""The lanes of a device."""

Bytes = NDArray[np.uint8]


class CudaError(Exception):
    """A call failed."""

    def __init__(self, why: str, no_memory: bool = False, sticky: bool = False) -> None:
        super().__init__(why)
        self.no_memory = no_memory
        """The device had too little memory."""
        self.sticky = sticky
        """All later calls will fail, too: a kernel broke the device's context."""


class Packed:
    """The parameters of a kernel as its launch takes them: an array of pointers to their bytes."""

    __slots__ = ("address", "count", "keep", "pointers")

    def __init__(self, params: Sequence[bytes]) -> None:
        starts, n = [], 0
        for param in params:
            n = -(-n // 16) * 16
            starts.append(n)
            n += len(param)
        data = ctypes.create_string_buffer(n + 16)
        base = -(-ctypes.addressof(data) // 16) * 16
        for start, param in zip(starts, params, strict=True):
            ctypes.memmove(base + start, param, len(param))
        self.count = len(params)
        self.pointers = (ctypes.c_void_p * max(1, len(params)))(*(base + at for at in starts))
        self.keep = data
        self.address = ctypes.addressof(self.pointers)


class Launching(NamedTuple):
    """A kernel over a grid, with all it takes."""

    function: Any
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    """Bytes of dynamic shared memory."""
    params: Packed
    name: str
    keep: Any
    """Buffers that must live as long as this."""


class Graph(Protocol):
    """Launches in a row that start as one."""

    def run(self) -> None:
        """Enqueues all."""

    def change(self, number: int, launching: Launching) -> None:
        """Replaces a launch in later runs."""


class Calls(Protocol):
    """A device. Every call may raise CudaError; those that only enqueue may report earlier work."""

    architecture: int
    """Ten times the compute capability, e.g. 90."""

    def allocate(self, nbytes: int) -> int:
        """The address of new memory."""

    def free(self, address: int) -> None:
        """Gives memory back once the work enqueued so far is done."""

    def free_bytes(self) -> int:
        """The free bytes of the device."""

    def pinned(self, nbytes: int) -> Bytes:
        """Host memory that copies of all devices read and write by themselves; it lives as long as
        the device."""

    def send(self, address: int, data: Bytes, lane: int = KERNELS) -> None:
        """Enqueues a copy from pinned memory, which must not change until it is done."""

    def fetch(self, address: int, out: Bytes, lane: int = KERNELS) -> None:
        """Enqueues a copy to pinned memory, which must not be read until it is done."""

    def copy(self, to: int, source: int, nbytes: int, lane: int = KERNELS) -> None:
        """Enqueues a copy within the device."""

    def reaches(self, other: Calls) -> bool:
        """True if `copy_from` and `order` take the other device."""

    def copy_from(self, other: Any, to: int, source: int, nbytes: int, lane: int = KERNELS) -> None:
        """Enqueues a copy from memory of another device."""

    def clear(self, address: int, n_words: int) -> None:
        """Enqueues zeros for words of 4 bytes."""

    def function(self, file: str, defines: tuple[str, ...], name: str) -> Any:
        """A kernel, built where that has not been done; raises DeviceError where it cannot be."""

    def allow_shared(self, function: Any, nbytes: int) -> None:
        """Lets a kernel have so much dynamic shared memory, beyond 48 KiB."""

    def launch(self, launching: Launching) -> None:
        """Enqueues a kernel."""

    def graph(self, launches: Sequence[Launching]) -> Graph:
        """The launches as a graph."""

    def event(self, timed: bool, lane: int = KERNELS) -> Any:
        """An event behind all work of a lane so far."""

    def order(self, event: Any, lane: int = KERNELS) -> None:
        """Lets later work of a lane start only after an event of any lane or device."""

    def is_done(self, event: Any) -> bool:
        """Whether an event is reached."""

    def wait(self, event: Any) -> None:
        """Blocks until an event is reached."""

    def synchronize(self) -> None:
        """Blocks until all work is done."""

    def seconds(self, first: Any, second: Any) -> float:
        """The time between two timed events."""
