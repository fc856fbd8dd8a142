"""The `null` device supports everything and computes nothing; for planning tests and simulation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.backends.base import YES, BackendBase, DeviceKind, Support
from weft.backends.memory import HostMemory, Memory
from weft.backends.registry import BackendInfo
from weft.errors import DeviceError, OutOfMemoryError
from weft.graph.tensor import Tensor
from weft.options import require_options


class NullBufferType:
    """Memory of a device that exists only on paper."""

    def __init__(
        self,
        name: str = "null",
        device: str = "null",
        *,
        alignment: int = 64,
        max_size: int | None = None,
        is_host: bool = True,
        capacity: int | None = None,
        in_host: bool = False,
    ) -> None:
        """`capacity` is the number of bytes of the whole device, None for no limit; with `in_host`
        the memory stands for a part of the host's."""
        if alignment < 1 or alignment & (alignment - 1):
            raise DeviceError(f"{name}: alignment {alignment} is not a power of two")
        self.name = name
        self.device = device
        self.alignment = alignment
        self.max_size = max_size
        self.is_host = is_host
        self.capacity = capacity
        self.in_host = in_host

    def alloc_size(self, tensor: Tensor) -> int:
        """The bytes of the tensor, without padding."""
        return tensor.max_bytes

    def allocate(self, nbytes: int) -> Memory:
        """Host memory, whatever `is_host` says; raises OutOfMemoryError above `capacity`."""
        if self.capacity is not None and nbytes > self.capacity:
            what = f"{self.name} has {self.capacity} bytes, but {nbytes} were requested"
            raise OutOfMemoryError(what)
        return HostMemory.zeros(nbytes, self.alignment)


class NullExecutable:
    """An executable that does nothing."""

    def run(self, values: Mapping[str, int]) -> None:
        """Returns at once and changes no value."""


class NullBackend(BackendBase):
    """A device that takes every node. Several with different names and buffer types can stand for a
    machine that is not at hand."""

    def __init__(
        self,
        name: str = "null",
        kind: DeviceKind = "CPU",
        buffer_type: NullBufferType | None = None,
    ) -> None:
        self.name = name
        self.kind: DeviceKind = kind
        self.buffer_type: Any = buffer_type or NullBufferType(name, name)

    def supports_op(self, node: Tensor) -> Support:
        """Supports every node."""
        return YES

    def supports_buffer_type(self, buffer_type: Any) -> bool:
        """Supports its own memory, and host memory when it is a CPU."""
        return buffer_type is self.buffer_type or (self.kind == "CPU" and buffer_type.is_host)

    def memory_limit(self) -> int | None:
        """The capacity of its memory."""
        capacity: int | None = self.buffer_type.capacity
        return capacity

    def lower(self, program: Any, split: int, memories: Sequence[Memory]) -> NullExecutable:
        """An executable without work."""
        return NullExecutable()


def describe() -> list[BackendInfo]:
    """The one device of this backend."""
    return [BackendInfo("null", True, "", "computes nothing (for planning)")]


def make(suffix: str | None = None, **options: Any) -> NullBackend:
    """`null`, or `null:NAME` for a device with a name and memory of its own; no options."""
    require_options("null", options, ())
    return NullBackend() if suffix is None else NullBackend(f"null:{suffix}")
