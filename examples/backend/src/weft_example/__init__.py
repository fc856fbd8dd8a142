"""The `example` device: sums, products and norms in float32, in memory that only it reaches.

NumPy stands for the device's own library: `_Block` for its allocations, the functions of `KERNELS`
for its kernels. docs/add-a-backend.md goes through this file step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.backends import YES, BackendBase, BackendInfo, Memory, Support
from weft.errors import DeviceError, OutOfMemoryError
from weft.graph.size import evaluate
from weft.graph.tensor import Tensor
from weft.program import Program, StepSpec

Array = NDArray[np.float32]

# ---- step 1: memory ------------------------------------------------------------------------------


class _Block:
    """Bytes on the device. A real one would hold a handle and copy through its driver."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.bytes = np.zeros(nbytes, np.uint8)

    def write(self, offset: int, data: NDArray[np.uint8]) -> None:
        self._check(offset, data.nbytes)
        self.bytes[offset : offset + data.nbytes] = data

    def read(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        self._check(offset, nbytes)
        return self.bytes[offset : offset + nbytes].copy()

    def host(self) -> None:
        return None  # the host must copy

    def _check(self, offset: int, nbytes: int) -> None:
        if offset < 0 or offset + nbytes > self.nbytes:
            raise DeviceError(f"example: bytes {offset}..{offset + nbytes} of {self.nbytes}")


class _BufferType:
    """The kind of memory that planners lay out."""

    name = "Example"
    device = "example"
    alignment = 32
    max_size: int | None = None
    is_host = False

    def alloc_size(self, tensor: Tensor) -> int:
        return tensor.max_bytes

    def allocate(self, nbytes: int) -> Memory:
        try:
            return _Block(nbytes)
        except (MemoryError, ValueError) as error:
            raise OutOfMemoryError(f"example has no room for {nbytes} bytes") from error


_MEMORY = _BufferType()  # buffer types compare by identity, so there is one

# ---- step 2: kernels -----------------------------------------------------------------------------


def _mul_mat(out: Array, sources: Sequence[Array], params: Any) -> None:
    weights, x = sources
    # planes of x share those of the weights in consecutive groups
    for i in np.ndindex(x.shape[:2]):
        j = i[0] * weights.shape[0] // x.shape[0], i[1] * weights.shape[1] // x.shape[1]
        out[i] = x[i] @ weights[j].T


def _rms_norm(out: Array, sources: Sequence[Array], params: Any) -> None:
    (x,) = sources
    out[...] = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + np.float32(params.eps))


KERNELS: dict[str, Callable[[Array, Sequence[Array], Any], None]] = {
    "ADD": lambda out, s, p: np.copyto(out, s[0] + _repeated(s[1], out)),
    "MUL": lambda out, s, p: np.copyto(out, s[0] * _repeated(s[1], out)),
    "MUL_MAT": _mul_mat,
    "RMS_NORM": _rms_norm,
}
"""Per op, a function of result, sources and parameters; arrays have outer dimensions first."""


def _repeated(small: Array, out: Array) -> Array:
    return np.tile(small, [m // n for n, m in zip(small.shape, out.shape, strict=True)])


# ---- step 3: which nodes -------------------------------------------------------------------------


def _why_not(node: Tensor) -> str | None:
    """A sentence for what the kernels above do not do."""
    if node.op.name not in KERNELS:
        return "no kernel for this op"
    if len(node.src) > 2:
        return "a bias is not added here"
    for t in (*node.src, node):
        if t is not None and t.dtype.name != "f32":
            return f"everything must be f32, not {t.dtype.name}"
    return None


# ---- step 4: from a split to something that runs -------------------------------------------------


class _Executable:
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
        if not isinstance(block, _Block):
            raise DeviceError(f"example: {spec.name} is not in its memory")
        ne, nb = ([evaluate(n, values) for n in sizes] for sizes in (spec.ne, spec.nb))
        start = evaluate(spec.offset, values)
        return np.ndarray(ne[::-1], np.float32, block.bytes.data, start, nb[::-1])


# ---- step 5: the backend, and how it is found ----------------------------------------------------


class ExampleBackend(BackendBase):
    """One object a device. `BackendBase` has the defaults of what is optional."""

    name = "example"
    kind = "ACCEL"
    buffer_type = _MEMORY

    def supports_op(self, node: Tensor) -> Support:
        if node.op.is_view or node.op.name == "NONE":
            return YES
        why = _why_not(node)
        return YES if why is None else Support(False, f"{node.op} on {self.name}: {why}")

    def supports_buffer_type(self, buffer_type: Any) -> bool:
        return buffer_type is _MEMORY

    def lower(self, program: Any, split: int, memories: Sequence[Memory]) -> _Executable:
        return _Executable(program, split, memories)


def describe() -> list[BackendInfo]:
    """What `weft devices` lists; must be cheap and must not raise."""
    return [BackendInfo("example", True, "", "sums and products with NumPy (an example)")]


def make(suffix: str | None = None, **options: Any) -> ExampleBackend:
    """What `--devices example` makes."""
    if suffix is not None or options:
        raise DeviceError("there is one example device, without options; write 'example'")
    return ExampleBackend()
