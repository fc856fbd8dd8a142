"""Launches made ready: bind groups and their arguments, and many launches as one object.

A command buffer of WebGPU can be submitted once. So a step is recorded as a list of pipelines, bind
groups, offsets and grids, which a short loop encodes each time."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from weakref import WeakValueDictionary

from weft.backends.kernels.compiling import Compiled
from weft.backends.kernels.launch import Launch, Local
from weft.backends.kernels.launch import Slot as Argument
from weft.backends.kernels.windows import Window
from weft.backends.webgpu.arguments import WINDOW, Arguments, Slot
from weft.backends.webgpu.builds import stored
from weft.backends.webgpu.edges import Edge
from weft.backends.webgpu.pipelines import Key, Pipelines

_MOST = 65_535
"""Maximum number of groups along a dimension."""


def packed(args: Iterable[Any]) -> tuple[bytes, tuple[Any, ...], int]:
    """Arguments of a kernel as the device takes them: the words of all that are not buffers, the
    buffers, and the bytes of a group's memory."""
    buffers: list[Any] = []
    words = bytearray()
    local = 0
    for arg in args:
        if type(arg) is bytes:
            words += arg + bytes(-len(arg) % 4)
        elif type(arg) is Local:
            words += struct.pack("<i", local)
            local += -(-arg.nbytes // 16) * 16
        else:
            buffers.append(arg)
    return bytes(words), tuple(buffers), local


class Bound:
    """A bind group, and the buffers in it."""

    __slots__ = ("__weakref__", "buffers", "group")

    def __init__(self, group: Any, buffers: tuple[Any, ...]) -> None:
        self.group, self.buffers = group, buffers


class Dispatch:
    """A grid of a kernel with its arguments."""

    __slots__ = ("bound", "grid", "pipeline", "record", "slot")

    def __init__(self, pipeline: Compiled, bound: Bound, slot: Slot, grid: tuple[int, ...]) -> None:
        self.pipeline, self.bound, self.slot, self.grid = pipeline, bound, slot, grid
        self.record: tuple[Any, ...] | None = None
        """The arguments that `Direct` passes to the library, once the pipeline is built."""


class Binder:
    """Makes launches ready. Launches with the same buffers share a bind group as long as one of
    them exists. Callers hold the device's lock."""

    def __init__(
        self,
        device: Any,
        pipelines: Pipelines,
        arguments: Arguments,
        table: Callable[[bytes], Any],
    ) -> None:
        """`table` gives a buffer that holds some bytes."""
        self._device = device
        self._table = table
        self._pipelines = pipelines
        self._arguments = arguments
        self._bound: WeakValueDictionary[tuple[Any, ...], Bound] = WeakValueDictionary()

    def ready(
        self, kernel: Any, grid: tuple[int, ...], group: tuple[int, ...], start: tuple[int, ...]
    ) -> list[Dispatch]:
        """A launch with the kernel's present arguments, in parts of as many groups as a device
        takes."""
        words, buffers, local = packed(kernel.args)
        if codebooks := stored(kernel.defines):
            buffers += (self._table(codebooks),)
        key = Key(kernel.file, kernel.defines, kernel.name, tuple(group), local)
        pipeline = self._pipelines.get(key, len(buffers))
        first = (*start, 0, 0, 0)[:3]
        size = (*grid, 1, 1)[:3]
        parts = []
        for at in range(0, size[0], _MOST):
            head = struct.pack("<3i", first[0] + at * group[0], *first[1:])
            part = (min(_MOST, size[0] - at), *size[1:])
            parts.append(self._dispatch(pipeline, head + words, buffers, part))
        return parts

    def edge(self, buffer: Any, edge: Edge) -> Dispatch:
        """The launch that writes some bytes of a word."""
        return self._dispatch(self._pipelines.edge, edge.words, (edge.window(buffer),), (1, 1, 1))

    def expect(self, launch: Launch) -> None:
        """Begins to compile the pipeline of a launch."""
        is_bytes = (bytes, Local)
        n = sum(not isinstance(arg, is_bytes) and arg is not Argument.STEP for arg in launch.args)
        _, _, local = packed(arg for arg in launch.args if isinstance(arg, Local))
        key = Key(launch.file, launch.defines, launch.kernel, tuple(launch.group), local)
        self._pipelines.get(key, n + bool(stored(launch.defines)))

    def _dispatch(
        self, pipeline: Compiled, words: bytes, buffers: tuple[Any, ...], grid: tuple[int, ...]
    ) -> Dispatch:
        slot = self._arguments.slot(words)
        key = (slot.buffer, *buffers)
        bound = self._bound.get(key)
        if bound is None:
            window = {"buffer": slot.buffer, "offset": 0, "size": WINDOW}
            resources = [window, *map(_resource, buffers)]
            group = self._device.create_bind_group(
                layout=self._pipelines.layout(len(buffers))[0],
                entries=[{"binding": i, "resource": r} for i, r in enumerate(resources)],
            )
            bound = self._bound[key] = Bound(group, key)
        return Dispatch(pipeline, bound, slot, grid)


def _resource(buffer: Any) -> dict[str, Any]:
    """A buffer, or a window of one, as an entry of a bind group has it."""
    if isinstance(buffer, Window):
        return {"buffer": buffer.buffer, "offset": buffer.offset, "size": buffer.nbytes}
    return {"buffer": buffer}


# ---- encoding ------------------------------------------------------------------------------------


class Public:
    """Encodes by wgpu's public functions."""

    def encode(self, into: Any, dispatches: Iterable[Dispatch]) -> None:
        """Adds dispatches to a compute pass."""
        for d in dispatches:
            into.set_pipeline(d.pipeline.get())
            into.set_bind_group(0, d.bound.group, [d.slot.offset])
            into.dispatch_workgroups(*d.grid)


class Direct:
    """Encodes by the C functions of wgpu-native, which takes a tenth of the time. The library finds
    what is wrong with a pass when the pass ends, as it does by its public functions."""

    def __init__(self, lib: Any, ffi: Any) -> None:
        self._new = ffi.new
        self._set_pipeline = lib.wgpuComputePassEncoderSetPipeline
        self._set_group = lib.wgpuComputePassEncoderSetBindGroup
        self._dispatch = lib.wgpuComputePassEncoderDispatchWorkgroups

    def encode(self, into: Any, dispatches: Iterable[Dispatch]) -> None:
        """Adds dispatches to a compute pass."""
        at, set_pipeline = into._internal, self._set_pipeline
        set_group, dispatch = self._set_group, self._dispatch
        for d in dispatches:
            pipeline, group, offset, x, y, z = d.record or self._record(d)
            set_pipeline(at, pipeline)
            set_group(at, 0, group, 1, offset)
            dispatch(at, x, y, z)

    def _record(self, d: Dispatch) -> tuple[Any, ...]:
        offset = self._new("uint32_t[1]", [d.slot.offset])
        d.record = (d.pipeline.get()._internal, d.bound.group._internal, offset, *d.grid)
        return d.record


def encoding() -> Public | Direct:
    """The quicker way to encode that there is with this version of wgpu."""
    try:
        from wgpu.backends.wgpu_native import GPUComputePassEncoder, ffi, lib

        direct = Direct(lib, ffi)
        known = [GPUComputePassEncoder.set_pipeline, GPUComputePassEncoder.set_bind_group]
        has_handles = all("_internal" in f.__code__.co_names for f in known)
    except (ImportError, AttributeError):
        return Public()
    return direct if has_handles else Public()


class Graph:
    """Launches in a row."""

    def __init__(self, launches: Sequence[tuple[Any, ...]]) -> None:
        self._parts: list[list[Dispatch]] = [parts for (parts,) in launches]
        self._dispatches: list[Dispatch] | None = None

    def change(self, number: int, parts: list[Dispatch]) -> None:
        """Replaces a launch."""
        self._parts[number] = parts
        self._dispatches = None

    @property
    def dispatches(self) -> list[Dispatch]:
        """All of them."""
        if self._dispatches is None:
            self._dispatches = [d for parts in self._parts for d in parts]
        return self._dispatches
