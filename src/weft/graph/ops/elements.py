"""Elementwise ops on plain tensors, as PyTorch defines them.

Sizes in docstrings are `ne`, innermost first. Sources may have any strides. A boolean tensor is i8
holding 0 and 1. Two sizes broadcast where they are the same or one of them is 1, on both sides.
"""

from __future__ import annotations

from enum import IntEnum

from weft.dtype import DTYPES, DType, find_dtype
from weft.graph.node import (
    FLOATS,
    INTEGERS,
    NUMBERS,
    broadcast_ne,
    fail,
    like,
    make_node,
    member,
    require,
    require_type,
)
from weft.graph.op import declares, find_op
from weft.graph.ops.activations import UnaryOp, UnaryParams
from weft.graph.params import Params
from weft.graph.tensor import Tensor
from weft.records import dataclass

I8, I64 = DTYPES["i8"], DTYPES["i64"]


class BinaryOp(IntEnum):
    """Functions of two numbers. From EQ to LOGICAL_XOR the result is 0 or 1, as i8."""

    ADD = 0
    SUB = 1
    MUL = 2
    DIV = 3
    FLOOR_DIV = 4
    TRUNC_DIV = 5
    REMAINDER = 6
    FMOD = 7
    POW = 8
    MIN = 9
    MAX = 10
    ATAN2 = 11
    EQ = 12
    NE = 13
    LT = 14
    LE = 15
    GT = 16
    GE = 17
    LOGICAL_AND = 18
    LOGICAL_OR = 19
    LOGICAL_XOR = 20
    BIT_AND = 21
    BIT_OR = 22
    BIT_XOR = 23
    SHIFT_LEFT = 24
    SHIFT_RIGHT = 25

    @property
    def is_test(self) -> bool:
        """Whether the result is 0 or 1, as i8."""
        return BinaryOp.EQ <= self <= BinaryOp.LOGICAL_XOR


class MapOp(IntEnum):
    """Functions of one number and up to three parameters a, b and c, as PyTorch defines them: a NaN
    stays a NaN. From LOGICAL_NOT on the result is 0 or 1, as i8."""

    ABS = 0
    NEG = 1
    SIGN = 2
    BIT_NOT = 3
    CLAMP = 4
    """Limited to a..b."""
    ROUND_EVEN = 5
    """Halves to the even neighbour."""
    EXP2 = 6
    LOG2 = 7
    LOG10 = 8
    LOG1P = 9
    RSQRT = 10
    RECIPROCAL = 11
    TAN = 12
    ASIN = 13
    ACOS = 14
    ATAN = 15
    SINH = 16
    COSH = 17
    ASINH = 18
    ACOSH = 19
    ATANH = 20
    ERF = 21
    ERFC = 22
    ELU = 23
    """x b above 0, else a b (exp(c x) - 1)."""
    SOFTPLUS = 24
    """log(1 + exp(a x)) / a, and x itself where a x > b."""
    SOFTSHRINK = 25
    """x moved towards 0 by a."""
    HARDSHRINK = 26
    """0 where |x| <= a."""
    THRESHOLD = 27
    """x above a, else b."""
    HARDSIGMOID = 28
    MISH = 29
    LOG_SIGMOID = 30
    LEAKY_RELU = 31
    """a x below 0."""
    POW = 32
    """x to the power a."""
    GELU = 33
    """Through erf."""
    GELU_TANH = 34
    LOGICAL_NOT = 35
    IS_NAN = 36
    IS_INF = 37
    IS_FINITE = 38

    @property
    def is_test(self) -> bool:
        """Whether the result is 0 or 1, as i8."""
        return self >= MapOp.LOGICAL_NOT


@dataclass(frozen=True, slots=True)
class BinaryParams(Params):
    """The function of BINARY."""

    op: BinaryOp


@dataclass(frozen=True, slots=True)
class MapParams(Params):
    """The function of MAP and its parameters."""

    op: MapOp
    a: float = 0.0
    b: float = 0.0
    c: float = 0.0


@dataclass(frozen=True, slots=True)
class ConvertParams(Params):
    """`boolean` makes the result 1 where the element is not 0, else 0."""

    boolean: bool = False


_FLOATS_ONLY = (BinaryOp.DIV, BinaryOp.ATAN2)


@declares("BINARY", inplace=True, params=BinaryParams)
def binary(op: BinaryOp | str, a: Tensor, b: Tensor) -> Tensor:
    """The function `op` of `a` and `b`, whose sizes broadcast both ways.

    Both are of one type: f32, f16, bf16, i8, i16, i32 or i64. The result is of that type, for tests
    (EQ to LOGICAL_XOR) i8. DIV and ATAN2 take floats (convert integers before), bit functions and
    shifts take integers. Integers wrap around; FLOOR_DIV, TRUNC_DIV, REMAINDER and FMOD of an
    integer by 0 make the run fail. MIN and MAX give NaN where either is one. Raises GraphError for
    other types, sizes that do not broadcast and an unknown `op`. Equals the torch function of the
    same name."""
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


@declares("MAP", inplace=True, params=MapParams, cost=10.0)
def map_elements(
    op: MapOp | str, x: Tensor, a: float = 0.0, b: float = 0.0, c: float = 0.0
) -> Tensor:
    """The function `op` of each element, with the parameters a, b and c that `MapOp` describes.

    x: f32, f16 or bf16, any sizes; for ABS, NEG, SIGN, CLAMP and tests also integers, for BIT_NOT
    integers alone. The result has the sizes and the type of `x`, for tests i8. Raises GraphError
    for other types and an unknown `op`. Equals PyTorch's function of that name; `pointwise` also
    has ggml's."""
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
    """The function that PyTorch calls `name`, of each element of `x`; the sizes of `x`.

    Names are `MapOp`'s in any case, and floor, ceil, trunc, exp, expm1, tanh, sigmoid, silu,
    hardswish, sqrt, log, sin, cos, square, relu, relu6. Where an op of ggml means the same it is
    used, because fusions look for it; else the node is a MAP. Raises GraphError as `map_elements`
    does."""
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


@declares("WHERE", inplace=True, cost=0.0)
def where(condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """`a` where `condition` is not 0, else `b`; all three broadcast, the result has the type of
    `a`.

    condition: i8; a, b: numbers or f64 of one type. Raises GraphError for other types and sizes
    that do not broadcast. Equals torch.where."""
    require_type(condition, ("i8",), "WHERE", "condition")
    require_type(a, (*NUMBERS, "f64"), "WHERE", "a")
    require(a.dtype is b.dtype, "WHERE", "a and b must have one type; use convert()", a, b)
    return make_node("WHERE", a.dtype, broadcast_ne("WHERE", condition, a, b), condition, a, b)


@declares("CONVERT", inplace=True, params=ConvertParams, cost=0.0)
def convert(x: Tensor, dtype: DType | str, *, boolean: bool = False) -> Tensor:
    """`x` as another type of plain elements, contiguous; the sizes of `x`.

    Floats are truncated to integers and integers wrap around; a float that no integer of the type
    can hold becomes an undefined value. `boolean` gives 1 where the element is not 0 (a NaN is
    not), else 0. Raises GraphError for block types. Equals torch.Tensor.to."""
    to = find_dtype(dtype)
    types = (*NUMBERS, "f64")
    require_type(x, types, "CONVERT", "x")
    if to.name not in types:
        raise fail("CONVERT", f"the type must be {', '.join(types)}, got {to.name}", x)
    return make_node("CONVERT", to, x.ne, x, params=ConvertParams(bool(boolean)))
