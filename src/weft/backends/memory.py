"""The protocol of a device's memory: buffer types, which create blocks, and blocks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from weft.dtype import DType
from weft.errors import DeviceError, OutOfMemoryError
from weft.graph.tensor import Tensor
from weft.numa import place_block
from weft.program import Layout


class Memory(Protocol):
    """A block of device memory, made by a buffer type."""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""

    def write(self, offset: int, data: NDArray[np.uint8]) -> None:
        """Copies bytes from the host to `offset`; raises DeviceError outside the block."""

    def read(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """A copy of `nbytes` bytes from `offset` on; raises DeviceError outside the block."""

    def host(self) -> NDArray[np.uint8] | None:
        """The bytes themselves where the host can address them, else None."""


@runtime_checkable
class DirectMemory(Memory, Protocol):
    """(optional) memory that takes bytes from another device's memory without the host in
    between."""

    def copy_from(self, offset: int, source: Memory, source_offset: int, nbytes: int) -> bool:
        """Copies to `offset` and returns True, or returns False where it cannot copy from that
        memory."""


@runtime_checkable
class ReadsLater(Memory, Protocol):
    """(optional) memory behind a queue that can be read without waiting for what follows."""

    def read_later(self, offset: int, nbytes: int) -> Callable[[], NDArray[np.uint8]]:
        """Puts a read behind the work so far; the function that it returns waits for the bytes.
        Both raise DeviceError."""


@runtime_checkable
class LoadedMemory(Memory, Protocol):
    """(optional) the memory that `WeightBufferType.load` returns on a device that can be lost."""

    def forget(self) -> None:
        """Makes the next `load` of the same array create other memory."""


class BufferType(Protocol):
    """A kind of memory. Buffer types compare by identity."""

    name: str
    """The name of the memory, different for each device."""
    device: str
    alignment: int
    """The start of every tensor is a multiple of this many bytes, a power of two."""
    max_size: int | None
    """The largest single block in bytes; None: no limit."""
    is_host: bool
    """Kernels of the CPU can address it."""

    def alloc_size(self, tensor: Tensor) -> int:
        """The bytes that `tensor` needs in this memory, at its symbols' maxima."""

    def allocate(self, nbytes: int) -> Memory:
        """A new zeroed block; raises OutOfMemoryError with the size when there is no room."""


@runtime_checkable
class AdoptsMemory(Protocol):
    """(optional) a buffer type of a device that can work in the host's memory."""

    shares: bool
    """The device does so on this machine."""

    def adopt(self, data: NDArray[np.uint8]) -> Memory | None:
        """Memory over constant bytes of the host, or None where they must be copied.

        The memory keeps `data` alive. Raises DeviceError, OutOfMemoryError."""


@runtime_checkable
class PartOfHost(Protocol):
    """(optional) a buffer type of a device that may have its memory in the host's."""

    in_host: bool
    """The bytes are in the host's memory, so that plans count both together."""


def in_host(buffer_type: BufferType) -> bool:
    """Whether memory of a device is a part of the host's."""
    return isinstance(buffer_type, PartOfHost) and buffer_type.in_host


class WeightBufferType(BufferType, Protocol):
    """Memory that keeps constant weights in a layout of its own.

    `is_host` is false, because only kernels of the backend that offers it read this layout."""

    layout: Layout
    """The `weft.program.Layout` of the weights in it."""

    def load(self, source: NDArray[Any], dtype: DType, ne: tuple[int, ...]) -> Memory:
        """A whole tensor, repacked from its contiguous array; `Memory.read` returns the original
        bytes.

        Loading the same array again returns the same memory, as long as that is in use. Raises
        OutOfMemoryError."""


class BufferTypeBase(ABC):
    """Memory of a device that the host reaches by copies only.

    A subclass has a `name` and a `device`, and creates blocks."""

    name: str
    device: str
    alignment = 64
    max_size: int | None = None
    is_host = False

    def alloc_size(self, tensor: Tensor) -> int:
        """The bytes of the tensor, without padding."""
        return tensor.max_bytes

    def allocate(self, nbytes: int) -> Memory:
        """A block from `create`; raises OutOfMemoryError with the size when there is no room."""
        try:
            return self.create(nbytes)
        except (MemoryError, ValueError) as error:  # ValueError: beyond the address space
            raise OutOfMemoryError(f"{self.device} has no room for {nbytes} bytes") from error

    @abstractmethod
    def create(self, nbytes: int) -> Memory:
        """A zeroed block; raises MemoryError when there is no room."""

    def __repr__(self) -> str:
        return self.name


class BlockBase(ABC):
    """A block of such memory; a subclass copies valid ranges in `put` and `get`."""

    nbytes: int

    def write(self, offset: int, data: NDArray[np.uint8]) -> None:
        """Copies bytes in."""
        require_inside(offset, data.nbytes, self.nbytes)
        self.put(offset, data)

    def read(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """Copies bytes out."""
        require_inside(offset, nbytes, self.nbytes)
        return self.get(offset, nbytes)

    def host(self) -> NDArray[np.uint8] | None:
        """None: the host cannot address it."""
        return None

    @abstractmethod
    def put(self, offset: int, data: NDArray[np.uint8]) -> None:
        """Copies bytes from the host to the device."""

    @abstractmethod
    def get(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """Copies bytes from the device to a fresh array."""


def require_inside(offset: int, nbytes: int, size: int) -> None:
    """Raises DeviceError for a range that is not inside a block."""
    if offset < 0 or nbytes < 0 or offset + nbytes > size:
        raise DeviceError(f"access to bytes {offset}..{offset + nbytes} of a block of {size} bytes")


class HostMemory:
    """Memory in this process: an array of bytes, aligned, or a view of memory that exists."""

    __slots__ = ("__weakref__", "_bytes")

    def __init__(self, data: NDArray[Any]) -> None:
        """Wraps a C-contiguous array of any type; the array is kept alive and never copied."""
        self._bytes = data.reshape(-1).view(np.uint8)

    @staticmethod
    def zeros(nbytes: int, alignment: int = 64) -> HostMemory:
        """A zeroed block whose address is a multiple of `alignment`."""
        raw = np.zeros(nbytes + alignment, np.uint8)
        place_block(raw.ctypes.data, raw.nbytes)
        start = -raw.ctypes.data % alignment
        return HostMemory(raw[start : start + nbytes])

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self._bytes.nbytes

    def write(self, offset: int, data: NDArray[np.uint8]) -> None:
        """Copies bytes in."""
        require_inside(offset, data.nbytes, self.nbytes)
        self._bytes[offset : offset + data.nbytes] = data

    def read(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """Copies bytes out."""
        require_inside(offset, nbytes, self.nbytes)
        return self._bytes[offset : offset + nbytes].copy()

    def host(self) -> NDArray[np.uint8]:
        """The bytes themselves."""
        return self._bytes
