"""Memory that only the reference backend addresses.

It is plain process memory, but says that the host cannot reach it, so that a graph split between
this backend and another one exercises real copies.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weft import quants
from weft.backends.memory import HostMemory
from weft.errors import OutOfMemoryError
from weft.graph.size import upper
from weft.graph.tensor import Tensor


class ReferenceMemory:
    """A block of the reference backend's memory."""

    __slots__ = ("_block",)

    def __init__(self, block: HostMemory) -> None:
        self._block = block

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self._block.nbytes

    def write(self, offset: int, data: NDArray[np.uint8]) -> None:
        """Copies bytes in; raises DeviceError outside the block."""
        self._block.write(offset, data)

    def read(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """Copies bytes out; raises DeviceError outside the block."""
        return self._block.read(offset, nbytes)

    def host(self) -> None:
        """None, because no other device may address it."""
        return None

    def private(self) -> NDArray[np.uint8]:
        """The bytes themselves, for the reference kernels only."""
        return self._block.host()


class ReferenceBufferType:
    """The one kind of memory of the reference backend."""

    name = "Reference"
    device = "reference"
    alignment = 32
    max_size: int | None = None
    is_host = False

    def alloc_size(self, tensor: Tensor) -> int:
        """Bytes of `tensor` at its symbols' maxima; i2_s has its scale behind its blocks."""
        if tensor.dtype.name == "i2_s":
            return quants.i2_s_bytes(upper(tensor.n_elements))
        return tensor.max_bytes

    def allocate(self, nbytes: int) -> ReferenceMemory:
        """A new zeroed block; raises OutOfMemoryError when there is no room."""
        try:
            return ReferenceMemory(HostMemory.zeros(nbytes, self.alignment))
        except (MemoryError, ValueError) as error:
            raise OutOfMemoryError(
                f"cannot allocate {nbytes} bytes of {self.name} memory; use a smaller context or "
                "batch, or another device"
            ) from error

    def __repr__(self) -> str:
        return self.name


REFERENCE = ReferenceBufferType()
"""The only buffer type of the backend, as buffer types compare by identity."""
