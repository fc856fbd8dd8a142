"""The products that OpenBLAS takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.backends.base import YES, BackendBase, DeviceKind, Support
from weft.backends.blas.executable import BlasExecutable
from weft.backends.blas.weights import DecodedWeights, can_decode
from weft.backends.cpu import default_threads, host_buffer_type
from weft.backends.memory import BufferType, Memory
from weft.errors import DeviceError
from weft.graph.size import upper
from weft.graph.tensor import Tensor

MIN_BATCH = 32
"""The rows and columns below which the cpu's own kernels are faster (the reference's bound)."""

GIB = 1 << 30


class BlasBackend(BackendBase):
    """OpenBLAS with `n_threads` (default: physical cores), over the memory of `cpu`.

    Weights that are not float32 are decoded once, when a program is loaded, as long as all decoded
    weights together take at most `decoded_bytes`; the others are decoded at every run, a matrix at
    a time. `min_batch` is the least number of rows and columns of a product that it takes."""

    kind: DeviceKind = "ACCEL"

    def __init__(
        self,
        n_threads: int | None = None,
        min_batch: int = MIN_BATCH,
        decoded_bytes: int = GIB,
        name: str = "blas",
    ) -> None:
        threads = default_threads() if n_threads is None else n_threads
        if not 1 <= threads <= 1024:
            raise DeviceError(f"must be 1..1024, got {threads}", argument="n_threads")
        if min_batch < 1 or decoded_bytes < 0:
            raise DeviceError(
                f"min_batch must be 1 or more and decoded_bytes 0 or more, got {min_batch} and "
                f"{decoded_bytes}"
            )
        self.name = name
        self.n_threads = threads
        self.min_batch = min_batch
        self.buffer_type: BufferType = host_buffer_type()
        self.decoded = DecodedWeights(decoded_bytes)

    def supports_op(self, node: Tensor) -> Support:
        """Supports views, and MUL_MAT and OUT_PROD of matrices that are big enough."""
        if node.op.is_view or node.op.name == "NONE":
            return YES
        if node.op.name == "MUL_MAT":
            why = self._refuse_mul_mat(node)
        elif node.op.name == "OUT_PROD":
            why = _refuse_out_prod(node)
        else:
            why = "only matrix products are done here"
        return YES if why is None else Support(False, f"{node.op} on {self.name}: {why}")

    def supports_buffer_type(self, buffer_type: BufferType) -> bool:
        """Supports any memory that the host can address."""
        return buffer_type.is_host

    def lower(self, program: Any, split: int, memories: Sequence[Memory]) -> BlasExecutable:
        """The split as calls of the library. Decodes weights; raises OutOfMemoryError."""
        return BlasExecutable(
            program,
            split,
            memories,
            device=self.name,
            n_threads=self.n_threads,
            decoded=self.decoded,
        )

    def __repr__(self) -> str:
        return self.name

    def _refuse_mul_mat(self, node: Tensor) -> str | None:
        if len(node.src) > 2:
            return "a bias is not added here"
        if node.params is not None:
            return "no function is applied to products here"
        weights, x = _two(node)
        sizes = {"rows": upper(node.ne[0]), "columns": upper(node.ne[1]), "inner": upper(x.ne[0])}
        small = [f"{n} {what}" for what, n in sizes.items() if n < self.min_batch]
        if small:
            return f"{', '.join(small)}, from {self.min_batch} on it is faster"
        if x.dtype.name != "f32":
            return f"activations must be f32, not {x.dtype.name}"
        if not _has_rows(x):
            return "rows of the activations must be contiguous"
        if weights.dtype.name == "f32":
            return None if _has_rows(weights) else "rows of the weights must be contiguous"
        if not can_decode(weights.dtype):
            return f"weights of type {weights.dtype.name} cannot be decoded"
        return None if weights.is_contiguous else "weights must be contiguous"


def _refuse_out_prod(node: Tensor) -> str | None:
    a, b = _two(node)
    for t in (a, b):
        if t.dtype.name != "f32":
            return f"sources must be f32, not {t.dtype.name}"
    if not _has_rows(a):
        return "rows of the first source must be contiguous"
    if not _has_rows(b) and not _has_columns(b):
        return "the second source must have contiguous rows or columns"
    return None


def _two(node: Tensor) -> tuple[Tensor, Tensor]:
    a, b = node.src[0], node.src[1]
    assert a is not None and b is not None  # the op table says so
    return a, b


def _has_rows(t: Tensor) -> bool:
    """Whether `t` is a float matrix whose rows are contiguous, whole elements apart and do not
    overlap."""
    return t.nb[0] == 4 and _is_multiple(t.nb[1]) and upper(t.ne[0] * 4 - t.nb[1]) <= 0


def _has_columns(t: Tensor) -> bool:
    """Whether the transposed matrix is such a matrix."""
    return t.nb[1] == 4 and _is_multiple(t.nb[0]) and upper(t.ne[1] * 4 - t.nb[0]) <= 0


def _is_multiple(nbytes: Any) -> bool:
    return bool(nbytes % 4 == 0)
