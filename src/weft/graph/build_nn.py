"""Constructors of normalisation and matrix products. Sizes are ggml's `ne`, innermost first."""

from __future__ import annotations

from weft.dtype import DTYPES
from weft.graph.node import (
    FLOATS,
    f32,
    fail,
    like,
    make_node,
    member,
    multiple,
    require,
    require_type,
)
from weft.graph.params import EpsParams, GroupNormParams, SolveTriParams
from weft.graph.params_product import Activation, ActivationParams
from weft.graph.tensor import Tensor

__all__ = [
    "group_norm",
    "l2_norm",
    "mul_mat",
    "mul_mat_id",
    "norm",
    "out_prod",
    "rms_norm",
    "solve_tri",
]

F32 = DTYPES["f32"]

ACTIVATIONS = (*FLOATS, "q8_0", "q8_1", "q8_K")
"""Types that the second operand of a matmul may have: floats, or what `quantize` made of them."""
_NO_WEIGHTS = "w must be f32, f16, bf16 or blocks; convert the array first: .astype('float32')"


# -- normalisation ---------------------------------------------------------------------------------


def norm(x: Tensor, eps: float, *, inplace: bool = False) -> Tensor:
    """(x - mean) / sqrt(variance + eps) of each row, biased variance; same shape, f32."""
    return _norm("NORM", x, eps, inplace)


def rms_norm(x: Tensor, eps: float, *, inplace: bool = False) -> Tensor:
    """x / sqrt(mean(x^2) + eps) of each row; same shape, f32. Rows must be contiguous."""
    require(x.is_contiguous_rows, "RMS_NORM", "rows of x must be contiguous; use cont()", x)
    return _norm("RMS_NORM", x, eps, inplace)


def l2_norm(x: Tensor, eps: float, *, inplace: bool = False) -> Tensor:
    """x / max(sqrt(sum(x^2)), eps) of each row; same shape, f32."""
    return _norm("L2_NORM", x, eps, inplace)


def _norm(op: str, x: Tensor, eps: float, inplace: bool) -> Tensor:
    require_type(x, ("f32",), op, "x")
    if not eps >= 0:
        raise fail(op, f"eps = {eps} must not be negative", x)
    return like(op, x, params=EpsParams(f32(eps)), inplace=inplace)


def group_norm(x: Tensor, n_groups: int, eps: float, *, inplace: bool = False) -> Tensor:
    """`norm` over [w, h, channels of a group]; x: f32 [w, h, channels, batch].

    A group has ceil(channels / n_groups) channels, the last one what is left."""
    require_type(x, ("f32",), "GROUP_NORM", "x")
    require(x.is_contiguous_rows, "GROUP_NORM", "rows of x must be contiguous; use cont()", x)
    if n_groups < 1 or not eps >= 0:
        raise fail("GROUP_NORM", f"needs n_groups >= 1, eps >= 0, got {n_groups}, {eps}", x)
    return like("GROUP_NORM", x, params=GroupNormParams(n_groups, f32(eps)), inplace=inplace)


# -- products --------------------------------------------------------------------------------------


def mul_mat(
    w: Tensor,
    x: Tensor,
    bias: Tensor | None = None,
    activation: Activation | str | None = None,
    low: float = 0.0,
    high: float = 0.0,
) -> Tensor:
    """Dot products of the rows of `w` with the rows of `x`, plus `bias`, through `activation`.

    w: [k, m, w2, w3], x: [k, n, x2, x3] -> f32 [m, n, x2, x3], w2 | x2, w3 | x3: matrix i2 of `x`
    meets matrix i2 / (x2 / w2) of `w`. Any type for `w`; `x` float, or quantized by `quantize`.
    bias: f32 [m], as the rewrite matmul-bias makes it; few devices take one (else: `add`), or an
    `activation` ("clamp" to `low`..`high`), as matmul-activation makes it (else: `unary`)."""
    op = "MUL_MAT"
    require(w.ne[0] == x.ne[0], op, "rows of w and x must have one length", w, x)
    require(
        multiple(x.ne[2], w.ne[2]) and multiple(x.ne[3], w.ne[3]),
        op,
        "dimensions 2 and 3 of w must divide those of x",
        w,
        x,
    )
    require(w.is_contiguous_rows, op, "rows of w must be contiguous; use cont()", w)
    numbers = w.dtype.is_quantized or w.dtype.name in FLOATS
    require(numbers, op, _NO_WEIGHTS, w)
    require_type(x, ACTIVATIONS, op, "x")
    if bias is not None:
        require_type(bias, ("f32",), op, "bias")
        is_row = bias.ne == (w.ne[1], 1, 1, 1) and bias.is_contiguous
        require(is_row, op, "bias must be one row, with an element for each row of w", w, bias)
    params = None
    if activation is not None:
        params = ActivationParams(member(Activation, activation, op), f32(low), f32(high))
    return make_node(op, F32, (w.ne[1], x.ne[1], x.ne[2], x.ne[3]), w, x, bias, params=params)


def mul_mat_id(experts: Tensor, x: Tensor, ids: Tensor) -> Tensor:
    """`mul_mat` with the matrix that `ids` picks for each row: mixture of experts.

    experts: [k, m, n_expert], x: [k, n_used or a divisor of it, n_tokens], ids: i32
    [n_used, n_tokens] -> f32 [m, n_used, n_tokens]."""
    op = "MUL_MAT_ID"
    require_type(ids, ("i32",), op, "ids")
    require(experts.ne[0] == x.ne[0], op, "rows of experts and x must have one length", experts, x)
    require(experts.ne[3] == 1 and x.ne[3] == 1, op, "at most three dimensions", experts, x)
    require(ids.ne[2] == 1 and ids.ne[3] == 1, op, "ids must be a matrix", ids)
    require(ids.ne[1] == x.ne[2], op, "ids must have a row for each token of x", x, ids)
    require(multiple(ids.ne[0], x.ne[1]), op, "x.ne[1] must divide the ids of a token", x, ids)
    require(
        experts.is_contiguous_rows, op, "rows of experts must be contiguous; use cont()", experts
    )
    require_type(x, ACTIVATIONS, op, "x")
    return make_node(op, F32, (experts.ne[1], ids.ne[0], x.ne[2]), experts, x, ids)


def out_prod(a: Tensor, b: Tensor) -> Tensor:
    """Sum over dimension 1 of outer products of rows.

    a: [m, k, a2, a3], b: f32 [n, k, b2, b3] -> f32 [m, n, b2, b3], a2 | b2, a3 | b3."""
    op = "OUT_PROD"
    require(a.ne[1] == b.ne[1], op, "a and b must have as many rows", a, b)
    require(
        multiple(b.ne[2], a.ne[2]) and multiple(b.ne[3], a.ne[3]),
        op,
        "dimensions 2 and 3 of a must divide those of b",
        a,
        b,
    )
    require(a.is_contiguous_rows, op, "rows of a must be contiguous; use cont()", a)
    require_type(b, ("f32",), op, "b")
    return make_node(op, F32, (a.ne[0], b.ne[0], b.ne[2], b.ne[3]), a, b)


def solve_tri(
    a: Tensor, b: Tensor, *, left: bool = True, lower: bool = True, uni: bool = False
) -> Tensor:
    """x with a x = b for lower triangular matrices `a`.

    a: f32 [n, n, ...], b: f32 [k, n, ...] -> f32 [k, n, ...]; other variants are not defined."""
    op = "SOLVE_TRI"
    for role, t in (("a", a), ("b", b)):
        require_type(t, ("f32",), op, role)
        require(t.is_contiguous, op, f"{role} must be contiguous", t)
    require(a.ne[0] == a.ne[1], op, "a must be square", a)
    require(a.ne[1] == b.ne[1] and a.ne[2:] == b.ne[2:], op, "a and b must have as many rows", a, b)
    if not (left and lower) or uni:
        raise fail(op, "only left, lower, non-unit systems are defined", a, b)
    return make_node(op, F32, b.ne, a, b, params=SolveTriParams(left, lower, uni))
