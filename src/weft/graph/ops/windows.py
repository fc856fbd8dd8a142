"""Pooling as ggml has it, and windows of images. Sizes are ggml's `ne`, innermost first."""

from __future__ import annotations

from enum import IntEnum

from weft.dtype import DTYPES
from weft.graph.node import fail, make_node, member, require, require_type
from weft.graph.op import declares
from weft.graph.params import Params
from weft.graph.size import Size, ceil_div, is_at_most
from weft.graph.tensor import Tensor
from weft.records import dataclass

F32 = DTYPES["f32"]


class PoolOp(IntEnum):
    """Pooling kinds."""

    MAX = 0
    AVG = 1


@dataclass(frozen=True, slots=True)
class Pool1dParams(Params):
    """Kernel, stride and padding along dimension 0, in elements."""

    op: PoolOp
    k0: int
    s0: int
    p0: int


@dataclass(frozen=True, slots=True)
class Pool2dParams(Params):
    """Kernel, stride and padding along dimensions 0 and 1, in elements."""

    op: PoolOp
    k0: int
    k1: int
    s0: int
    s1: int
    p0: int
    p1: int


@dataclass(frozen=True, slots=True)
class WinParams(Params):
    """The width of a window of WIN_PART and WIN_UNPART, in elements."""

    w: int


def _pooled(op: str, x: Tensor, d: int, k: int, s: int, p: int) -> Size:
    if k < 1 or s < 1 or p < 0:
        raise fail(op, f"kernel {k} and stride {s} need 1 or more, padding {p} 0 or more", x)
    span = x.ne[d] + 2 * p - k
    if not is_at_most(0, span):
        raise fail(op, f"window {k} is larger than the padded dimension {d}", x)
    return span // s + 1


@declares("POOL_1D", params=Pool1dParams)
def pool_1d(x: Tensor, op: PoolOp | str, k0: int, s0: int, p0: int = 0) -> Tensor:
    """The largest or mean element of windows of `k0` along rows: [w, ...] -> f32 [ow, ...].

    Windows are `s0` apart over `p0` padding on both sides: ow = (w + 2 p0 - k0) / s0 + 1, rounded
    down. The mean divides by the number of elements outside of the padding. x: f32 or f16,
    contiguous, else GraphError, as where the window is larger than the padded row. Equals
    ggml_pool_1d."""
    require_type(x, ("f32", "f16"), "POOL_1D", "x")
    require(x.is_contiguous, "POOL_1D", "x must be contiguous; use cont()", x)
    params = Pool1dParams(member(PoolOp, op, "POOL_1D"), k0, s0, p0)
    ow = _pooled("POOL_1D", x, 0, k0, s0, p0)
    return make_node("POOL_1D", F32, (ow, *x.ne[1:]), x, params=params)


@declares("POOL_2D", params=Pool2dParams)
def pool_2d(
    x: Tensor, op: PoolOp | str, k0: int, k1: int, s0: int, s1: int, p0: int = 0, p1: int = 0
) -> Tensor:
    """The largest or mean element of windows of [k0, k1]: [w, h, ...] -> f32 [ow, oh, ...].

    Sizes and errors as `pool_1d`. The mean divides by k0 k1, padding counted. Equals
    ggml_pool_2d."""
    require_type(x, ("f32", "f16"), "POOL_2D", "x")
    require(x.is_contiguous, "POOL_2D", "x must be contiguous; use cont()", x)
    params = Pool2dParams(member(PoolOp, op, "POOL_2D"), k0, k1, s0, s1, p0, p1)
    ow = _pooled("POOL_2D", x, 0, k0, s0, p0)
    oh = _pooled("POOL_2D", x, 1, k1, s1, p1)
    return make_node("POOL_2D", F32, (ow, oh, *x.ne[2:]), x, params=params)


@declares("WIN_PART", params=WinParams)
def win_part(x: Tensor, w: int) -> Tensor:
    """Windows of w by w, zero padded: f32 [n, width, height] -> [n, w, w, windows].

    Windows go row by row. Raises GraphError for a fourth dimension and for w below 1. Equals
    ggml_win_part."""
    require_type(x, ("f32",), "WIN_PART", "x")
    require(x.ne[3] == 1, "WIN_PART", "x must be [n, width, height]", x)
    if w < 1:
        raise fail("WIN_PART", f"window {w} must be 1 or more", x)
    windows = ceil_div(x.ne[1], w) * ceil_div(x.ne[2], w)
    return make_node("WIN_PART", F32, (x.ne[0], w, w, windows), x, params=WinParams(w))


@declares("WIN_UNPART", params=WinParams)
def win_unpart(x: Tensor, w0: Size, h0: Size, w: int) -> Tensor:
    """`win_part` undone: f32 [n, w, w, windows] -> [n, w0, h0].

    Raises GraphError where the windows do not fit [n, w0, h0]. Equals ggml_win_unpart."""
    require_type(x, ("f32",), "WIN_UNPART", "x")
    if w < 1 or x.ne[1] != w or x.ne[2] != w or x.ne[3] != ceil_div(w0, w) * ceil_div(h0, w):
        raise fail("WIN_UNPART", f"x is not the windows of {w} of [n, {w0}, {h0}]", x)
    return make_node("WIN_UNPART", F32, (x.ne[0], w0, h0), x, params=WinParams(w))


@declares("GET_REL_POS")
def get_rel_pos(x: Tensor, qh: int, kh: int) -> Tensor:
    """Rows of relative positions: f16 [n, 2 qh - 1] -> f16 [n, kh, qh], row (k - q) + (kh - 1).

    Only qh = kh is defined, else GraphError. Equals ggml_get_rel_pos."""
    require_type(x, ("f16",), "GET_REL_POS", "x")
    require(x.n_elements == x.ne[0] * x.ne[1], "GET_REL_POS", "x must be a matrix", x)
    if qh != kh or qh < 1 or x.ne[1] != 2 * qh - 1:
        raise fail("GET_REL_POS", f"qh {qh} and kh {kh} must agree, with 2 qh - 1 rows", x)
    return make_node("GET_REL_POS", x.dtype, (x.ne[0], kh, qh), x)
