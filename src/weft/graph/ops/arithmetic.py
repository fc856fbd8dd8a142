"""Elementwise arithmetic and functions of one element.

Sizes in docstrings are ggml's `ne`, innermost first. `inplace=True` makes the result a view of the
first source: the op overwrites it. Unless said otherwise sources are f32, f16 or bf16, the result
has the type and sizes of the first source, and another type raises GraphError.
"""

from __future__ import annotations

from weft.dtype import DType, find_dtype
from weft.graph.node import FLOATS, can_repeat, f32, fail, like, make_node, require, require_type
from weft.graph.op import declares
from weft.graph.params import Params
from weft.graph.tensor import Tensor, contiguous_above
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class ScaleParams(Params):
    """The factor and the addend of `s * a + b`."""

    s: float
    b: float = 0.0


@dataclass(frozen=True, slots=True)
class ClampParams(Params):
    """The lower and the upper bound, both inclusive."""

    min: float
    max: float


@dataclass(frozen=True, slots=True)
class FillParams(Params):
    """The value of every element."""

    c: float


@dataclass(frozen=True, slots=True)
class LeakyReluParams(Params):
    """The slope below 0."""

    negative_slope: float


# -- arithmetic ------------------------------------------------------------------------------------


def _binary(op: str, a: Tensor, b: Tensor, inplace: bool) -> Tensor:
    require(can_repeat(b, a), op, "b must repeat to the shape of a", a, b)
    require_type(b, FLOATS, op, "b")
    return like(op, a, b, inplace=inplace)


@declares("ADD", inplace=True)
def add(a: Tensor, b: Tensor, *, inplace: bool = False) -> Tensor:
    """a + b, with `b` repeated to the sizes of `a`; the type and sizes of `a`, which may be of a
    block type.

    Raises GraphError where the sizes of `b` do not divide the sizes of `a`. Equals ggml_add."""
    return _binary("ADD", a, b, inplace)


@declares("SUB", inplace=True)
def sub(a: Tensor, b: Tensor, *, inplace: bool = False) -> Tensor:
    """a - b, with `b` repeated to the sizes of `a`; the type and sizes of `a`.

    Raises GraphError where the sizes of `b` do not divide the sizes of `a`. Equals ggml_sub."""
    return _binary("SUB", a, b, inplace)


@declares("MUL", inplace=True)
def mul(a: Tensor, b: Tensor, *, inplace: bool = False) -> Tensor:
    """a * b, with `b` repeated to the sizes of `a`; the type and sizes of `a`.

    Raises GraphError where the sizes of `b` do not divide the sizes of `a`. Equals ggml_mul."""
    return _binary("MUL", a, b, inplace)


@declares("DIV", inplace=True)
def div(a: Tensor, b: Tensor, *, inplace: bool = False) -> Tensor:
    """a / b, with `b` repeated to the sizes of `a`; the type and sizes of `a`.

    Raises GraphError where the sizes of `b` do not divide the sizes of `a`. Equals ggml_div."""
    return _binary("DIV", a, b, inplace)


def add_cast(a: Tensor, b: Tensor, dtype: DType | str) -> Tensor:
    """a + b as `dtype`, with the sizes of `a`; rows of `b` [n, ...] repeat to the rows of `a`
    [n, ...].

    Raises GraphError where they do not, and where `a` is neither f16, bf16 nor of a block type.
    Equals ggml_add_cast."""
    require(a.ne[0] == b.ne[0] and can_repeat(b, a), "ADD", "rows of b must repeat to a", a, b)
    require(a.dtype.is_quantized or a.dtype.name in ("f16", "bf16"), "ADD", "a needs no cast", a)
    require_type(b, FLOATS, "ADD", "b")
    return make_node("ADD", find_dtype(dtype), a.ne, a, b)


@declares("ADD1", inplace=True)
def add1(a: Tensor, b: Tensor, *, inplace: bool = False) -> Tensor:
    """a + the single element of `b`; the type and sizes of `a`.

    Raises GraphError where `b` has more than one element. Equals ggml_add1."""
    require(b.n_elements == 1, "ADD1", "b must have one element", a, b)
    require_type(b, FLOATS, "ADD1", "b")
    return like("ADD1", a, b, inplace=inplace)


@declares("ADD_ID", inplace=True)
def add_id(a: Tensor, b: Tensor, ids: Tensor, *, inplace: bool = False) -> Tensor:
    """a[:, i, t] + b[:, ids[i, t]]: adds to each row the bias of the expert that the row went to.

    a: [n, n_used, n_tokens], b: [n, n_expert], ids: i32 [n_used, n_tokens]. The result has the type
    and sizes of `a`. Raises GraphError where the sizes differ from these. Equals ggml_add_id."""
    require_type(ids, ("i32",), "ADD_ID", "ids")
    require(a.ne[0] == b.ne[0], "ADD_ID", "rows of a and b must have one length", a, b)
    fits = a.ne[1] == ids.ne[0] and a.ne[2] == ids.ne[1] and a.ne[3] == 1
    require(fits, "ADD_ID", "ids must be [a.ne[1], a.ne[2]]", a, b, ids)
    require(b.ne[2] == 1 and b.ne[3] == 1, "ADD_ID", "b must be a matrix", b)
    return like("ADD_ID", a, b, ids, inplace=inplace)


@declares("SCALE", inplace=True, params=ScaleParams)
def scale(x: Tensor, s: float, b: float = 0.0, *, inplace: bool = False) -> Tensor:
    """s * x + b with the type and sizes of `x`; `s` and `b` are rounded to f32.

    Raises GraphError where `x` has gaps other than between its rows. Equals ggml_scale_bias."""
    require_type(x, FLOATS, "SCALE", "x")
    require(contiguous_above(x, 1), "SCALE", "x has gaps inside or between matrices; use cont()", x)
    return like("SCALE", x, params=ScaleParams(f32(s), f32(b)), inplace=inplace)


# -- functions -------------------------------------------------------------------------------------


@declares("SQR", inplace=True)
def sqr(x: Tensor, *, inplace: bool = False) -> Tensor:
    """x * x; the type and sizes of `x`. Equals ggml_sqr."""
    return _function("SQR", x, inplace)


@declares("SQRT", inplace=True)
def sqrt(x: Tensor, *, inplace: bool = False) -> Tensor:
    """The square root of each element; the type and sizes of `x`. Equals ggml_sqrt."""
    return _function("SQRT", x, inplace)


@declares("LOG", inplace=True, cost=8.0)
def log(x: Tensor, *, inplace: bool = False) -> Tensor:
    """The natural logarithm of each element; the type and sizes of `x`. Equals ggml_log."""
    return _function("LOG", x, inplace)


@declares("SIN", cost=10.0)
def sin(x: Tensor, *, inplace: bool = False) -> Tensor:
    """The sine of each element in radians; the type and sizes of `x`. Equals ggml_sin."""
    return _function("SIN", x, inplace)


@declares("COS", cost=10.0)
def cos(x: Tensor, *, inplace: bool = False) -> Tensor:
    """The cosine of each element in radians; the type and sizes of `x`. Equals ggml_cos."""
    return _function("COS", x, inplace)


def _function(op: str, x: Tensor, inplace: bool) -> Tensor:
    require_type(x, FLOATS, op, "x")
    return like(op, x, inplace=inplace)


@declares("CLAMP", inplace=True, params=ClampParams)
def clamp(x: Tensor, low: float, high: float) -> Tensor:
    """Each element limited to low..high, both inclusive; the type and sizes of `x`.

    Raises GraphError where `low` is above `high` or either is a NaN. Equals ggml_clamp."""
    require_type(x, FLOATS, "CLAMP", "x")
    if not low <= high:
        raise fail("CLAMP", f"bounds {low}..{high} are the wrong way round", x)
    return like("CLAMP", x, params=ClampParams(f32(low), f32(high)))


@declares("FILL", inplace=True, params=FillParams)
def fill(x: Tensor, c: float, *, inplace: bool = False) -> Tensor:
    """The value `c` everywhere, with the type and sizes of `x`.

    Raises GraphError where `x` has gaps. Equals ggml_fill."""
    require_type(x, FLOATS, "FILL", "x")
    require(x.is_contiguous, "FILL", "x must be contiguous", x)
    return like("FILL", x, params=FillParams(f32(c)), inplace=inplace)


@declares("LEAKY_RELU", params=LeakyReluParams)
def leaky_relu(x: Tensor, negative_slope: float, *, inplace: bool = False) -> Tensor:
    """x where it is positive, else x * negative_slope; the type and sizes of `x`. Equals
    ggml_leaky_relu."""
    require_type(x, FLOATS, "LEAKY_RELU", "x")
    return like("LEAKY_RELU", x, params=LeakyReluParams(f32(negative_slope)), inplace=inplace)
