"""A GPU through NVIDIA's driver, by cuda-bindings."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from ctypes import c_uint8
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.backends.cuda.builds import Builds
from weft.backends.cuda.calls import COPIES, KERNELS, CudaError, Launching
from weft.backends.cuda.library import called, driver

_PORTABLE = 1
"""Pinned memory is pinned for every device (CU_MEMHOSTALLOC_PORTABLE)."""


class DriverCalls:
    """The primary context of a GPU, which all of a process shares, and two streams of its own."""

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
        flag = cu.CUstream_flags.CU_STREAM_NON_BLOCKING
        self._streams = [called(cu.cuStreamCreate(flag)) for _ in (KERNELS, COPIES)]
        self._modules: dict[tuple[str, tuple[str, ...]], Any] = {}
        self._events: dict[bool, list[Any]] = {False: [], True: []}
        """Events for reuse, by whether they are timed."""
        self._peers: dict[int, bool] = {}
        weakref.finalize(
            self, _close, cu, self._handle, self._context, self._streams, self._modules,
            self._events,
        ).atexit = False  # fmt: skip

    def _enter(self) -> Any:
        """Makes this thread's calls go to the device, whatever other libraries did before."""
        (error,) = self._cu.cuCtxSetCurrent(self._context)
        if error != 0:
            called((error,))
        return self._cu

    # ---- memory ----------------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> int:
        """The address of new memory."""
        return int(called(self._enter().cuMemAlloc(nbytes)))

    def free(self, address: int) -> None:
        """Gives memory back; the driver waits for work that may use it."""
        called(self._enter().cuMemFree(address))

    def free_bytes(self) -> int:
        """The free bytes of the device."""
        free, _ = called(self._enter().cuMemGetInfo())
        return int(free)

    def pinned(self, nbytes: int) -> NDArray[np.uint8]:
        """Page-locked memory of the host."""
        address = int(called(self._enter().cuMemHostAlloc(nbytes, _PORTABLE)))
        return np.ctypeslib.as_array((c_uint8 * nbytes).from_address(address))

    def send(self, address: int, data: NDArray[np.uint8], lane: int = KERNELS) -> None:
        """Enqueues a copy from pinned memory."""
        stream = self._streams[lane]
        called(self._enter().cuMemcpyHtoDAsync(address, data.ctypes.data, data.nbytes, stream))

    def fetch(self, address: int, out: NDArray[np.uint8], lane: int = KERNELS) -> None:
        """Enqueues a copy to pinned memory."""
        stream = self._streams[lane]
        called(self._enter().cuMemcpyDtoHAsync(out.ctypes.data, address, out.nbytes, stream))

    def copy(self, to: int, source: int, nbytes: int, lane: int = KERNELS) -> None:
        """Enqueues a copy within the device."""
        called(self._enter().cuMemcpyDtoDAsync(to, source, nbytes, self._streams[lane]))

    def reaches(self, other: object) -> bool:
        """Whether the other is a GPU of this process, too."""
        return isinstance(other, DriverCalls)

    def copy_from(
        self, other: DriverCalls, to: int, source: int, nbytes: int, lane: int = KERNELS
    ) -> None:
        """Enqueues a copy from another GPU: directly where the two can, else the driver takes it by
        way of its own pinned memory."""
        cu = self._enter()
        self._meet(other)
        called(
            cu.cuMemcpyPeerAsync(
                to, self._context, source, other._context, nbytes, self._streams[lane]
            )
        )

    def _meet(self, other: DriverCalls) -> None:
        """Opens the direct way from another GPU, where there is one."""
        number = int(other._handle)
        if number in self._peers or number == int(self._handle):
            return
        can = bool(called(self._cu.cuDeviceCanAccessPeer(self._handle, other._handle)))
        if can:
            try:
                called(self._cu.cuCtxEnablePeerAccess(other._context, 0))
            except CudaError as error:
                can = str(error) == "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED"
        self._peers[number] = can

    def clear(self, address: int, n_words: int) -> None:
        """Enqueues zeros."""
        called(self._enter().cuMemsetD32Async(address, 0, n_words, self._streams[KERNELS]))

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
                function, *grid, *block, shared, self._streams[KERNELS], params.address, 0
            )
        )

    def graph(self, launches: Sequence[Launching]) -> DriverGraph:
        """The launches as a graph, each behind the one before."""
        return DriverGraph(self._enter(), self, self._streams[KERNELS], launches)

    # ---- events ----------------------------------------------------------------------------------

    def event(self, timed: bool, lane: int = KERNELS) -> Any:
        """An event behind all work of a lane so far."""
        cu = self._enter()
        free = self._events[timed]
        try:
            handle = free.pop()
        except IndexError:
            flags = cu.CUevent_flags
            plain = flags.CU_EVENT_DEFAULT if timed else flags.CU_EVENT_DISABLE_TIMING
            handle = called(cu.cuEventCreate(plain))
        event = _Event(free, handle)
        called(cu.cuEventRecord(handle, self._streams[lane]))
        return event

    def order(self, event: Any, lane: int = KERNELS) -> None:
        """Lets later work of a lane start only after an event of any GPU."""
        called(self._enter().cuStreamWaitEvent(self._streams[lane], event.handle, 0))

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
        cu = self._enter()
        for stream in self._streams:
            called(cu.cuStreamSynchronize(stream))

    def seconds(self, first: Any, second: Any) -> float:
        """The time between two timed events."""
        return float(called(self._enter().cuEventElapsedTime(first.handle, second.handle))) / 1000


class _Event:
    """An event of the driver's; once this object is gone, the event is reused."""

    __slots__ = ("_free", "handle")

    def __init__(self, free: list[Any], handle: Any) -> None:
        self._free = free
        self.handle = handle

    def __del__(self) -> None:
        self._free.append(self.handle)


def _close(
    cu: Any,
    device: Any,
    context: Any,
    streams: list[Any],
    modules: dict[Any, Any],
    events: dict[bool, list[Any]],
) -> None:
    """Gives back what a device took, as far as it still can."""
    if cu.cuCtxSetCurrent(context)[0] != 0:
        return
    for stream in streams:
        cu.cuStreamDestroy(stream)
    for event in (*events[False], *events[True]):
        cu.cuEventDestroy(event)
    for module in modules.values():
        cu.cuModuleUnload(module)
    cu.cuDevicePrimaryCtxRelease(device)


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
