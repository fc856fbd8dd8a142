"""The kernel table: one function for each op, looked up by the op itself; duplicates are
refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.backends.reference.view import ArrayView
from weft.errors import DeviceError
from weft.graph.op import OPS, Op, find_op
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Call:
    """One execution of an op: destination, sources (None where an optional one is absent) and the
    parameter record of the op."""

    dst: ArrayView
    src: tuple[ArrayView | None, ...]
    params: Any

    def view(self, i: int) -> ArrayView:
        """Source `i`; raises DeviceError when it is absent."""
        view = self.src[i] if i < len(self.src) else None
        if view is None:
            raise DeviceError(f"source {i} is missing")
        return view

    def optional(self, i: int) -> ArrayView | None:
        """Source `i`, or None when it is absent."""
        return self.src[i] if i < len(self.src) else None

    def read(self, i: int) -> NDArray[Any]:
        """Values of source `i` (see `ArrayView.read`)."""
        return self.view(i).read()

    def f64(self, i: int) -> NDArray[np.float64]:
        """Values of source `i` as float64."""
        return self.view(i).f64()


Kernel: TypeAlias = Callable[[Call], None]

KERNELS: dict[Op, Kernel] = {}


def kernel(*names: str) -> Callable[[Kernel], Kernel]:
    """Registers a function as the definition of the ops called `names`."""

    def register(function: Kernel) -> Kernel:
        for name in names:
            op = find_op(name)
            if op in KERNELS:
                raise DeviceError(f"op {name} has two reference kernels")
            KERNELS[op] = function
        return function

    return register


def find_kernel(op: Op) -> Kernel | None:
    """The kernel of `op`, or None; views and leaves need none."""
    return KERNELS.get(op)


def needs_kernel(op: Op) -> bool:
    """Whether running `op` does any work."""
    return op is not OPS["NONE"] and not op.is_view


def f32(value: float) -> float:
    """`value` as the nearest float32, the precision that ggml keeps parameters in."""
    return float(np.float32(value))


def check_index(index: NDArray[Any], n: int, what: str) -> None:
    """Raises IndexError unless every index is in 0..n-1: NumPy would wrap a negative one."""
    if index.size and (index.min() < 0 or index.max() >= n):
        raise IndexError(f"{what} {index.min()}..{index.max()} outside 0..{n - 1}")


def repeat_to(small: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """`small` tiled to `shape`, as ggml broadcasts: index i reads i modulo the small size."""
    if all(n in (1, m) for n, m in zip(small.shape, shape, strict=True)):
        return np.broadcast_to(small, shape)
    return np.tile(small, [m // n if n else 0 for n, m in zip(small.shape, shape, strict=True)])
