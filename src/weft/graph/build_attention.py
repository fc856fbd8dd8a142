"""Constructors of attention, positions and hyper-connections. Sizes are ggml's `ne`."""

from __future__ import annotations

from collections.abc import Sequence

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
from weft.graph.params import (
    FlashAttnParams,
    HcCombParams,
    HcPreParams,
    RopeMode,
    RopeParams,
    SoftMaxParams,
)
from weft.graph.size import is_at_most
from weft.graph.tensor import Tensor

__all__ = [
    "dsv4_hc_comb",
    "dsv4_hc_post",
    "dsv4_hc_pre",
    "flash_attn_ext",
    "lightning_indexer",
    "rope",
    "rope_back",
    "soft_max",
]

F32 = DTYPES["f32"]


def soft_max(
    x: Tensor,
    mask: Tensor | None = None,
    sinks: Tensor | None = None,
    scale: float = 1.0,
    max_bias: float = 0.0,
    *,
    inplace: bool = False,
) -> Tensor:
    """softmax(x * scale + slope * mask) of each row; same shape, f32.

    x: [n, rows, heads, batch], contiguous. mask: f32 or f16 [n, rows or more, h, b], h | heads,
    b | batch, added; slope is ALiBi's per head when max_bias > 0, else 1. sinks: f32 [heads], one
    more logit that only the denominator sees."""
    op = "SOFT_MAX"
    require_type(x, ("f32",), op, "x")
    require(x.is_contiguous, op, "x must be contiguous; use cont()", x)
    if mask is not None:
        require_type(mask, ("f32", "f16"), op, "mask")
        require(mask.is_contiguous, op, "mask must be contiguous", mask)
        require(
            mask.ne[0] == x.ne[0]
            and is_at_most(x.ne[1], mask.ne[1])
            and multiple(x.ne[2], mask.ne[2])
            and multiple(x.ne[3], mask.ne[3]),
            op,
            "mask must cover the rows of x and divide its dimensions 2 and 3",
            x,
            mask,
        )
    require(max_bias <= 0 or mask is not None, op, "max_bias > 0 needs a mask", x)
    _check_sinks(op, sinks, x)
    params = SoftMaxParams(f32(scale), f32(max_bias))
    return like(op, x, mask, sinks, params=params, inplace=inplace)


def flash_attn_ext(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    sinks: Tensor | None = None,
    *,
    scale: float,
    max_bias: float = 0.0,
    logit_softcap: float = 0.0,
) -> Tensor:
    """softmax(q k scale + slope * mask) v without storing the scores.

    q: f32 [d, n_tok, n_head, batch], k: [d, n_kv, n_head_kv, batch], v: [dv, n_kv, n_head_kv,
    batch], n_head_kv | n_head -> f32 [dv, n_head, n_tok, batch]. mask: f16 [n_kv, n_tok or more, h,
    b], h | n_head, b | batch. sinks: f32 [n_head]. logit_softcap c > 0: c tanh(score / c) before
    the mask."""
    op = "FLASH_ATTN_EXT"
    require_type(q, ("f32",), op, "q")
    require(q.ne[0] == k.ne[0], op, "rows of q and k must have one length", q, k)
    require(k.ne[1] == v.ne[1] and k.ne[2] == v.ne[2], op, "k and v must have one length", k, v)
    require(
        multiple(q.ne[2], k.ne[2]) and multiple(q.ne[3], k.ne[3]) and k.ne[3] == v.ne[3],
        op,
        "heads and batch of k and v must divide those of q",
        q,
        k,
        v,
    )
    for role, t in (("q", q), ("k", k), ("v", v)):
        require(t.is_contiguous_rows, op, f"rows of {role} must be contiguous; use cont()", t)
    if mask is not None:
        require_type(mask, ("f16",), op, "mask")
        require(mask.is_contiguous, op, "mask must be contiguous", mask)
        require(
            is_at_most(k.ne[1], mask.ne[0])
            and is_at_most(q.ne[1], mask.ne[1])
            and multiple(q.ne[2], mask.ne[2])
            and multiple(q.ne[3], mask.ne[3]),
            op,
            "mask must be [n_kv, n_tok] with dimensions 2 and 3 that divide those of q",
            q,
            k,
            mask,
        )
    require(max_bias <= 0 or mask is not None, op, "max_bias > 0 needs a mask", q)
    _check_sinks(op, sinks, q)
    params = FlashAttnParams(f32(scale), f32(max_bias), f32(logit_softcap))
    ne = (v.ne[0], q.ne[2], q.ne[1], q.ne[3])
    return make_node(op, F32, ne, q, k, v, mask, sinks, params=params)


def _check_sinks(op: str, sinks: Tensor | None, x: Tensor) -> None:
    if sinks is not None:
        require_type(sinks, ("f32",), op, "sinks")
        require(
            sinks.ne[0] == x.ne[2] and sinks.n_rows == 1,
            op,
            "sinks must have one number for each head (dimension 2)",
            x,
            sinks,
        )


def rope(
    x: Tensor,
    pos: Tensor,
    freq_factors: Tensor | None = None,
    *,
    mode: RopeMode | str | int,
    n_dims: int,
    n_ctx_orig: int = 0,
    freq_base: float = 10000.0,
    freq_scale: float = 1.0,
    ext_factor: float = 0.0,
    attn_factor: float = 1.0,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    n_offset: int = 0,
    sections: Sequence[int] = (0, 0, 0, 0),
    inplace: bool = False,
) -> Tensor:
    """Rotary position embedding of `n_dims` elements of each row, from `n_offset`; same shape.

    x: f32 or f16 [d, n_head, n_tok, batch], pos: i32 [n_tok], or [4 n_tok] (four planes) for the
    modes with sections. freq_factors: f32 [n_dims / 2 or more], divide the angles. The numbers are
    ggml_rope_ext's; ext_factor != 0 is YaRN (arXiv 2309.00071)."""
    params = RopeParams(
        member(RopeMode, mode, "ROPE"),
        n_dims,
        n_ctx_orig,
        f32(freq_base),
        f32(freq_scale),
        f32(ext_factor),
        f32(attn_factor),
        f32(beta_fast),
        f32(beta_slow),
        n_offset,
        _four_sections(sections, x),
    )
    return _rope("ROPE", x, pos, freq_factors, params, inplace)


def rope_back(
    x: Tensor,
    pos: Tensor,
    freq_factors: Tensor | None = None,
    *,
    mode: RopeMode | str | int,
    n_dims: int,
    n_ctx_orig: int = 0,
    freq_base: float = 10000.0,
    freq_scale: float = 1.0,
    ext_factor: float = 0.0,
    attn_factor: float = 1.0,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    n_offset: int = 0,
    sections: Sequence[int] = (0, 0, 0, 0),
) -> Tensor:
    """The inverse rotation of `rope` (its gradient); arguments and shapes as `rope`."""
    params = RopeParams(
        member(RopeMode, mode, "ROPE_BACK"),
        n_dims,
        n_ctx_orig,
        f32(freq_base),
        f32(freq_scale),
        f32(ext_factor),
        f32(attn_factor),
        f32(beta_fast),
        f32(beta_slow),
        n_offset,
        _four_sections(sections, x),
    )
    return _rope("ROPE_BACK", x, pos, freq_factors, params, False)


def _rope(
    op: str,
    x: Tensor,
    pos: Tensor,
    freq_factors: Tensor | None,
    params: RopeParams,
    inplace: bool,
) -> Tensor:
    require_type(x, ("f32", "f16"), op, "x")
    require(x.is_contiguous_rows, op, "rows of x must be contiguous; use cont()", x)
    require_type(pos, ("i32",), op, "pos")
    planes = 4 if params.mode in (RopeMode.MROPE, RopeMode.IMROPE, RopeMode.VISION) else 1
    require(
        pos.n_rows == 1 and pos.ne[0] == planes * x.ne[2],
        op,
        f"pos must have {planes} number(s) for each token (dimension 2 of x)",
        x,
        pos,
    )
    n_dims, last = params.n_dims, params.n_offset + params.n_dims
    if n_dims < 2 or n_dims % 2 or params.n_offset < 0 or not is_at_most(last, x.ne[0]):
        raise fail(op, f"n_dims = {n_dims} (even) from {params.n_offset} leaves the rows", x)
    if params.mode is RopeMode.VISION and 2 * n_dims != x.ne[0]:
        raise fail(op, f"vision mode rotates pairs n_dims apart: 2 * {n_dims} must be a row", x)
    if planes == 4 and (min(params.sections) < 0 or sum(params.sections) < 1):
        raise fail(op, f"mode {params.mode.name.lower()} needs sections, got {params.sections}", x)
    if freq_factors is not None:
        require_type(freq_factors, ("f32",), op, "freq_factors")
        require(
            is_at_most(n_dims // 2, freq_factors.ne[0]),
            op,
            f"freq_factors must have {n_dims // 2} numbers",
            freq_factors,
        )
    return like(op, x, pos, freq_factors, params=params, inplace=inplace)


def _four_sections(sections: Sequence[int], x: Tensor) -> tuple[int, int, int, int]:
    if len(sections) > 4:
        raise fail("ROPE", f"at most 4 sections, got {list(sections)}", x)
    s = [*sections, *[0] * (4 - len(sections))]
    return (s[0], s[1], s[2], s[3])


def lightning_indexer(q: Tensor, k: Tensor, weights: Tensor, mask: Tensor) -> Tensor:
    """sum over heads of weights * relu(q k), plus mask: DeepSeek's sparse-attention score.

    q: f32 [d, n_head, n_tok, n_stream], k: [d, 1, n_kv, n_stream], weights: f32 [n_head, n_tok, 1,
    n_stream], mask: f16 [n_kv, n_tok, 1, a divisor of n_stream] -> f32 [n_kv, n_tok, 1, n_stream].
    """
    op = "LIGHTNING_INDEXER"
    require_type(q, ("f32",), op, "q")
    require_type(weights, ("f32",), op, "weights")
    require_type(mask, ("f16", "f32"), op, "mask")
    require(k.dtype.name in FLOATS or k.dtype.is_quantized, op, "k must be float or blocks", k)
    require(
        q.ne[0] == k.ne[0] and k.ne[1] == 1 and q.ne[3] == k.ne[3],
        op,
        "k must be [q.ne[0], 1, n_kv, q.ne[3]]",
        q,
        k,
    )
    require(
        weights.ne == (q.ne[1], q.ne[2], 1, q.ne[3]),
        op,
        "weights must be [n_head, n_tok, 1, n_stream]",
        q,
        weights,
    )
    require(
        mask.ne[0] == k.ne[2]
        and mask.ne[1] == q.ne[2]
        and mask.ne[2] == 1
        and multiple(q.ne[3], mask.ne[3]),
        op,
        "mask must be [n_kv, n_tok]",
        q,
        k,
        mask,
    )
    return make_node(op, F32, (k.ne[2], q.ne[2], 1, q.ne[3]), q, k, weights, mask)


def dsv4_hc_comb(mixes: Tensor, scale: Tensor, base: Tensor, *, eps: float, n_iter: int) -> Tensor:
    """The mixing matrices of DeepSeek's hyper-connections, made doubly stochastic by Sinkhorn.

    mixes: f32 [24, n_tok] (4 + 4 + 16), scale: f32 [3], base: f32 [24] -> f32 [4, 4, n_tok]."""
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


def dsv4_hc_pre(x: Tensor, weights: Tensor, *, gated: bool = False, scale: float = 1.0) -> Tensor:
    """The weighted sum of the hc streams of each token.

    x: f32 [n, hc, n_tok], weights: f32 [hc, n_tok], or a gate of the shape of `x` when `gated`
    (then times `scale`) -> f32 [n, n_tok]."""
    op = "DSV4_HC_PRE"
    require_type(x, ("f32",), op, "x")
    require_type(weights, ("f32",), op, "weights")
    require(x.ne[3] == 1, op, "x must be [n, hc, n_tok]", x)
    expected = x.ne if gated else (x.ne[1], x.ne[2], 1, 1)
    require(weights.ne == expected, op, "weights must be [hc, n_tok], a gate as x", x, weights)
    params = HcPreParams(gated, f32(scale))
    return make_node(op, F32, (x.ne[0], x.ne[2]), x, weights, params=params)


def dsv4_hc_post(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor | None = None) -> Tensor:
    """A layer's output put back into the hc streams, over the mixed residual.

    x: f32 [n, n_tok], residual: f32 [n, hc, n_tok], post: f32 [hc, n_tok], comb: f32 [hc, hc,
    n_tok] (identity when absent) -> f32 [n, hc, n_tok]."""
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
