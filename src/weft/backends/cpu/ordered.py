"""Float weights that are used where they are until they are repacked, with the same results.

Kernels of panels add up products by ascending depth, kernels of rows in another order. `CPU_O32` is
a name for bytes in place, whose products the kernels add up in the order of panels: they make each
panel as they need it, which reads a file at two thirds of the speed of panels.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from weft.backends.memory import HostMemory, Memory
from weft.dtype import DType
from weft.errors import DeviceError
from weft.graph.tensor import Tensor
from weft.program import Layout


class OrderedBufferType:
    """Weights of this process in rows, which are multiplied as panels are."""

    name = "CPU_O32"
    device = "cpu"
    alignment = 64
    max_size: int | None = None
    is_host = False
    layout: Layout = "ordered"

    def alloc_size(self, tensor: Tensor) -> int:
        """0: they are where they were."""
        return 0

    def allocate(self, nbytes: int) -> Memory:
        """Raises DeviceError, because nothing is stored here."""
        raise DeviceError(f"{self.name} names weights that are elsewhere, see load()")

    def load(self, source: NDArray[Any], dtype: DType, ne: tuple[int, ...]) -> Memory:
        """The bytes themselves."""
        return HostMemory(source)

    def __repr__(self) -> str:
        return self.name
