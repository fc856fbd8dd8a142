"""Activations: UNARY and its functions by name, gated ones (GLU) and their forms.

Sizes in docstrings are ggml's `ne`, innermost first. `inplace=True` makes the result a view of the
first source: the op overwrites it. A function of one element takes f32, f16 or bf16 with contiguous
rows, else it raises GraphError; its result has the type and sizes of `x`. Each equals ggml's
function of the same name (ggml_abs, ggml_swiglu and so on).
"""

from __future__ import annotations

import math
from enum import IntEnum

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
from weft.graph.size import exact_div
from weft.graph.tensor import Tensor, contiguous_above
from weft.records import dataclass


class UnaryOp(IntEnum):
    """Elementwise functions of the UNARY op, in ggml's order."""

    ABS = 0
    SGN = 1
    NEG = 2
    STEP = 3
    TANH = 4
    ELU = 5
    RELU = 6
    SIGMOID = 7
    GELU = 8
    GELU_QUICK = 9
    SILU = 10
    HARDSWISH = 11
    HARDSIGMOID = 12
    EXP = 13
    EXPM1 = 14
    SOFTPLUS = 15
    GELU_ERF = 16
    XIELU = 17
    FLOOR = 18
    CEIL = 19
    ROUND = 20
    TRUNC = 21


class Activation(IntEnum):
    """Functions of the result of a product or convolution: UNARY's by their names, and CLAMP of
    MAP."""

    RELU = 0
    """A NaN gives 0, as in UNARY."""
    TANH = 1
    SIGMOID = 2
    SILU = 3
    GELU = 4
    GELU_QUICK = 5
    GELU_ERF = 6
    HARDSWISH = 7
    HARDSIGMOID = 8
    CLAMP = 9
    """Limited to low..high; a NaN stays a NaN."""


class GluOp(IntEnum):
    """Gated activations of the GLU op."""

    REGLU = 0
    GEGLU = 1
    SWIGLU = 2
    SWIGLU_OAI = 3
    GEGLU_ERF = 4
    GEGLU_QUICK = 5
    SWIGLU_CLAMP = 6


@dataclass(frozen=True, slots=True)
class UnaryParams(Params):
    """`op` and, for XIELU only, its four numbers as stored (after softplus)."""

    op: UnaryOp
    alpha_n: float = 0.0
    alpha_p: float = 0.0
    beta: float = 0.0
    eps: float = 0.0


@dataclass(frozen=True, slots=True)
class GluParams(Params):
    """The function; `swapped` activates the second half instead of the first. `alpha` and `limit`
    are of SWIGLU_OAI and SWIGLU_CLAMP."""

    op: GluOp
    swapped: bool = False
    alpha: float = 0.0
    limit: float = 0.0


# -- functions of one element ----------------------------------------------------------------------


@declares("UNARY", inplace=True, params=UnaryParams, cost=8.0)
def unary(op: UnaryOp | str, x: Tensor, *, inplace: bool = False) -> Tensor:
    """The function `op` of each element; the type and sizes of `x`.

    Raises GraphError where rows of `x` have gaps, for an unknown `op`, and for XIELU, which has
    parameters: see `xielu`. Equals ggml_unary."""
    kind = member(UnaryOp, op, "UNARY")
    if kind is UnaryOp.XIELU:
        raise fail("UNARY", "XIELU has parameters; use xielu()", x)
    return _unary(UnaryParams(kind), x, inplace)


def _unary(params: UnaryParams, x: Tensor, inplace: bool) -> Tensor:
    require_type(x, FLOATS, params.op.name, "x")
    require(x.is_contiguous_rows, params.op.name, "rows of x must be contiguous; use cont()", x)
    return like("UNARY", x, params=params, inplace=inplace)


def abs(x: Tensor, *, inplace: bool = False) -> Tensor:
    """The absolute value; type and sizes of `x`."""
    return unary(UnaryOp.ABS, x, inplace=inplace)


def sgn(x: Tensor, *, inplace: bool = False) -> Tensor:
    """-1, 0 or 1, the sign of each element; type and sizes of `x`."""
    return unary(UnaryOp.SGN, x, inplace=inplace)


def neg(x: Tensor, *, inplace: bool = False) -> Tensor:
    """-x; type and sizes of `x`."""
    return unary(UnaryOp.NEG, x, inplace=inplace)


def step(x: Tensor, *, inplace: bool = False) -> Tensor:
    """1 where x > 0, else 0; type and sizes of `x`."""
    return unary(UnaryOp.STEP, x, inplace=inplace)


def tanh(x: Tensor, *, inplace: bool = False) -> Tensor:
    """The hyperbolic tangent; type and sizes of `x`."""
    return unary(UnaryOp.TANH, x, inplace=inplace)


def elu(x: Tensor, *, inplace: bool = False) -> Tensor:
    """x where it is positive, else exp(x) - 1; type and sizes of `x`."""
    return unary(UnaryOp.ELU, x, inplace=inplace)


def relu(x: Tensor, *, inplace: bool = False) -> Tensor:
    """max(x, 0), and 0 of a NaN; type and sizes of `x`."""
    return unary(UnaryOp.RELU, x, inplace=inplace)


def sigmoid(x: Tensor, *, inplace: bool = False) -> Tensor:
    """1 / (1 + exp(-x)); type and sizes of `x`."""
    return unary(UnaryOp.SIGMOID, x, inplace=inplace)


def gelu(x: Tensor, *, inplace: bool = False) -> Tensor:
    """The Gaussian error linear unit in its tanh approximation; type and sizes of `x`."""
    return unary(UnaryOp.GELU, x, inplace=inplace)


def gelu_quick(x: Tensor, *, inplace: bool = False) -> Tensor:
    """x * sigmoid(1.702 x); type and sizes of `x`."""
    return unary(UnaryOp.GELU_QUICK, x, inplace=inplace)


def gelu_erf(x: Tensor, *, inplace: bool = False) -> Tensor:
    """The Gaussian error linear unit through erf; type and sizes of `x`."""
    return unary(UnaryOp.GELU_ERF, x, inplace=inplace)


def silu(x: Tensor, *, inplace: bool = False) -> Tensor:
    """x * sigmoid(x); type and sizes of `x`."""
    return unary(UnaryOp.SILU, x, inplace=inplace)


def hardswish(x: Tensor, *, inplace: bool = False) -> Tensor:
    """x * min(1, max(0, (x + 3) / 6)); type and sizes of `x`."""
    return unary(UnaryOp.HARDSWISH, x, inplace=inplace)


def hardsigmoid(x: Tensor, *, inplace: bool = False) -> Tensor:
    """min(1, max(0, (x + 3) / 6)); type and sizes of `x`."""
    return unary(UnaryOp.HARDSIGMOID, x, inplace=inplace)


def exp(x: Tensor, *, inplace: bool = False) -> Tensor:
    """e to the power x; type and sizes of `x`."""
    return unary(UnaryOp.EXP, x, inplace=inplace)


def expm1(x: Tensor, *, inplace: bool = False) -> Tensor:
    """exp(x) - 1; type and sizes of `x`."""
    return unary(UnaryOp.EXPM1, x, inplace=inplace)


def softplus(x: Tensor, *, inplace: bool = False) -> Tensor:
    """log(1 + exp(x)), and x itself above 20; type and sizes of `x`."""
    return unary(UnaryOp.SOFTPLUS, x, inplace=inplace)


def floor(x: Tensor, *, inplace: bool = False) -> Tensor:
    """x rounded down; type and sizes of `x`."""
    return unary(UnaryOp.FLOOR, x, inplace=inplace)


def ceil(x: Tensor, *, inplace: bool = False) -> Tensor:
    """x rounded up; type and sizes of `x`."""
    return unary(UnaryOp.CEIL, x, inplace=inplace)


def round(x: Tensor, *, inplace: bool = False) -> Tensor:
    """x rounded to the nearest integer, halves away from zero; type and sizes of `x`."""
    return unary(UnaryOp.ROUND, x, inplace=inplace)


def trunc(x: Tensor, *, inplace: bool = False) -> Tensor:
    """x rounded towards zero; type and sizes of `x`."""
    return unary(UnaryOp.TRUNC, x, inplace=inplace)


def xielu(x: Tensor, alpha_n: float, alpha_p: float, beta: float, eps: float) -> Tensor:
    """xIELU (arXiv 2411.13010), with the trained `alpha_n` and `alpha_p` and constants `beta`,
    `eps`.

    A positive x gives softplus(alpha_p) x^2 + beta x, any other (expm1(min(x, eps)) - x) (beta +
    softplus(alpha_n)) + beta x; type and sizes of `x`. The record holds the two slopes as the
    kernel uses them."""
    params = UnaryParams(
        UnaryOp.XIELU,
        alpha_n=f32(f32(beta) + _softplus(alpha_n)),
        alpha_p=_softplus(alpha_p),
        beta=f32(beta),
        eps=f32(eps),
    )
    return _unary(params, x, False)


def _softplus(x: float) -> float:
    # rounded to float32 after each step, as the reference computes it
    v = f32(x)
    return v if v > 20 else f32(math.log(f32(1 + f32(math.exp(v)))))


# -- gated activations -----------------------------------------------------------------------------


@declares("GLU", params=GluParams, cost=10.0)
def glu(
    op: GluOp | str,
    a: Tensor,
    b: Tensor | None = None,
    swapped: bool = False,
    *,
    alpha: float = 0.0,
    limit: float = 0.0,
) -> Tensor:
    """act(first) * second, where first and second are `a` and `b`, or the halves of the rows of
    `a`.

    a: [2n, ...] -> [n, ...]; or a, b: [n, ...] of one type and shape -> [n, ...], of the type of
    `a`. `swapped` activates the second half of `a` instead of the first. `alpha`, `limit`: see
    swiglu_oai and swiglu_clamp. Raises GraphError where the shapes differ from these, where a
    source has gaps inside a row or plane, and for `swapped` with `b`. Equals ggml_glu and
    ggml_glu_split."""
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
    """relu(a) * b; sizes and errors as `glu`."""
    return glu(GluOp.REGLU, a, b, swapped)


def geglu(a: Tensor, b: Tensor | None = None, swapped: bool = False) -> Tensor:
    """gelu(a) * b; sizes and errors as `glu`."""
    return glu(GluOp.GEGLU, a, b, swapped)


def geglu_erf(a: Tensor, b: Tensor | None = None, swapped: bool = False) -> Tensor:
    """gelu_erf(a) * b; sizes and errors as `glu`."""
    return glu(GluOp.GEGLU_ERF, a, b, swapped)


def geglu_quick(a: Tensor, b: Tensor | None = None, swapped: bool = False) -> Tensor:
    """gelu_quick(a) * b; sizes and errors as `glu`."""
    return glu(GluOp.GEGLU_QUICK, a, b, swapped)


def swiglu(a: Tensor, b: Tensor | None = None, swapped: bool = False) -> Tensor:
    """silu(a) * b; sizes and errors as `glu`."""
    return glu(GluOp.SWIGLU, a, b, swapped)


def swiglu_oai(a: Tensor, b: Tensor | None = None, *, alpha: float, limit: float) -> Tensor:
    """x sigmoid(alpha x) (clamp(b, -limit, limit) + 1), where x is min(a, limit), as gpt-oss has
    it; sizes and errors as `glu`."""
    return glu(GluOp.SWIGLU_OAI, a, b, alpha=alpha, limit=limit)


def swiglu_clamp(a: Tensor, b: Tensor | None = None, *, limit: float) -> Tensor:
    """silu(min(a, limit)) * clamp(b, -limit, limit); sizes and errors as `glu`."""
    return glu(GluOp.SWIGLU_CLAMP, a, b, limit=limit)
