"""Reductions, sorting, generators and masks. Sizes are ggml's `ne`, innermost first."""

from __future__ import annotations

import math
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
from weft.records import dataclass

F32, I32, I64 = DTYPES["f32"], DTYPES["i32"], DTYPES["i64"]


class SortOrder(IntEnum):
    """The order of ARGSORT."""

    ASC = 0
    DESC = 1


class TriKind(IntEnum):
    """The triangle that TRI keeps; the numbers are ggml's."""

    UPPER_DIAG = 0
    UPPER = 1
    LOWER_DIAG = 2
    LOWER = 3


@dataclass(frozen=True, slots=True)
class ArgsortParams(Params):
    """The order of the sorted elements."""

    order: SortOrder


@dataclass(frozen=True, slots=True)
class TopKParams(Params):
    """The number of indices for each row."""

    k: int


@dataclass(frozen=True, slots=True)
class ArangeParams(Params):
    """A range that excludes `stop`."""

    start: float
    stop: float
    step: float


@dataclass(frozen=True, slots=True)
class TimestepParams(Params):
    """The length of an embedding in elements, and the longest period."""

    dim: int
    max_period: int


@dataclass(frozen=True, slots=True)
class TriParams(Params):
    """The triangle that stays."""

    kind: TriKind


@dataclass(frozen=True, slots=True)
class DiagMaskParams(Params):
    """Row i keeps columns up to n_past + i."""

    n_past: int


@declares("SUM")
def sum(x: Tensor) -> Tensor:
    """The sum of all elements: [1], type of `x`.

    x: f32, f16 or bf16, else GraphError. Equals ggml_sum."""
    require_type(x, FLOATS, "SUM", "x")
    return make_node("SUM", x.dtype, (1,), x)


@declares("SUM_ROWS")
def sum_rows(x: Tensor) -> Tensor:
    """The sum of each row: [n, ...] -> [1, ...], type of `x`.

    x: f32, f16 or bf16, else GraphError. Equals ggml_sum_rows."""
    require_type(x, FLOATS, "SUM_ROWS", "x")
    return make_node("SUM_ROWS", x.dtype, (1, *x.ne[1:]), x)


@declares("MEAN")
def mean(x: Tensor) -> Tensor:
    """The mean of each row: [n, ...] -> f32 [1, ...].

    x: f32, f16 or bf16, else GraphError. Equals ggml_mean."""
    require_type(x, FLOATS, "MEAN", "x")
    return make_node("MEAN", F32, (1, *x.ne[1:]), x)


@declares("CUMSUM")
def cumsum(x: Tensor) -> Tensor:
    """The running sum along each row; the sizes of `x`.

    x: f32, else GraphError. Equals ggml_cumsum."""
    require_type(x, ("f32",), "CUMSUM", "x")
    return like("CUMSUM", x)


@declares("ARGMAX")
def argmax(x: Tensor) -> Tensor:
    """The position of the largest element of each row (the last one on ties): f32 [n, m] -> i32
    [m].

    Raises GraphError for a third dimension. Equals ggml_argmax."""
    require_type(x, ("f32",), "ARGMAX", "x")
    require(x.ne[2] == 1 and x.ne[3] == 1, "ARGMAX", "x must be a matrix", x)
    return make_node("ARGMAX", I32, (x.ne[1],), x)


@declares("COUNT_EQUAL")
def count_equal(a: Tensor, b: Tensor) -> Tensor:
    """The number of elements that agree in two i32 tensors: i64 [1].

    Raises GraphError where the sizes differ. Equals ggml_count_equal."""
    require_type(a, ("i32",), "COUNT_EQUAL", "a")
    require_type(b, ("i32",), "COUNT_EQUAL", "b")
    require(same_ne(a, b), "COUNT_EQUAL", "a and b must have one shape", a, b)
    return make_node("COUNT_EQUAL", I64, (1,), a, b)


@declares("ARGSORT", params=ArgsortParams, cost=sorting)
def argsort(x: Tensor, order: SortOrder | str = SortOrder.ASC) -> Tensor:
    """The positions that sort each row: f32 [n, ...] -> i32 [n, ...], equal elements in any order.

    Raises GraphError for an unknown `order`. Equals ggml_argsort."""
    require_type(x, ("f32",), "ARGSORT", "x")
    kind = member(SortOrder, order, "ARGSORT")
    return make_node("ARGSORT", I32, x.ne, x, params=ArgsortParams(kind))


@declares("TOP_K", params=TopKParams, cost=sorting)
def top_k(x: Tensor, k: int) -> Tensor:
    """The positions of the k largest elements of each row, in no particular order: f32 [n, ...] ->
    i32 [k, ...]. Of equal elements the first count, which ggml_top_k leaves open.

    Raises GraphError where k is not in 1..n."""
    require_type(x, ("f32",), "TOP_K", "x")
    if k < 1 or not is_at_most(k, x.ne[0]):
        raise fail("TOP_K", f"k = {k} must be from 1 to the length of a row", x)
    return make_node("TOP_K", I32, (k, *x.ne[1:]), x, params=TopKParams(k))


@declares("ARANGE", params=ArangeParams)
def arange(start: float, stop: float, step: float = 1.0) -> Tensor:
    """The numbers start, start + step and so on below `stop`: f32 [ceil((stop - start) / step)].

    Raises GraphError where `stop` is not above `start` or `step` not above 0. Equals
    ggml_arange."""
    start, stop, step = f32(start), f32(stop), f32(step)
    if not (step > 0 and stop > start and math.isfinite((stop - start) / step)):
        raise GraphError(f"ARANGE: needs start < stop and step > 0, got {start}, {stop}, {step}")
    # float32 steps, as the reference counts them
    n = math.ceil(f32(f32(stop - start) / step))
    return make_node("ARANGE", F32, (n,), params=ArangeParams(start, stop, step))


@declares("TIMESTEP_EMBEDDING", params=TimestepParams, cost=20.0)
def timestep_embedding(timesteps: Tensor, dim: int, max_period: int = 10000) -> Tensor:
    """Sinusoids of f32 timesteps [n]: f32 [dim, n], first the cosines, then the sines, 0 last where
    dim is odd.

    Raises GraphError where `dim` or `max_period` is below 1. Equals ggml_timestep_embedding."""
    require_type(timesteps, ("f32",), "TIMESTEP_EMBEDDING", "timesteps")
    require(
        timesteps.n_rows == 1, "TIMESTEP_EMBEDDING", "timesteps must have one dimension", timesteps
    )
    if dim < 1 or max_period < 1:
        why = f"dim {dim} and max_period {max_period} must be 1 or more"
        raise fail("TIMESTEP_EMBEDDING", why, timesteps)
    params = TimestepParams(dim, max_period)
    return make_node("TIMESTEP_EMBEDDING", F32, (dim, timesteps.ne[0]), timesteps, params=params)


@declares("TRI", params=TriParams)
def tri(x: Tensor, kind: TriKind | str | int) -> Tensor:
    """One triangle of each square matrix, zero elsewhere; f32 [n, n, ...], as `x`.

    Raises GraphError where matrices are not square, where `x` has gaps, and for an unknown `kind`.
    Equals ggml_tri."""
    require_type(x, ("f32",), "TRI", "x")
    require(x.is_contiguous, "TRI", "x must be contiguous", x)
    require(x.ne[0] == x.ne[1], "TRI", "matrices must be square", x)
    return like("TRI", x, params=TriParams(member(TriKind, kind, "TRI")))


@declares("DIAG")
def diag(x: Tensor) -> Tensor:
    """Diagonal matrices of rows: f32 [n, 1, ...] -> [n, n, ...].

    Raises GraphError where ne[1] is not 1. Equals ggml_diag."""
    require_type(x, ("f32",), "DIAG", "x")
    require(x.ne[1] == 1, "DIAG", "x must be rows [n, 1, ...]", x)
    return make_node("DIAG", x.dtype, (x.ne[0], x.ne[0], x.ne[2], x.ne[3]), x)


@declares("DIAG_MASK_INF", inplace=True, params=DiagMaskParams)
def diag_mask_inf(x: Tensor, n_past: int, *, inplace: bool = False) -> Tensor:
    """-inf where column > n_past + row, else x; f32, the sizes of `x`.

    Raises GraphError for a negative `n_past`. Equals ggml_diag_mask_inf."""
    return _diag_mask("DIAG_MASK_INF", x, n_past, inplace)


@declares("DIAG_MASK_ZERO", inplace=True, params=DiagMaskParams)
def diag_mask_zero(x: Tensor, n_past: int, *, inplace: bool = False) -> Tensor:
    """0 where column > n_past + row, else x; f32, the sizes of `x`.

    Raises GraphError for a negative `n_past`. Equals ggml_diag_mask_zero."""
    return _diag_mask("DIAG_MASK_ZERO", x, n_past, inplace)


def _diag_mask(op: str, x: Tensor, n_past: int, inplace: bool) -> Tensor:
    require_type(x, ("f32",), op, "x")
    if n_past < 0:
        raise fail(op, f"n_past = {n_past} is negative", x)
    return like(op, x, params=DiagMaskParams(n_past), inplace=inplace)


@declares("CROSS_ENTROPY_LOSS", cost=12.0)
def cross_entropy_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """-sum(labels * log_softmax(logits)) / rows: f32 [1].

    logits, labels: f32 [n, ...], of the same sizes and without gaps, else GraphError. Equals
    ggml_cross_entropy_loss."""
    op = "CROSS_ENTROPY_LOSS"
    for role, t in (("logits", logits), ("labels", labels)):
        require_type(t, ("f32",), op, role)
        require(t.is_contiguous, op, f"{role} must be contiguous", t)
    require(same_ne(logits, labels), op, "logits and labels must have one shape", logits, labels)
    return make_node(op, F32, (1,), logits, labels)
