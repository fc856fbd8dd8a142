"""Constructors of elementwise ops and reductions on plain tensors, as PyTorch defines them.

Sizes in docstrings are `ne`, innermost first; an `axis` counts in the same order (0 is innermost).
Sources may have any strides. A boolean tensor is i8 holding 0 and 1. Two sizes broadcast where they
are the same or one of them is 1, on both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce as fold

from weft.dtype import DTYPES, DType, find_dtype
from weft.graph.node import FLOATS, fail, like, make_node, member, require, require_type
from weft.graph.op import find_op
from weft.graph.params import UnaryOp, UnaryParams
from weft.graph.params_tensor import (
    ArgReduceParams,
    BinaryOp,
    BinaryParams,
    ConvertParams,
    CumulateOp,
    CumulateParams,
    MapOp,
    MapParams,
    ReduceOp,
    ReduceParams,
)
from weft.graph.size import Size
from weft.graph.tensor import Tensor

__all__ = [
    "arg_reduce",
    "binary",
    "broadcast_ne",
    "convert",
    "cumulate",
    "map_elements",
    "pointwise",
    "reduce",
    "where",
]

INTEGERS = ("i8", "i16", "i32", "i64")
NUMBERS = (*FLOATS, *INTEGERS)
I8, I64 = DTYPES["i8"], DTYPES["i64"]


def broadcast_ne(op: str, *tensors: Tensor) -> tuple[Size, ...]:
    """The sizes that the sources broadcast to; raises GraphError naming them when they do not."""
    sizes: list[Size] = []
    for d in range(4):
        size: Size = 1
        for t in tensors:
            n = t.ne[d]
            require(
                n == 1 or size == 1 or n == size, op, f"sizes differ in dimension {d}", *tensors
            )
            size = n if size == 1 else size
        sizes.append(size)
    return tuple(sizes)


# -- elementwise -----------------------------------------------------------------------------------

_FLOATS_ONLY = (BinaryOp.DIV, BinaryOp.ATAN2)


def binary(op: BinaryOp | str, a: Tensor, b: Tensor) -> Tensor:
    """The function `op` of `a` and `b`, broadcast on both sides.

    Both of one type: f32, f16, bf16, i8, i16, i32 or i64; the result is of that type, for tests
    (EQ to LOGICAL_XOR) i8. DIV and ATAN2 take floats (convert integers before), bit functions and
    shifts integers. Integers wrap around; FLOOR_DIV, TRUNC_DIV, REMAINDER and FMOD of an integer by
    0 make the run fail. MIN and MAX give NaN where either is."""
    kind = member(BinaryOp, op, "BINARY")
    name = f"BINARY {kind.name}"
    types: tuple[str, ...] = NUMBERS
    if kind in _FLOATS_ONLY:
        types = FLOATS
    elif kind >= BinaryOp.BIT_AND:
        types = INTEGERS
    require(a.dtype is b.dtype, name, "a and b must have one type; use convert()", a, b)
    require_type(a, types, name, "a")
    ne = broadcast_ne(name, a, b)
    return make_node("BINARY", I8 if kind.is_test else a.dtype, ne, a, b, params=BinaryParams(kind))


_OF_INTEGERS = (MapOp.ABS, MapOp.NEG, MapOp.SIGN, MapOp.CLAMP, MapOp.LOGICAL_NOT)


def map_elements(
    op: MapOp | str, x: Tensor, a: float = 0.0, b: float = 0.0, c: float = 0.0
) -> Tensor:
    """The function `op` of each element, with the parameters that `MapOp` names.

    Floats; ABS, NEG, SIGN, CLAMP and tests also integers, BIT_NOT integers only. Type of `x`, for
    tests i8. `pointwise` takes the ggml functions, too."""
    kind = member(MapOp, op, "MAP")
    name = f"MAP {kind.name}"
    types = NUMBERS if kind in _OF_INTEGERS or kind.is_test else FLOATS
    require_type(x, INTEGERS if kind is MapOp.BIT_NOT else types, name, "x")
    params = MapParams(kind, float(a), float(b), float(c))
    return make_node("MAP", I8 if kind.is_test else x.dtype, x.ne, x, params=params)


_GGML = {
    "floor": UnaryOp.FLOOR,
    "ceil": UnaryOp.CEIL,
    "trunc": UnaryOp.TRUNC,
    "exp": UnaryOp.EXP,
    "expm1": UnaryOp.EXPM1,
    "tanh": UnaryOp.TANH,
    "sigmoid": UnaryOp.SIGMOID,
    "silu": UnaryOp.SILU,
    "hardswish": UnaryOp.HARDSWISH,
}
"""Functions of UNARY that mean the same in PyTorch."""

_GGML_OPS = {"sqrt": "SQRT", "log": "LOG", "sin": "SIN", "cos": "COS", "square": "SQR"}


def pointwise(name: str, x: Tensor, a: float = 0.0, b: float = 0.0, c: float = 0.0) -> Tensor:
    """The function called `name` in PyTorch of each element of `x`: one of ggml's ops where that
    means the same (so that fusions find it), else a MAP.

    Names are those of `MapOp` in any case, and floor, ceil, trunc, exp, expm1, tanh, sigmoid, silu,
    hardswish, sqrt, log, sin, cos, square, relu, relu6."""
    low = name.lower()
    if low in _GGML:
        require_type(x, FLOATS, low, "x")
        rows = x if x.is_contiguous_rows else like("CONT", x)
        return like("UNARY", rows, params=UnaryParams(_GGML[low]))
    if low in _GGML_OPS:
        require_type(x, FLOATS, low, "x")
        return make_node(find_op(_GGML_OPS[low]), x.dtype, x.ne, x)
    if low in ("relu", "relu6"):
        return map_elements(MapOp.CLAMP, x, 0.0, 6.0 if low == "relu6" else float("inf"))
    return map_elements(name, x, a, b, c)


def where(condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """`a` where `condition` (i8) is not 0, else `b`; all three broadcast. `a`, `b`: of one type."""
    require_type(condition, ("i8",), "WHERE", "condition")
    require_type(a, (*NUMBERS, "f64"), "WHERE", "a")
    require(a.dtype is b.dtype, "WHERE", "a and b must have one type; use convert()", a, b)
    return make_node("WHERE", a.dtype, broadcast_ne("WHERE", condition, a, b), condition, a, b)


def convert(x: Tensor, dtype: DType | str, *, boolean: bool = False) -> Tensor:
    """`x` as another type of plain elements, contiguous. Floats are truncated to integers, integers
    wrap around, and what no integer can hold is undefined. `boolean`: 1 where not 0 (a NaN is not).
    """
    to = find_dtype(dtype)
    types = (*NUMBERS, "f64")
    require_type(x, types, "CONVERT", "x")
    if to.name not in types:
        raise fail("CONVERT", f"the type must be {', '.join(types)}, got {to.name}", x)
    return make_node("CONVERT", to, x.ne, x, params=ConvertParams(bool(boolean)))


# -- reductions ------------------------------------------------------------------------------------


def check_axis(op: str, axis: int, x: Tensor) -> int:
    """`axis`, or a GraphError when it is not 0..3."""
    if not 0 <= axis < 4:
        raise fail(op, f"an axis is 0..3, innermost first, got {axis}", x)
    return axis


def reduce(op: ReduceOp | str, x: Tensor, axes: Sequence[int]) -> Tensor:
    """One number of all elements along `axes` (0 is innermost), which become 1 in the result.

    Sums and products of integers are i64, ANY and ALL i8, others of the type of `x`; MEAN takes
    floats. MAX and MIN give NaN where there is one."""
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
        require(not empty, name, "no element has no maximum and no minimum", x)
    return make_node("REDUCE", dtype, ne, x, params=ReduceParams(kind, mask))


def arg_reduce(x: Tensor, axis: int | None = None, *, largest: bool = True) -> Tensor:
    """Where the largest (smallest) element along `axis` is, i64; the first one on ties, and a NaN
    before all. The axis becomes 1; None: the position among all elements, innermost first."""
    require_type(x, NUMBERS, "ARG_REDUCE", "x")
    if axis is None:
        ne: tuple[Size, ...] = (1, 1, 1, 1)
    else:
        check_axis("ARG_REDUCE", axis, x)
        ne = tuple(1 if d == axis else n for d, n in enumerate(x.ne))
    require(0 not in x.ne, "ARG_REDUCE", "no element has no position", x)
    params = ArgReduceParams(bool(largest), -1 if axis is None else axis)
    return make_node("ARG_REDUCE", I64, ne, x, params=params)


def cumulate(op: CumulateOp | str, x: Tensor, axis: int) -> Tensor:
    """Running sum or product along `axis` (0 is innermost); same sizes, i64 for integers."""
    kind = member(CumulateOp, op, "CUMULATE")
    require_type(x, NUMBERS, "CUMULATE", "x")
    dtype = I64 if x.dtype.name in INTEGERS else x.dtype
    params = CumulateParams(kind, check_axis("CUMULATE", axis, x))
    return make_node("CUMULATE", dtype, x.ne, x, params=params)
