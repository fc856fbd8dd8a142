"""A GPU through NVIDIA's driver, by cuda-bindings."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from ctypes import c_uint8
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.backends.cuda.builds import Builds
from weft.backends.cuda.calls import Launching
from weft.backends.cuda.library import called, driver

__all__ = ["DriverCalls"]

_current = threading.local()
"""The context that this thread's calls go to, as far as weft has set it."""


class DriverCalls:
    """The primary context of a GPU, which all of a process shares, and a stream of its own."""

    def __init__(self, number: int) -> None:
        cu = self._cu = driver()
        self._handle = called(cu.cuDeviceGet(number))
        self._context = called(cu.cuDevicePrimaryCtxRetain(self._handle))
        self._enter()
        attribute = cu.CUdevice_attribute
        major, minor = (
            called(cu.cuDeviceGetAttribute(a, self._handle))
            for a in (
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            )
        )
        self.architecture = 10 * major + minor
        self.builds = Builds(self.architecture)
        self._stream = called(cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING))
        self._modules: dict[tuple[str, tuple[str, ...]], Any] = {}

    def _enter(self) -> Any:
        """Makes this thread's calls go to the device."""
        if getattr(_current, "context", None) is not self._context:
            called(self._cu.cuCtxSetCurrent(self._context))
            _current.context = self._context
        return self._cu

    # ---- memory ----------------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> int:
        """The address of new memory."""
        return int(called(self._enter().cuMemAlloc(nbytes)))

    def free(self, address: int) -> None:
        """Gives memory back; the driver waits for work that may use it."""
        called(self._enter().cuMemFree(address))

    def free_bytes(self) -> int:
        """The bytes of the device that nobody uses."""
        free, _ = called(self._enter().cuMemGetInfo())
        return int(free)

    def pinned(self, nbytes: int) -> NDArray[np.uint8]:
        """Page-locked memory of the host."""
        address = int(called(self._enter().cuMemHostAlloc(nbytes, 0)))
        return np.ctypeslib.as_array((c_uint8 * nbytes).from_address(address))

    def send(self, address: int, data: NDArray[np.uint8]) -> None:
        """Enqueues a copy from pinned memory."""
        cu = self._enter()
        called(cu.cuMemcpyHtoDAsync(address, data.ctypes.data, data.nbytes, self._stream))

    def fetch(self, address: int, out: NDArray[np.uint8]) -> None:
        """Copies to the host once all work is done."""
        cu = self._enter()
        called(cu.cuMemcpyDtoHAsync(out.ctypes.data, address, out.nbytes, self._stream))
        called(cu.cuStreamSynchronize(self._stream))

    def copy(self, to: int, source: int, nbytes: int) -> None:
        """Enqueues a copy within the device."""
        called(self._enter().cuMemcpyDtoDAsync(to, source, nbytes, self._stream))

    def clear(self, address: int, n_words: int) -> None:
        """Enqueues zeros."""
        called(self._enter().cuMemsetD32Async(address, 0, n_words, self._stream))

    # ---- kernels ---------------------------------------------------------------------------------

    def function(self, file: str, defines: tuple[str, ...], name: str) -> Any:
        """A kernel of a file."""
        cu = self._enter()
        module = self._modules.get((file, defines))
        if module is None:
            module = called(cu.cuModuleLoadData(self.builds.image(file, defines)))
            self._modules[file, defines] = module
        return called(cu.cuModuleGetFunction(module, name.encode()))

    def allow_shared(self, function: Any, nbytes: int) -> None:
        """Lets a kernel have so much dynamic shared memory."""
        cu = self._enter()
        which = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        called(cu.cuFuncSetAttribute(function, which, nbytes))

    def launch(self, launching: Launching) -> None:
        """Enqueues a kernel."""
        function, grid, block, shared, params, _, _ = launching
        called(
            self._enter().cuLaunchKernel(
                function, *grid, *block, shared, self._stream, params.address, 0
            )
        )

    def graph(self, launches: Sequence[Launching]) -> DriverGraph:
        """The launches as a graph, each behind the one before."""
        return DriverGraph(self._enter(), self, self._stream, launches)

    # ---- events ----------------------------------------------------------------------------------

    def event(self, timed: bool) -> Any:
        """An event behind all work enqueued so far."""
        cu = self._enter()
        flags = cu.CUevent_flags
        plain = flags.CU_EVENT_DEFAULT if timed else flags.CU_EVENT_DISABLE_TIMING
        event = _Event(cu, called(cu.cuEventCreate(plain)))
        called(cu.cuEventRecord(event.handle, self._stream))
        return event

    def is_done(self, event: Any) -> bool:
        """Whether an event is reached."""
        answer = self._enter().cuEventQuery(event.handle)
        if getattr(answer[0], "name", "") == "CUDA_ERROR_NOT_READY":
            return False
        called(answer)
        return True

    def wait(self, event: Any) -> None:
        """Blocks until an event is reached."""
        called(self._enter().cuEventSynchronize(event.handle))

    def synchronize(self) -> None:
        """Blocks until all work is done."""
        called(self._enter().cuStreamSynchronize(self._stream))

    def seconds(self, first: Any, second: Any) -> float:
        """The time between two timed events."""
        return float(called(self._enter().cuEventElapsedTime(first.handle, second.handle))) / 1000


class _Event:
    """An event of the driver's, given back with this object."""

    __slots__ = ("_cu", "handle")

    def __init__(self, cu: Any, handle: Any) -> None:
        self._cu = cu
        self.handle = handle

    def __del__(self) -> None:
        self._cu.cuEventDestroy(self.handle)


class DriverGraph:
    """Kernels as a graph of the driver's, which starts them by one call."""

    def __init__(
        self, cu: Any, calls: DriverCalls, stream: Any, launches: Sequence[Launching]
    ) -> None:
        self._cu = cu
        self._calls = calls
        self._stream = stream
        self._keep = list(launches)
        self._nodes: list[Any] = []
        self._graph = called(cu.cuGraphCreate(0))
        for launching in launches:
            before = self._nodes[-1:]
            node = cu.cuGraphAddKernelNode(self._graph, before, len(before), self._of(launching))
            self._nodes.append(called(node))
        self._exec = called(cu.cuGraphInstantiate(self._graph, 0))

    def _of(self, launching: Launching) -> Any:
        params = self._cu.CUDA_KERNEL_NODE_PARAMS()
        params.func = launching.function
        params.gridDimX, params.gridDimY, params.gridDimZ = launching.grid
        params.blockDimX, params.blockDimY, params.blockDimZ = launching.block
        params.sharedMemBytes = launching.shared
        params.kernelParams = launching.params.address
        return params

    def run(self) -> None:
        """Enqueues all kernels."""
        self._calls._enter()
        called(self._cu.cuGraphLaunch(self._exec, self._stream))

    def change(self, number: int, launching: Launching) -> None:
        """Replaces a kernel in later runs."""
        self._calls._enter()
        params = self._of(launching)
        called(self._cu.cuGraphExecKernelNodeSetParams(self._exec, self._nodes[number], params))
        self._keep[number] = launching

    def __del__(self) -> None:
        if hasattr(self, "_exec"):
            self._cu.cuGraphExecDestroy(self._exec)
        if hasattr(self, "_graph"):
            self._cu.cuGraphDestroy(self._graph)
