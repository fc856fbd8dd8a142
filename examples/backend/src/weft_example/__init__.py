"""The `example` device: sums, products and norms in float32, in memory that only it reaches.

NumPy stands for the device's own library: `Block` for its allocations, the functions of `KERNELS`
for its kernels. docs/add-a-backend.md goes through this file step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.backends import BackendBase, BackendInfo, BlockBase, BufferTypeBase, Memory
from weft.errors import DeviceError
from weft.graph.tensor import Tensor
from weft.program import Program, StepSpec

Array = NDArray[np.float32]

# ---- step 1: memory ------------------------------------------------------------------------------


class Block(BlockBase):
    """Bytes on the device. A real one would hold a handle and copy through its driver."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.bytes = np.zeros(nbytes, np.uint8)

    def put(self, offset: int, data: NDArray[np.uint8]) -> None:
        self.bytes[offset : offset + data.nbytes] = data

    def get(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        return self.bytes[offset : offset + nbytes].copy()


class ExampleMemory(BufferTypeBase):
    """The kind of memory that planners lay out. Defaults: 64 bytes alignment, blocks of any size,
    out of the host's reach."""

    name = "Example"
    device = "example"

    def create(self, nbytes: int) -> Memory:
        return Block(nbytes)


# ---- step 2: kernels -----------------------------------------------------------------------------


def mul_mat(out: Array, sources: Sequence[Array], params: Any) -> None:
    """out[..., column, row] = x[..., column, :] . weights[..., row, :]"""
    weights, x = sources
    for i in np.ndindex(x.shape[:2]):
        # planes of x share those of the weights in consecutive groups
        j = i[0] * weights.shape[0] // x.shape[0], i[1] * weights.shape[1] // x.shape[1]
        out[i] = x[i] @ weights[j].T


def rms_norm(out: Array, sources: Sequence[Array], params: Any) -> None:
    """Rows divided by the root of their mean square."""
    (x,) = sources
    out[...] = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + np.float32(params.eps))


def repeated(small: Array, out: Array) -> Array:
    """The second source of a sum or product, as often as the first has room for it."""
    return np.tile(small, [m // n for n, m in zip(small.shape, out.shape, strict=True)])


KERNELS: dict[str, Callable[[Array, Sequence[Array], Any], None]] = {
    "ADD": lambda out, s, p: np.copyto(out, s[0] + repeated(s[1], out)),
    "MUL": lambda out, s, p: np.copyto(out, s[0] * repeated(s[1], out)),
    "MUL_MAT": mul_mat,
    "RMS_NORM": rms_norm,
}
"""Per op, a function of result, sources and parameters; arrays have outer dimensions first."""

# ---- step 3: from a split to something that runs -------------------------------------------------


class Executable:
    """The steps of a split over their memory. Whatever can be found out once, is found here."""

    def __init__(self, program: Program, split: int, memories: Sequence[Memory]) -> None:
        self._tensors = program.tensors
        self._memories = memories
        self._steps = program.splits[split].steps

    def run(self, values: Mapping[str, int]) -> None:
        """Sizes may depend on symbols, whose values are those of this run."""
        for step in self._steps:
            self._run(step, values)

    def _run(self, step: StepSpec, values: Mapping[str, int]) -> None:
        out = self._array(step.dst, values)
        if out.size:
            sources = [self._array(i, values) for i in step.src if i >= 0]
            KERNELS[step.op.name](out, sources, step.params)

    def _array(self, i: int, values: Mapping[str, int]) -> Array:
        spec = self._tensors[i]
        block = self._memories[spec.buffer]
        if not isinstance(block, Block):
            raise DeviceError(f"example: {spec.name} is not in its memory")
        ne, nb, start = spec.at(values)
        return np.ndarray(ne[::-1], np.float32, block.bytes.data, start, nb[::-1])


# ---- step 4: the device: which nodes, which memory -----------------------------------------------


class ExampleBackend(BackendBase):
    """One object a device. `BackendBase` has the defaults of what is optional."""

    name = "example"
    kind = "ACCEL"
    buffer_type = ExampleMemory()  # compared by identity: one object for each memory there is

    def why_not(self, node: Tensor) -> str | None:
        if node.op.name not in KERNELS:
            return "no kernel for this op"
        if len(node.src) > 2:
            return "a bias is not added here"
        if node.op.name == "MUL_MAT" and node.params is not None:
            return "no function is applied to products here"
        others = {t.dtype.name for t in (*node.src, node) if t is not None} - {"f32"}
        return f"everything must be f32, not {', '.join(sorted(others))}" if others else None

    def lower(self, program: Any, split: int, memories: Sequence[Memory]) -> Executable:
        return Executable(program, split, memories)


# ---- step 5: how it is found ---------------------------------------------------------------------


def describe() -> list[BackendInfo]:
    """What `weft devices` lists; must be cheap and must not raise."""
    return [BackendInfo("example", True, "", "sums and products with NumPy (an example)")]


def make(suffix: str | None = None, **options: Any) -> ExampleBackend:
    """What `--devices example` makes."""
    if suffix is not None or options:
        raise DeviceError("there is one example device, without options; write 'example'")
    return ExampleBackend()
