"""DeepSeek's hyper-connections (after arXiv 2409.19606).

Sizes are ggml's `ne`, innermost first; hc is the number of residual streams. Every source is f32;
other types and sizes raise GraphError.
"""

from __future__ import annotations

from weft.dtype import DTYPES
from weft.graph.node import f32, fail, make_node, require, require_type
from weft.graph.op import declares
from weft.graph.params import Params
from weft.graph.tensor import Tensor
from weft.records import dataclass

F32 = DTYPES["f32"]


@dataclass(frozen=True, slots=True)
class HcCombParams(Params):
    """Epsilon and the number of iterations of DSV4_HC_COMB."""

    eps: float
    n_iter: int


@dataclass(frozen=True, slots=True)
class HcPreParams(Params):
    """`gated` takes src1 as a gate instead of weights; `scale` multiplies the gated sum."""

    gated: bool = False
    scale: float = 1.0


@declares("DSV4_HC_COMB", params=HcCombParams)
def dsv4_hc_comb(mixes: Tensor, scale: Tensor, base: Tensor, *, eps: float, n_iter: int) -> Tensor:
    """The mixing matrices of the streams, made doubly stochastic by Sinkhorn's iteration.

    mixes: f32 [24, n_tok] (4 + 4 + 16), scale: f32 [3], base: f32 [24] -> f32 [4, 4, n_tok].
    `n_iter` is 1 or more, `eps` 0 or more, else GraphError. Equals ggml_dsv4_hc_comb."""
    op = "DSV4_HC_COMB"
    for role, t in (("mixes", mixes), ("scale", scale), ("base", base)):
        require_type(t, ("f32",), op, role)
        require(t.is_contiguous, op, f"{role} must be contiguous", t)
    require(mixes.ne[0] == 24 and mixes.n_elements == 24 * mixes.ne[1], op, "needs [24, n]", mixes)
    require(scale.n_elements == 3, op, "scale must have 3 numbers", scale)
    require(base.n_elements == 24, op, "base must have 24 numbers", base)
    if n_iter < 1 or not eps >= 0:
        raise fail(op, f"needs n_iter >= 1 and eps >= 0, got {n_iter}, {eps}", mixes)
    params = HcCombParams(f32(eps), n_iter)
    return make_node(op, F32, (4, 4, mixes.ne[1]), mixes, scale, base, params=params)


@declares("DSV4_HC_PRE", params=HcPreParams)
def dsv4_hc_pre(x: Tensor, weights: Tensor, *, gated: bool = False, scale: float = 1.0) -> Tensor:
    """The weighted sum of the streams of each token.

    x: f32 [n, hc, n_tok], weights: f32 [hc, n_tok], or with `gated` a gate of the sizes of `x`,
    whose sum is multiplied by `scale` -> f32 [n, n_tok]. Raises GraphError for other sizes. Equals
    ggml_dsv4_hc_pre."""
    op = "DSV4_HC_PRE"
    require_type(x, ("f32",), op, "x")
    require_type(weights, ("f32",), op, "weights")
    require(x.ne[3] == 1, op, "x must be [n, hc, n_tok]", x)
    expected = x.ne if gated else (x.ne[1], x.ne[2], 1, 1)
    require(weights.ne == expected, op, "weights must be [hc, n_tok], a gate as x", x, weights)
    params = HcPreParams(gated, f32(scale))
    return make_node(op, F32, (x.ne[0], x.ne[2]), x, weights, params=params)


@declares("DSV4_HC_POST")
def dsv4_hc_post(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor | None = None) -> Tensor:
    """A layer's output added to the streams, each weighted by `post`, over the residual mixed by
    `comb`.

    x: f32 [n, n_tok], residual: f32 [n, hc, n_tok], post: f32 [hc, n_tok], comb: f32 [hc, hc,
    n_tok] (absent: the identity) -> f32 [n, hc, n_tok]. Raises GraphError for other sizes. Equals
    ggml_dsv4_hc_post."""
    op = "DSV4_HC_POST"
    n, hc, n_tok, _ = residual.ne
    require(residual.ne[3] == 1, op, "residual must be [n, hc, n_tok]", residual)
    for role, t in (("x", x), ("residual", residual), ("post", post)):
        require_type(t, ("f32",), op, role)
    require(x.ne == (n, n_tok, 1, 1), op, "x must be [n, n_tok]", x, residual)
    require(post.ne == (hc, n_tok, 1, 1), op, "post must be [hc, n_tok]", post, residual)
    if comb is not None:
        require_type(comb, ("f32",), op, "comb")
        require(comb.ne == (hc, hc, n_tok, 1), op, "comb must be [hc, hc, n_tok]", comb, residual)
    return make_node(op, F32, residual.ne, x, residual, post, comb)
