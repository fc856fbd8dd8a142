"""Reductions and running sums of plain tensors, as PyTorch defines them.

Sizes in docstrings are `ne`, innermost first; an `axis` counts in the same order (0 is innermost),
and `axes` of a record is a mask: bit d stands for dimension d. "Numbers" are f32, f16, bf16, i8,
i16, i32 and i64; other types raise GraphError, as does an axis outside 0..3.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from functools import reduce as fold

from weft.dtype import DTYPES
from weft.graph.node import (
    FLOATS,
    INTEGERS,
    NUMBERS,
    check_axis,
    make_node,
    member,
    require,
    require_type,
)
from weft.graph.op import declares
from weft.graph.params import Params
from weft.graph.size import Size
from weft.graph.tensor import Tensor
from weft.records import dataclass

I8, I64 = DTYPES["i8"], DTYPES["i64"]


class ReduceOp(IntEnum):
    """The number that REDUCE computes from the elements along its axes."""

    SUM = 0
    MEAN = 1
    MAX = 2
    MIN = 3
    PROD = 4
    ANY = 5
    ALL = 6


class CumulateOp(IntEnum):
    """A running sum or a running product."""

    SUM = 0
    PROD = 1


@dataclass(frozen=True, slots=True)
class ReduceParams(Params):
    """The number that is computed, and the mask of axes that become 1."""

    op: ReduceOp
    axes: int


@dataclass(frozen=True, slots=True)
class ArgReduceParams(Params):
    """Largest or smallest, and the axis; -1 gives the position among all elements."""

    largest: bool
    axis: int


@dataclass(frozen=True, slots=True)
class CumulateParams(Params):
    """Sum or product, and the axis that it runs along."""

    op: CumulateOp
    axis: int


@declares("REDUCE", params=ReduceParams)
def reduce(op: ReduceOp | str, x: Tensor, axes: Sequence[int]) -> Tensor:
    """One number for all elements along `axes` (0 is innermost), which become 1 in the result.

    x: numbers; MEAN takes floats. Sums and products of integers are i64, ANY and ALL i8, others of
    the type of `x`. MAX and MIN give NaN where an element is one, and raise GraphError along an
    axis of size 0. Equals torch.sum, mean, amax, amin, prod, any and all with keepdim."""
    kind = member(ReduceOp, op, "REDUCE")
    name = f"REDUCE {kind.name}"
    require_type(x, FLOATS if kind is ReduceOp.MEAN else NUMBERS, name, "x")
    mask = fold(lambda m, d: m | 1 << check_axis(name, d, x), axes, 0)
    ne = tuple(1 if mask >> d & 1 else n for d, n in enumerate(x.ne))
    dtype = x.dtype
    if kind in (ReduceOp.ANY, ReduceOp.ALL):
        dtype = I8
    elif kind in (ReduceOp.SUM, ReduceOp.PROD) and dtype.name in INTEGERS:
        dtype = I64
    elif kind in (ReduceOp.MAX, ReduceOp.MIN):
        empty = any(mask >> d & 1 and n == 0 for d, n in enumerate(x.ne))
        require(not empty, name, "an axis of size 0 has no maximum and no minimum", x)
    return make_node("REDUCE", dtype, ne, x, params=ReduceParams(kind, mask))


@declares("ARG_REDUCE", params=ArgReduceParams)
def arg_reduce(x: Tensor, axis: int | None = None, *, largest: bool = True) -> Tensor:
    """The position of the largest (smallest) element along `axis`, which becomes 1 in the result;
    i64.

    The first one counts on ties, a NaN before all. `axis` None gives the position among all
    elements, counted innermost first: i64 [1]. x: numbers; GraphError where it has no elements.
    Equals torch.argmax and argmin."""
    require_type(x, NUMBERS, "ARG_REDUCE", "x")
    if axis is None:
        ne: tuple[Size, ...] = (1, 1, 1, 1)
    else:
        check_axis("ARG_REDUCE", axis, x)
        ne = tuple(1 if d == axis else n for d, n in enumerate(x.ne))
    require(0 not in x.ne, "ARG_REDUCE", "x has no elements", x)
    params = ArgReduceParams(bool(largest), -1 if axis is None else axis)
    return make_node("ARG_REDUCE", I64, ne, x, params=params)


@declares("CUMULATE", params=CumulateParams)
def cumulate(op: CumulateOp | str, x: Tensor, axis: int) -> Tensor:
    """The running sum or product along `axis` (0 is innermost); the sizes of `x`, i64 for integers.

    x: numbers. Equals torch.cumsum and cumprod."""
    kind = member(CumulateOp, op, "CUMULATE")
    require_type(x, NUMBERS, "CUMULATE", "x")
    dtype = I64 if x.dtype.name in INTEGERS else x.dtype
    params = CumulateParams(kind, check_axis("CUMULATE", axis, x))
    return make_node("CUMULATE", dtype, x.ne, x, params=params)


@declares("CUMULATE_ARG", params=ArgReduceParams, cost=2.0)
def cumulate_arg(x: Tensor, axis: int, *, largest: bool = True) -> Tensor:
    """The position of the largest (smallest) element so far along `axis`; i64, the sizes of `x`.

    The later one counts on ties; from a NaN on it is the last NaN. x: numbers; `gather` gives the
    values. Equals the indices of torch.cummax and cummin."""
    require_type(x, NUMBERS, "CUMULATE_ARG", "x")
    params = ArgReduceParams(bool(largest), check_axis("CUMULATE_ARG", axis, x))
    return make_node("CUMULATE_ARG", I64, x.ne, x, params=params)
