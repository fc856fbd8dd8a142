"""A CUDA device that is this processor: all calls are done when they return."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.cuda_shim.library import ShimKernels, compile_shim
from weft.backends.cuda.assembly import source_of
from weft.backends.cuda.calls import KERNELS, CudaError, Launching
from weft.errors import DeviceError

__all__ = ["ShimCalls"]

_ZONE = 256
"""Bytes around a block that belong to nobody, so that a kernel that leaves its block is caught."""


class ShimCalls:
    """A device with memory of this process. A kernel that touches memory that is not its own, or
    whose threads race, fails as on a GPU: the device is lost."""

    architecture = 80

    def __init__(self, number: int, checks: bool = True) -> None:
        self._capacity = 16 << 30
        self._checks = checks
        self._blocks: dict[int, NDArray[np.uint8]] = {}
        self._used = 0
        self._kernels: dict[tuple[str, tuple[str, ...]], ShimKernels] = {}

    def allocate(self, nbytes: int) -> int:
        """The address of a block, a multiple of 256."""
        if self._used + nbytes > self._capacity:
            raise CudaError("CUDA_ERROR_OUT_OF_MEMORY", no_memory=True)
        raw = np.empty(nbytes + 3 * _ZONE, np.uint8)
        address = -(-(raw.ctypes.data + _ZONE) // _ZONE) * _ZONE
        start = address - raw.ctypes.data
        self._blocks[address] = raw[start : start + nbytes]
        self._used += nbytes
        return address

    def free(self, address: int) -> None:
        """Gives a block back."""
        self._used -= self._blocks.pop(address).nbytes

    def free_bytes(self) -> int:
        """The bytes that are left."""
        return self._capacity - self._used

    def pinned(self, nbytes: int) -> NDArray[np.uint8]:
        """Host memory."""
        return np.empty(nbytes, np.uint8)

    def _at(self, address: int, nbytes: int) -> NDArray[np.uint8]:
        for start, block in self._blocks.items():
            if start <= address and address + nbytes <= start + block.nbytes:
                return block[address - start : address - start + nbytes]
        raise CudaError("CUDA_ERROR_INVALID_VALUE")

    def send(self, address: int, data: NDArray[np.uint8], lane: int = KERNELS) -> None:
        """Copies to the device."""
        self._at(address, data.nbytes)[:] = data

    def fetch(self, address: int, out: NDArray[np.uint8], lane: int = KERNELS) -> None:
        """Copies to the host."""
        out[:] = self._at(address, out.nbytes)

    def copy(self, to: int, source: int, nbytes: int, lane: int = KERNELS) -> None:
        """Copies within the device."""
        self._at(to, nbytes)[:] = self._at(source, nbytes).copy()

    def reaches(self, other: object) -> bool:
        """Whether the other is such a device, too."""
        return isinstance(other, ShimCalls)

    def copy_from(
        self, other: ShimCalls, to: int, source: int, nbytes: int, lane: int = KERNELS
    ) -> None:
        """Copies from another device of this kind."""
        self._at(to, nbytes)[:] = other._at(source, nbytes)

    def clear(self, address: int, n_words: int) -> None:
        """Writes zeros."""
        self._at(address, 4 * n_words)[:] = 0

    def function(self, file: str, defines: tuple[str, ...], name: str) -> Any:
        """A kernel of a file, compiled for this processor."""
        kernels = self._kernels.get((file, defines))
        if kernels is None:
            options = (*defines, f"SHIM_ARCH={10 * self.architecture}")
            kernels = compile_shim(source_of(file, defines), options, self._checks)
            self._kernels[file, defines] = kernels
        return kernels.entry(name)

    def allow_shared(self, function: Any, nbytes: int) -> None:
        """Shared memory is as large as asked for."""

    def launch(self, launching: Launching) -> None:
        """Runs a kernel."""
        known = [(address, block.nbytes, True) for address, block in self._blocks.items()]
        known += [(b.address, b.nbytes, False) for b in launching.keep if b.keep is not None]
        try:
            launching.function(
                launching.grid, launching.block, launching.shared, launching.params.address, known
            )
        except DeviceError as error:
            raise CudaError(f"CUDA_ERROR_ILLEGAL_ADDRESS: {error}", sticky=True) from error

    def graph(self, launches: Sequence[Launching]) -> ShimGraph:
        """The launches as a list."""
        return ShimGraph(self, list(launches))

    def event(self, timed: bool, lane: int = KERNELS) -> float:
        """The time, as all work is done."""
        return perf_counter()

    def order(self, event: Any, lane: int = KERNELS) -> None:
        """Does nothing, as all events are reached."""

    def is_done(self, event: Any) -> bool:
        """Always true."""
        return True

    def wait(self, event: Any) -> None:
        """Returns at once."""

    def synchronize(self) -> None:
        """Returns at once."""

    def seconds(self, first: float, second: float) -> float:
        """The difference of two events."""
        return second - first


class ShimGraph:
    """A recorded list of launches."""

    def __init__(self, calls: ShimCalls, launches: list[Launching]) -> None:
        self._calls = calls
        self._launches = launches

    def run(self) -> None:
        """Runs all, one after another."""
        for launching in self._launches:
            self._calls.launch(launching)

    def change(self, number: int, launching: Launching) -> None:
        """Replaces a launch."""
        self._launches[number] = launching
