"""Reductions, sorting, generators and masks. Sizes are ggml's `ne`, innermost first."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

from weft.dtype import DTYPES
from weft.errors import GraphError
from weft.graph.costs import sorting
from weft.graph.node import (
    FLOATS,
    f32,
    fail,
    like,
    make_node,
    member,
    require,
    require_type,
    same_ne,
)
from weft.graph.op import declares
from weft.graph.params import Params
from weft.graph.size import is_at_most
from weft.graph.tensor import Tensor

F32, I32, I64 = DTYPES["f32"], DTYPES["i32"], DTYPES["i64"]


class SortOrder(IntEnum):
    """Order of ARGSORT."""

    ASC = 0
    DESC = 1


class TriKind(IntEnum):
    """Which triangle TRI keeps; the numbers are ggml's."""

    UPPER_DIAG = 0
    UPPER = 1
    LOWER_DIAG = 2
    LOWER = 3


@dataclass(frozen=True, slots=True)
class ArgsortParams(Params):
    """Sort order."""

    order: SortOrder


@dataclass(frozen=True, slots=True)
class TopKParams(Params):
    """Number of indices kept per row."""

    k: int


@dataclass(frozen=True, slots=True)
class ArangeParams(Params):
    """Half-open range."""

    start: float
    stop: float
    step: float


@dataclass(frozen=True, slots=True)
class TimestepParams(Params):
    """Embedding length and longest period."""

    dim: int
    max_period: int


@dataclass(frozen=True, slots=True)
class TriParams(Params):
    """Which triangle is kept."""

    kind: TriKind


@dataclass(frozen=True, slots=True)
class DiagMaskParams(Params):
    """Row i keeps columns up to n_past + i."""

    n_past: int


@declares("SUM")
def sum(x: Tensor) -> Tensor:
    """The sum of all elements: [1], type of `x`."""
    require_type(x, FLOATS, "SUM", "x")
    return make_node("SUM", x.dtype, (1,), x)


@declares("SUM_ROWS")
def sum_rows(x: Tensor) -> Tensor:
    """The sum of each row: [n, ...] -> [1, ...], type of `x`."""
    require_type(x, FLOATS, "SUM_ROWS", "x")
    return make_node("SUM_ROWS", x.dtype, (1, *x.ne[1:]), x)


@declares("MEAN")
def mean(x: Tensor) -> Tensor:
    """The mean of each row: [n, ...] -> f32 [1, ...]."""
    require_type(x, FLOATS, "MEAN", "x")
    return make_node("MEAN", F32, (1, *x.ne[1:]), x)


@declares("CUMSUM")
def cumsum(x: Tensor) -> Tensor:
    """Running sum along each row; same shape, f32."""
    require_type(x, ("f32",), "CUMSUM", "x")
    return like("CUMSUM", x)


@declares("ARGMAX")
def argmax(x: Tensor) -> Tensor:
    """Position of the largest element of each row (the last one on ties): [n, m] -> i32 [m]."""
    require_type(x, ("f32",), "ARGMAX", "x")
    require(x.ne[2] == 1 and x.ne[3] == 1, "ARGMAX", "x must be a matrix", x)
    return make_node("ARGMAX", I32, (x.ne[1],), x)


@declares("COUNT_EQUAL")
def count_equal(a: Tensor, b: Tensor) -> Tensor:
    """How many elements of two i32 tensors agree: i64 [1]."""
    require_type(a, ("i32",), "COUNT_EQUAL", "a")
    require_type(b, ("i32",), "COUNT_EQUAL", "b")
    require(same_ne(a, b), "COUNT_EQUAL", "a and b must have one shape", a, b)
    return make_node("COUNT_EQUAL", I64, (1,), a, b)


@declares("ARGSORT", params=ArgsortParams, cost=sorting)
def argsort(x: Tensor, order: SortOrder | str = SortOrder.ASC) -> Tensor:
    """Positions that sort each row: [n, ...] -> i32 [n, ...]. Equal elements in any order."""
    require_type(x, ("f32",), "ARGSORT", "x")
    kind = member(SortOrder, order, "ARGSORT")
    return make_node("ARGSORT", I32, x.ne, x, params=ArgsortParams(kind))


@declares("TOP_K", params=TopKParams, cost=sorting)
def top_k(x: Tensor, k: int) -> Tensor:
    """Positions of the k largest elements of each row, in no particular order: i32 [k, ...]."""
    require_type(x, ("f32",), "TOP_K", "x")
    if k < 1 or not is_at_most(k, x.ne[0]):
        raise fail("TOP_K", f"k = {k} must be from 1 to the length of a row", x)
    return make_node("TOP_K", I32, (k, *x.ne[1:]), x, params=TopKParams(k))


@declares("ARANGE", params=ArangeParams)
def arange(start: float, stop: float, step: float = 1.0) -> Tensor:
    """f32 [ceil((stop - start) / step)]: start, start + step, ... below `stop`."""
    start, stop, step = f32(start), f32(stop), f32(step)
    if not (step > 0 and stop > start and math.isfinite((stop - start) / step)):
        raise GraphError(f"ARANGE: needs start < stop and step > 0, got {start}, {stop}, {step}")
    # float32 steps, as the reference counts them
    n = math.ceil(f32(f32(stop - start) / step))
    return make_node("ARANGE", F32, (n,), params=ArangeParams(start, stop, step))


@declares("TIMESTEP_EMBEDDING", params=TimestepParams, cost=20.0)
def timestep_embedding(timesteps: Tensor, dim: int, max_period: int = 10000) -> Tensor:
    """Sinusoids of f32 timesteps [n]: f32 [dim, n]: cosines, sines, 0 where dim is odd."""
    require_type(timesteps, ("f32",), "TIMESTEP_EMBEDDING", "timesteps")
    require(
        timesteps.n_rows == 1, "TIMESTEP_EMBEDDING", "timesteps must have one dimension", timesteps
    )
    if dim < 1 or max_period < 1:
        raise fail("TIMESTEP_EMBEDDING", f"dim {dim}, max_period {max_period} need 1+", timesteps)
    params = TimestepParams(dim, max_period)
    return make_node("TIMESTEP_EMBEDDING", F32, (dim, timesteps.ne[0]), timesteps, params=params)


@declares("TRI", params=TriParams)
def tri(x: Tensor, kind: TriKind | str | int) -> Tensor:
    """One triangle of each square matrix, zero elsewhere; same shape."""
    require_type(x, ("f32",), "TRI", "x")
    require(x.is_contiguous, "TRI", "x must be contiguous", x)
    require(x.ne[0] == x.ne[1], "TRI", "matrices must be square", x)
    return like("TRI", x, params=TriParams(member(TriKind, kind, "TRI")))


@declares("DIAG")
def diag(x: Tensor) -> Tensor:
    """Diagonal matrices: [n, 1, ...] -> [n, n, ...]."""
    require_type(x, ("f32",), "DIAG", "x")
    require(x.ne[1] == 1, "DIAG", "x must be rows [n, 1, ...]", x)
    return make_node("DIAG", x.dtype, (x.ne[0], x.ne[0], x.ne[2], x.ne[3]), x)


@declares("DIAG_MASK_INF", inplace=True, params=DiagMaskParams)
def diag_mask_inf(x: Tensor, n_past: int, *, inplace: bool = False) -> Tensor:
    """-inf where column > n_past + row, else x; same shape, f32."""
    return _diag_mask("DIAG_MASK_INF", x, n_past, inplace)


@declares("DIAG_MASK_ZERO", inplace=True, params=DiagMaskParams)
def diag_mask_zero(x: Tensor, n_past: int, *, inplace: bool = False) -> Tensor:
    """0 where column > n_past + row, else x; same shape, f32."""
    return _diag_mask("DIAG_MASK_ZERO", x, n_past, inplace)


def _diag_mask(op: str, x: Tensor, n_past: int, inplace: bool) -> Tensor:
    require_type(x, ("f32",), op, "x")
    if n_past < 0:
        raise fail(op, f"n_past = {n_past} is negative", x)
    return like(op, x, params=DiagMaskParams(n_past), inplace=inplace)


@declares("CROSS_ENTROPY_LOSS", cost=12.0)
def cross_entropy_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """-sum(labels * log_softmax(logits)) / rows: f32 [1]. Both f32, contiguous, one shape."""
    op = "CROSS_ENTROPY_LOSS"
    for role, t in (("logits", logits), ("labels", labels)):
        require_type(t, ("f32",), op, role)
        require(t.is_contiguous, op, f"{role} must be contiguous", t)
    require(same_ne(logits, labels), op, "logits and labels must have one shape", logits, labels)
    return make_node(op, F32, (1,), logits, labels)
