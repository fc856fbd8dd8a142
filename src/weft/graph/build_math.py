"""Constructors of elementwise ops: arithmetic, functions of one variable, gated activations.

Sizes in docstrings are ggml's `ne`, innermost first. `inplace=True` makes the result a view of the
first source: the op overwrites it.
"""

from __future__ import annotations

import math

from weft.dtype import DType, find_dtype
from weft.graph.node import (
    FLOATS,
    can_repeat,
    f32,
    fail,
    like,
    make_node,
    member,
    require,
    require_type,
    same_ne,
)
from weft.graph.params import (
    ClampParams,
    FillParams,
    GluOp,
    GluParams,
    LeakyReluParams,
    ScaleParams,
    UnaryOp,
    UnaryParams,
)
from weft.graph.size import exact_div
from weft.graph.tensor import Tensor, contiguous_above

__all__ = [
    "abs",
    "add",
    "add1",
    "add_cast",
    "add_id",
    "ceil",
    "clamp",
    "cos",
    "div",
    "elu",
    "exp",
    "expm1",
    "fill",
    "floor",
    "geglu",
    "geglu_erf",
    "geglu_quick",
    "gelu",
    "gelu_erf",
    "gelu_quick",
    "glu",
    "hardsigmoid",
    "hardswish",
    "leaky_relu",
    "log",
    "mul",
    "neg",
    "reglu",
    "relu",
    "round",
    "scale",
    "sgn",
    "sigmoid",
    "silu",
    "sin",
    "softplus",
    "sqr",
    "sqrt",
    "step",
    "sub",
    "swiglu",
    "swiglu_clamp",
    "swiglu_oai",
    "tanh",
    "trunc",
    "unary",
    "xielu",
]


# -- arithmetic ------------------------------------------------------------------------------------


def _binary(op: str, a: Tensor, b: Tensor, inplace: bool) -> Tensor:
    require(can_repeat(b, a), op, "b must repeat to the shape of a", a, b)
    require_type(b, FLOATS, op, "b")
    return like(op, a, b, inplace=inplace)


def add(a: Tensor, b: Tensor, *, inplace: bool = False) -> Tensor:
    """a + b, `b` repeated to the shape of `a`; type of `a` (which may be a block type)."""
    return _binary("ADD", a, b, inplace)


def sub(a: Tensor, b: Tensor, *, inplace: bool = False) -> Tensor:
    """a - b, `b` repeated to the shape of `a`; type of `a`."""
    return _binary("SUB", a, b, inplace)


def mul(a: Tensor, b: Tensor, *, inplace: bool = False) -> Tensor:
    """a * b, `b` repeated to the shape of `a`; type of `a`."""
    return _binary("MUL", a, b, inplace)


def div(a: Tensor, b: Tensor, *, inplace: bool = False) -> Tensor:
    """a / b, `b` repeated to the shape of `a`; type of `a`."""
    return _binary("DIV", a, b, inplace)


def add_cast(a: Tensor, b: Tensor, dtype: DType | str) -> Tensor:
    """a + b as `dtype`; `a` is a block type, f16 or bf16, rows of `b` repeat to those of `a`."""
    require(a.ne[0] == b.ne[0] and can_repeat(b, a), "ADD", "rows of b must repeat to a", a, b)
    require(a.dtype.is_quantized or a.dtype.name in ("f16", "bf16"), "ADD", "a needs no cast", a)
    require_type(b, FLOATS, "ADD", "b")
    return make_node("ADD", find_dtype(dtype), a.ne, a, b)


def add1(a: Tensor, b: Tensor, *, inplace: bool = False) -> Tensor:
    """a + the single element of `b`."""
    require(b.n_elements == 1, "ADD1", "b must have one element", a, b)
    require_type(b, FLOATS, "ADD1", "b")
    return like("ADD1", a, b, inplace=inplace)


def add_id(a: Tensor, b: Tensor, ids: Tensor, *, inplace: bool = False) -> Tensor:
    """a[:, i, t] + b[:, ids[i, t]]: the bias of the expert that each row went to.

    a: [n, n_used, n_tokens], b: [n, n_expert], ids: i32 [n_used, n_tokens]."""
    require_type(ids, ("i32",), "ADD_ID", "ids")
    require(a.ne[0] == b.ne[0], "ADD_ID", "rows of a and b must have one length", a, b)
    require(
        a.ne[1] == ids.ne[0] and a.ne[2] == ids.ne[1] and a.ne[3] == 1,
        "ADD_ID",
        "ids must be [a.ne[1], a.ne[2]]",
        a,
        b,
        ids,
    )
    require(b.ne[2] == 1 and b.ne[3] == 1, "ADD_ID", "b must be a matrix", b)
    return like("ADD_ID", a, b, ids, inplace=inplace)


def scale(x: Tensor, s: float, b: float = 0.0, *, inplace: bool = False) -> Tensor:
    """s * x + b. `x` must have no gaps but between rows."""
    require_type(x, FLOATS, "SCALE", "x")
    require(contiguous_above(x, 1), "SCALE", "x has gaps inside or between matrices; use cont()", x)
    return like("SCALE", x, params=ScaleParams(f32(s), f32(b)), inplace=inplace)


def sqr(x: Tensor, *, inplace: bool = False) -> Tensor:
    """x * x."""
    return _function("SQR", x, inplace)


def sqrt(x: Tensor, *, inplace: bool = False) -> Tensor:
    """Square root."""
    return _function("SQRT", x, inplace)


def log(x: Tensor, *, inplace: bool = False) -> Tensor:
    """Natural logarithm."""
    return _function("LOG", x, inplace)


def sin(x: Tensor, *, inplace: bool = False) -> Tensor:
    """Sine of radians."""
    return _function("SIN", x, inplace)


def cos(x: Tensor, *, inplace: bool = False) -> Tensor:
    """Cosine of radians."""
    return _function("COS", x, inplace)


def _function(op: str, x: Tensor, inplace: bool) -> Tensor:
    require_type(x, FLOATS, op, "x")
    return like(op, x, inplace=inplace)


def clamp(x: Tensor, low: float, high: float) -> Tensor:
    """x limited to low..high, both inclusive."""
    require_type(x, FLOATS, "CLAMP", "x")
    if not low <= high:
        raise fail("CLAMP", f"bounds {low}..{high} are the wrong way round", x)
    return like("CLAMP", x, params=ClampParams(f32(low), f32(high)))


def fill(x: Tensor, c: float, *, inplace: bool = False) -> Tensor:
    """A tensor of the type and shape of `x` with the value `c` everywhere."""
    require_type(x, FLOATS, "FILL", "x")
    require(x.is_contiguous, "FILL", "x must be contiguous", x)
    return like("FILL", x, params=FillParams(f32(c)), inplace=inplace)


def leaky_relu(x: Tensor, negative_slope: float, *, inplace: bool = False) -> Tensor:
    """x where positive, else x * negative_slope."""
    require_type(x, FLOATS, "LEAKY_RELU", "x")
    return like("LEAKY_RELU", x, params=LeakyReluParams(f32(negative_slope)), inplace=inplace)


# -- functions of one variable ---------------------------------------------------------------------


def unary(op: UnaryOp | str, x: Tensor, *, inplace: bool = False) -> Tensor:
    """The elementwise function `op` of `x`; rows of `x` must be contiguous. XIELU: see `xielu`."""
    kind = member(UnaryOp, op, "UNARY")
    if kind is UnaryOp.XIELU:
        raise fail("UNARY", "XIELU has parameters; use xielu()", x)
    return _unary(UnaryParams(kind), x, inplace)


def _unary(params: UnaryParams, x: Tensor, inplace: bool) -> Tensor:
    require_type(x, FLOATS, params.op.name, "x")
    require(x.is_contiguous_rows, params.op.name, "rows of x must be contiguous; use cont()", x)
    return like("UNARY", x, params=params, inplace=inplace)


def abs(x: Tensor, *, inplace: bool = False) -> Tensor:
    """Absolute value."""
    return unary(UnaryOp.ABS, x, inplace=inplace)


def sgn(x: Tensor, *, inplace: bool = False) -> Tensor:
    """-1, 0 or 1."""
    return unary(UnaryOp.SGN, x, inplace=inplace)


def neg(x: Tensor, *, inplace: bool = False) -> Tensor:
    """-x."""
    return unary(UnaryOp.NEG, x, inplace=inplace)


def step(x: Tensor, *, inplace: bool = False) -> Tensor:
    """1 where x > 0, else 0."""
    return unary(UnaryOp.STEP, x, inplace=inplace)


def tanh(x: Tensor, *, inplace: bool = False) -> Tensor:
    """Hyperbolic tangent."""
    return unary(UnaryOp.TANH, x, inplace=inplace)


def elu(x: Tensor, *, inplace: bool = False) -> Tensor:
    """x where positive, else exp(x) - 1."""
    return unary(UnaryOp.ELU, x, inplace=inplace)


def relu(x: Tensor, *, inplace: bool = False) -> Tensor:
    """max(x, 0)."""
    return unary(UnaryOp.RELU, x, inplace=inplace)


def sigmoid(x: Tensor, *, inplace: bool = False) -> Tensor:
    """1 / (1 + exp(-x))."""
    return unary(UnaryOp.SIGMOID, x, inplace=inplace)


def gelu(x: Tensor, *, inplace: bool = False) -> Tensor:
    """Gaussian error linear unit, tanh approximation."""
    return unary(UnaryOp.GELU, x, inplace=inplace)


def gelu_quick(x: Tensor, *, inplace: bool = False) -> Tensor:
    """x * sigmoid(1.702 x)."""
    return unary(UnaryOp.GELU_QUICK, x, inplace=inplace)


def gelu_erf(x: Tensor, *, inplace: bool = False) -> Tensor:
    """Gaussian error linear unit through erf."""
    return unary(UnaryOp.GELU_ERF, x, inplace=inplace)


def silu(x: Tensor, *, inplace: bool = False) -> Tensor:
    """x * sigmoid(x)."""
    return unary(UnaryOp.SILU, x, inplace=inplace)


def hardswish(x: Tensor, *, inplace: bool = False) -> Tensor:
    """x * min(1, max(0, (x + 3) / 6))."""
    return unary(UnaryOp.HARDSWISH, x, inplace=inplace)


def hardsigmoid(x: Tensor, *, inplace: bool = False) -> Tensor:
    """min(1, max(0, (x + 3) / 6))."""
    return unary(UnaryOp.HARDSIGMOID, x, inplace=inplace)


def exp(x: Tensor, *, inplace: bool = False) -> Tensor:
    """e to the x."""
    return unary(UnaryOp.EXP, x, inplace=inplace)


def expm1(x: Tensor, *, inplace: bool = False) -> Tensor:
    """exp(x) - 1."""
    return unary(UnaryOp.EXPM1, x, inplace=inplace)


def softplus(x: Tensor, *, inplace: bool = False) -> Tensor:
    """log(1 + exp(x)), x itself above 20."""
    return unary(UnaryOp.SOFTPLUS, x, inplace=inplace)


def floor(x: Tensor, *, inplace: bool = False) -> Tensor:
    """Rounded down."""
    return unary(UnaryOp.FLOOR, x, inplace=inplace)


def ceil(x: Tensor, *, inplace: bool = False) -> Tensor:
    """Rounded up."""
    return unary(UnaryOp.CEIL, x, inplace=inplace)


def round(x: Tensor, *, inplace: bool = False) -> Tensor:
    """Rounded to the nearest integer, halves away from zero."""
    return unary(UnaryOp.ROUND, x, inplace=inplace)


def trunc(x: Tensor, *, inplace: bool = False) -> Tensor:
    """Rounded towards zero."""
    return unary(UnaryOp.TRUNC, x, inplace=inplace)


def xielu(x: Tensor, alpha_n: float, alpha_p: float, beta: float, eps: float) -> Tensor:
    """xIELU (arXiv 2411.13010) with trainable `alpha_n`, `alpha_p`; `beta`, `eps` are constants.

    Positive: softplus(alpha_p) x^2 + beta x. Else (expm1(min(x, eps)) - x)(beta +
    softplus(alpha_n)) + beta x. The record holds the two slopes as the kernel uses them."""
    stored = UnaryParams(
        UnaryOp.XIELU,
        alpha_n=f32(f32(beta) + _softplus(alpha_n)),
        alpha_p=_softplus(alpha_p),
        beta=f32(beta),
        eps=f32(eps),
    )
    return _unary(stored, x, False)


def _softplus(x: float) -> float:
    # rounded to float32 after each step, as the reference computes it
    v = f32(x)
    return v if v > 20 else f32(math.log(f32(1 + f32(math.exp(v)))))


# -- gated activations -----------------------------------------------------------------------------


def glu(
    op: GluOp | str,
    a: Tensor,
    b: Tensor | None = None,
    swapped: bool = False,
    *,
    alpha: float = 0.0,
    limit: float = 0.0,
) -> Tensor:
    """act(first) * second. Without `b`, first and second are the halves of the rows of `a`.

    a: [2n, ...] -> [n, ...]; or a, b: [n, ...] of one type and shape -> [n, ...]. `swapped`: the
    second half of `a` is the activated one. `alpha`, `limit`: see swiglu_oai, swiglu_clamp."""
    kind = member(GluOp, op, "GLU")
    params = GluParams(kind, swapped, f32(alpha), f32(limit))
    require_type(a, FLOATS, kind.name, "a")
    require(contiguous_above(a, 1), kind.name, "a has gaps inside a row or plane", a)
    if b is None:
        half = exact_div(a.ne[0], 2)
        require(half is not None, kind.name, "rows of a must have an even length", a)
        assert half is not None
        return make_node("GLU", a.dtype, (half, *a.ne[1:]), a, params=params)
    require(contiguous_above(b, 1), kind.name, "b has gaps inside a row or plane", b)
    require(same_ne(a, b), kind.name, "a and b must have one shape", a, b)
    require(a.dtype is b.dtype, kind.name, "a and b must have one type", a, b)
    require(not swapped, kind.name, "swapped means the halves of one source", a, b)
    return make_node("GLU", a.dtype, a.ne, a, b, params=params)


def reglu(a: Tensor, b: Tensor | None = None, swapped: bool = False) -> Tensor:
    """relu(a) * b; shapes as `glu`."""
    return glu(GluOp.REGLU, a, b, swapped)


def geglu(a: Tensor, b: Tensor | None = None, swapped: bool = False) -> Tensor:
    """gelu(a) * b; shapes as `glu`."""
    return glu(GluOp.GEGLU, a, b, swapped)


def geglu_erf(a: Tensor, b: Tensor | None = None, swapped: bool = False) -> Tensor:
    """gelu_erf(a) * b; shapes as `glu`."""
    return glu(GluOp.GEGLU_ERF, a, b, swapped)


def geglu_quick(a: Tensor, b: Tensor | None = None, swapped: bool = False) -> Tensor:
    """gelu_quick(a) * b; shapes as `glu`."""
    return glu(GluOp.GEGLU_QUICK, a, b, swapped)


def swiglu(a: Tensor, b: Tensor | None = None, swapped: bool = False) -> Tensor:
    """silu(a) * b; shapes as `glu`."""
    return glu(GluOp.SWIGLU, a, b, swapped)


def swiglu_oai(a: Tensor, b: Tensor | None = None, *, alpha: float, limit: float) -> Tensor:
    """min(a, limit) sigmoid(alpha min(a, limit)) * (clamp(b, -limit, limit) + 1); gpt-oss."""
    return glu(GluOp.SWIGLU_OAI, a, b, alpha=alpha, limit=limit)


def swiglu_clamp(a: Tensor, b: Tensor | None = None, *, limit: float) -> Tensor:
    """silu(min(a, limit)) * clamp(b, -limit, limit); shapes as `glu`."""
    return glu(GluOp.SWIGLU_CLAMP, a, b, limit=limit)
