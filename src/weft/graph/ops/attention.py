"""Attention and its scores.

Sizes are ggml's `ne`, innermost first; `h | heads` means that h divides heads.
"""

from __future__ import annotations

from typing import Any

from weft.dtype import DTYPES
from weft.graph.node import FLOATS, f32, like, make_node, multiple, require, require_type
from weft.graph.op import MultiplyAdds, declares
from weft.graph.params import Params
from weft.graph.size import is_at_most
from weft.graph.tensor import Tensor
from weft.records import dataclass

F32 = DTYPES["f32"]


@dataclass(frozen=True, slots=True)
class SoftMaxParams(Params):
    """The numbers of softmax(a * scale + slope(max_bias) * mask)."""

    scale: float = 1.0
    max_bias: float = 0.0


@dataclass(frozen=True, slots=True)
class FlashAttnParams(Params):
    """The attention scale, ALiBi's bias and the soft cap (0: none)."""

    scale: float
    max_bias: float = 0.0
    logit_softcap: float = 0.0


@declares("SOFT_MAX", inplace=True, params=SoftMaxParams, cost=12.0)
def soft_max(
    x: Tensor,
    mask: Tensor | None = None,
    sinks: Tensor | None = None,
    scale: float = 1.0,
    max_bias: float = 0.0,
    *,
    inplace: bool = False,
) -> Tensor:
    """softmax(x * scale + slope * mask) of each row; f32, the sizes of `x`.

    x: f32 [n, rows, heads, batch], contiguous. mask: f32 or f16 [n, rows or more, h, b], h | heads,
    b | batch; slope is ALiBi's of the head where max_bias > 0, else 1. sinks: f32 [heads], one more
    logit for each head, which only the denominator sees. Raises GraphError where the sizes differ
    from these, and where max_bias > 0 has no mask. Equals ggml_soft_max_ext with
    ggml_soft_max_add_sinks."""
    op = "SOFT_MAX"
    require_type(x, ("f32",), op, "x")
    require(x.is_contiguous, op, "x must be contiguous; use cont()", x)
    if mask is not None:
        require_type(mask, ("f32", "f16"), op, "mask")
        fits = _divides(op, mask, x) and mask.ne[0] == x.ne[0]
        why = "mask must cover the rows of x and divide its dimensions 2 and 3"
        require(fits, op, why, x, mask)
    require(max_bias <= 0 or mask is not None, op, "max_bias > 0 needs a mask", x)
    _check_sinks(op, sinks, x)
    params = SoftMaxParams(f32(scale), f32(max_bias))
    return like(op, x, mask, sinks, params=params, inplace=inplace)


def _scores_and_sums(n: Any, s: Any, p: Any) -> Any:
    q, k, v = s[:3]
    # each query and cell: a score (q[0]), its softmax (6) and its share of the sum (v[0])
    return q[1] * q[2] * q[3] * k[1] * (q[0] + 6 + v[0])


@declares(
    "FLASH_ATTN_EXT", params=FlashAttnParams, cost=MultiplyAdds(_scores_and_sums, of_weights=False)
)
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
    """softmax(q k scale + slope * mask) v, without storing the scores.

    q: f32 [d, n_tok, n_head, batch], k: [d, n_kv, n_head_kv, batch], v: [dv, n_kv, n_head_kv,
    batch], n_head_kv | n_head -> f32 [dv, n_head, n_tok, batch]. mask: f16 or f32 [n_kv, n_tok or
    more, h, b], h | n_head, b | batch; slope as in `soft_max`. sinks: f32 [n_head]. A logit_softcap
    c > 0 makes a score c tanh(score / c) before the mask. Raises GraphError where the sizes differ
    from these, where a row has gaps, and where max_bias > 0 has no mask. Equals ggml_flash_attn_ext
    (FlashAttention, arXiv 2205.14135)."""
    op = "FLASH_ATTN_EXT"
    require_type(q, ("f32",), op, "q")
    require(q.ne[0] == k.ne[0], op, "rows of q and k must have one length", q, k)
    same = k.ne[1:3] == v.ne[1:3]
    require(same, op, "k and v must have the same cells and heads (dimensions 1 and 2)", k, v)
    fits = multiple(q.ne[2], k.ne[2]) and multiple(q.ne[3], k.ne[3]) and k.ne[3] == v.ne[3]
    require(fits, op, "heads and batch of k and v must divide those of q", q, k, v)
    for role, t in (("q", q), ("k", k), ("v", v)):
        require(t.is_contiguous_rows, op, f"rows of {role} must be contiguous; use cont()", t)
    if mask is not None:
        require_type(mask, ("f16", "f32"), op, "mask")
        fits = _divides(op, mask, q) and is_at_most(k.ne[1], mask.ne[0])
        why = "mask must be [n_kv, n_tok] with dimensions 2 and 3 that divide those of q"
        require(fits, op, why, q, k, mask)
    require(max_bias <= 0 or mask is not None, op, "max_bias > 0 needs a mask", q)
    _check_sinks(op, sinks, q)
    params = FlashAttnParams(f32(scale), f32(max_bias), f32(logit_softcap))
    ne = (v.ne[0], q.ne[2], q.ne[1], q.ne[3])
    return make_node(op, F32, ne, q, k, v, mask, sinks, params=params)


def _divides(op: str, mask: Tensor, x: Tensor) -> bool:
    """Whether a mask, which must be contiguous, has the rows of `x` and divides its heads."""
    require(mask.is_contiguous, op, "mask must be contiguous", mask)
    heads = multiple(x.ne[2], mask.ne[2]) and multiple(x.ne[3], mask.ne[3])
    return is_at_most(x.ne[1], mask.ne[1]) and heads


def _check_sinks(op: str, sinks: Tensor | None, x: Tensor) -> None:
    if sinks is not None:
        require_type(sinks, ("f32",), op, "sinks")
        fits = sinks.ne[0] == x.ne[2] and sinks.n_rows == 1
        require(fits, op, "sinks must have one number for each head (dimension 2)", x, sinks)


@declares("LIGHTNING_INDEXER")
def lightning_indexer(q: Tensor, k: Tensor, weights: Tensor, mask: Tensor) -> Tensor:
    """The sum over heads of weights * relu(q k), plus mask: the score of DeepSeek's sparse
    attention.

    q: f32 [d, n_head, n_tok, n_stream], k: [d, 1, n_kv, n_stream], weights: f32 [n_head, n_tok, 1,
    n_stream], mask: f16 or f32 [n_kv, n_tok, 1, a divisor of n_stream] -> f32 [n_kv, n_tok, 1,
    n_stream]. Raises GraphError where the sizes differ from these. Equals
    ggml_lightning_indexer."""
    op = "LIGHTNING_INDEXER"
    require_type(q, ("f32",), op, "q")
    require_type(weights, ("f32",), op, "weights")
    require_type(mask, ("f16", "f32"), op, "mask")
    require(k.dtype.name in FLOATS or k.dtype.is_quantized, op, "k must be float or blocks", k)
    fits = q.ne[0] == k.ne[0] and k.ne[1] == 1 and q.ne[3] == k.ne[3]
    require(fits, op, "k must be [q.ne[0], 1, n_kv, q.ne[3]]", q, k)
    fits = weights.ne == (q.ne[1], q.ne[2], 1, q.ne[3])
    require(fits, op, "weights must be [n_head, n_tok, 1, n_stream]", q, weights)
    fits = (
        mask.ne[0] == k.ne[2]
        and mask.ne[1] == q.ne[2]
        and mask.ne[2] == 1
        and multiple(q.ne[3], mask.ne[3])
    )
    require(fits, op, "mask must be [n_kv, n_tok]", q, k, mask)
    return make_node(op, F32, (k.ne[2], q.ne[2], 1, q.ne[3]), q, k, weights, mask)
