"""Blocks of device memory, and the buffer type that makes them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.backends.kernels.driver import CopiesMeanwhile, KernelDriver
from weft.backends.memory import Memory, require_inside
from weft.errors import OutOfMemoryError
from weft.graph.tensor import Tensor


class DeviceMemory:
    """A buffer of the device; offsets locate tensors in it."""

    __slots__ = ("__weakref__", "_driver", "_keep", "buffer", "nbytes")

    def __init__(self, driver: KernelDriver, buffer: Any, nbytes: int, keep: object = None) -> None:
        """`keep` is an object that stays alive as long as this memory."""
        self._driver = driver
        self._keep = keep
        self.buffer = buffer
        self.nbytes = nbytes

    def write(self, offset: int, data: NDArray[np.uint8]) -> None:
        """Copies bytes from the host, enqueued behind the work of the device."""
        require_inside(offset, data.nbytes, self.nbytes)
        if data.nbytes:
            self._driver.write(self.buffer, offset, data)

    def read(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """A copy of bytes, once all work enqueued before is done."""
        require_inside(offset, nbytes, self.nbytes)
        return self._driver.read(self.buffer, offset, nbytes)

    def host(self) -> None:
        """None, because the memory is reached through the queue."""
        return None

    def copy_from(self, offset: int, source: Memory, source_offset: int, nbytes: int) -> bool:
        """Copies within the device, or from another that it reaches; False for other memory, and
        for a layout of its own."""
        if type(source) not in (DeviceMemory, LaterMemory) or not isinstance(source, DeviceMemory):
            return False
        require_inside(offset, nbytes, self.nbytes)
        require_inside(source_offset, nbytes, source.nbytes)
        there = source.buffer, source_offset, nbytes
        if source._driver is not self._driver:
            return self._driver.copy_across(self.buffer, offset, source._driver, *there)
        self._driver.copy(self.buffer, offset, *there)
        return True


class LaterMemory(DeviceMemory):
    """A buffer of a device that copies while it computes."""

    __slots__ = ()

    def read_later(self, offset: int, nbytes: int) -> Callable[[], NDArray[np.uint8]]:
        """Puts a read behind the work so far; the function that it returns waits for the bytes."""
        require_inside(offset, nbytes, self.nbytes)
        assert isinstance(self._driver, CopiesMeanwhile)  # else this memory is not made
        return self._driver.read_later(self.buffer, offset, nbytes)


class DeviceBufferType:
    """Memory of one device."""

    is_host = False

    def __init__(
        self,
        driver: KernelDriver,
        name: str,
        capacity: int,
        max_size: int | None = None,
        alignment: int = 256,
        adopt: Callable[[NDArray[np.uint8]], Any] | None = None,
        in_host: bool = False,
    ) -> None:
        """`name` names the memory, `capacity` is the number of bytes that the device has. `adopt`
        makes a buffer over memory of the host, which must not change or move while the buffer
        lives, on devices that read it there. `in_host` says that the device's memory is a part of
        the host's."""
        self.name = name
        self.device = driver.name
        self.alignment = alignment
        self.max_size = max_size
        self.capacity = capacity
        self.in_use = 0
        """The bytes of the blocks that exist."""
        self.shares = adopt is not None
        """Constant host data may be used in place."""
        self.in_host = in_host
        """The bytes are bytes of the host's memory."""
        self._adopt = adopt
        self._driver = driver
        self._lock = Lock()

    def alloc_size(self, tensor: Tensor) -> int:
        """The tensor's bytes at its symbols' maxima."""
        return tensor.max_bytes

    def allocate(self, nbytes: int) -> DeviceMemory:
        """A zeroed block; raises OutOfMemoryError with the free bytes when it does not fit."""
        if self.max_size is not None and nbytes > self.max_size:
            raise OutOfMemoryError(
                f"{self.device} makes blocks of at most {self.max_size} bytes, but {nbytes} were "
                "requested; use smaller batches, or place less there"
            )
        with self._lock:
            free = self.capacity - self.in_use
            if nbytes > free:
                raise OutOfMemoryError(
                    f"{self.device} has {free} of {self.capacity} bytes left, but {nbytes} were "
                    "requested; place fewer layers there, or use a smaller context"
                )
            self.in_use += nbytes
        try:
            kind = LaterMemory if isinstance(self._driver, CopiesMeanwhile) else DeviceMemory
            memory = kind(self._driver, self._driver.create(nbytes), nbytes)
        except BaseException:
            self._give_back(nbytes)
            raise
        weakref.finalize(memory, self._give_back, nbytes).atexit = False
        return memory

    def adopt(self, data: NDArray[np.uint8]) -> DeviceMemory | None:
        """Constant host data in place, where the device works in the host's memory; else None."""
        if self._adopt is None or not data.nbytes:
            return None
        # kernels read vectors of elements, which need only the alignment of an element
        if data.ctypes.data % 4 or (self.max_size is not None and data.nbytes > self.max_size):
            return None
        return DeviceMemory(self._driver, self._adopt(data), data.nbytes, keep=data)

    def _give_back(self, nbytes: int) -> None:
        with self._lock:
            self.in_use -= nbytes

    def __repr__(self) -> str:
        return self.name
