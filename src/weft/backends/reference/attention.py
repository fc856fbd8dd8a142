"""Softmax, attention and sparse-attention scores, in float64."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weft.backends.reference.kernel import Call, f32, kernel
from weft.backends.reference.matmul import product
from weft.backends.reference.view import ArrayView
from weft.graph.ops import FlashAttnParams, SoftMaxParams

F64 = NDArray[np.float64]


def alibi_slopes(n_head: int, max_bias: float) -> F64:
    """The factor that each head puts on the mask, `[n_head]` (ALiBi, arXiv 2108.12409); ones
    without ALiBi.

    With n the power of two not above n_head, the first n heads take m0^1 .. m0^n, the others the
    odd powers of m1 = sqrt(m0)."""
    if max_bias == 0 or n_head == 0:
        return np.ones(n_head)
    n = 1 << (n_head.bit_length() - 1)
    m0, m1 = 2.0 ** (-max_bias / n), 2.0 ** (-max_bias / 2 / n)
    head = np.arange(n_head)
    slopes: F64 = np.where(head < n, m0 ** (head + 1), m1 ** (2.0 * (head - n) + 1))
    return slopes


def _bias(mask: ArrayView, shape: tuple[int, ...], max_bias: float) -> F64:
    """slope * mask for scores of `shape` (batch, head, row, column).

    The mask may have more rows than the scores, and fewer heads and batches (taken modulo)."""
    n3, n2, rows, columns = shape
    part = mask.f64()[:, :, :rows, :columns]
    part = part[np.arange(n3) % part.shape[0]][:, np.arange(n2) % part.shape[1]]
    bias: F64 = alibi_slopes(n2, max_bias)[:, None, None] * part
    return bias


def _weights(scores: F64, sinks: F64 | None) -> F64:
    """exp(score - max) / sum of each row; a sink is one more logit of its head, in max and sum
    only."""
    top = scores.max(-1, keepdims=True, initial=-np.inf)
    if sinks is not None:
        top = np.maximum(top, sinks.reshape(-1, 1, 1))
    weights: F64 = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks.reshape(-1, 1, 1) - top)
    weights /= total
    return weights


@kernel("SOFT_MAX")
def soft_max(call: Call) -> None:
    """softmax(src0 * scale + slope * mask) over rows, with optional mask (1) and sinks (2)."""
    p: SoftMaxParams = call.params
    scores = call.f64(0) * f32(p.scale)
    mask, sinks = call.optional(1), call.optional(2)
    if mask is not None:
        scores = scores + _bias(mask, scores.shape, f32(p.max_bias))
    call.dst.write(_weights(scores, None if sinks is None else sinks.f64()))


@kernel("FLASH_ATTN_EXT")
def flash_attn_ext(call: Call) -> None:
    """softmax(scale * q k^T + slope * mask) v, the heads of a token side by side in the result.

    q `[batch, head, token, dk]`, k and v `[batch, kv head, cell, d]`, dst `[batch, token, head,
    dv]`. A soft cap bounds the scores before the mask. A row without visible cells gives zeros."""
    p: FlashAttnParams = call.params
    q, k, v = call.f64(0), call.f64(1), call.f64(2)
    scores = product(k, q) * f32(p.scale)
    cap = f32(p.logit_softcap)
    if cap:
        scores = cap * np.tanh(scores / cap)
    mask, sinks = call.optional(3), call.optional(4)
    if mask is not None:
        scores = scores + _bias(mask, scores.shape, f32(p.max_bias))
    weights = _weights(scores, None if sinks is None else sinks.f64())
    blind = ~(scores > -np.inf).any(-1, keepdims=True)
    out = product(v.swapaxes(-1, -2), np.where(blind, 0, weights))
    call.dst.write(out.swapaxes(1, 2))


@kernel("LIGHTNING_INDEXER")
def lightning_indexer(call: Call) -> None:
    """DeepSeek's index scores: sum over heads of relu(q . k) * weight, plus the mask.

    q `[stream, token, head, d]`, k `[stream, cell, 1, d]`, weights `[stream, 1, token, head]`, mask
    `[any, 1, token, cell]` (streams taken modulo), dst `[stream, 1, token, cell]`."""
    q, k, weights = call.f64(0), call.f64(1), call.f64(2)
    scores = np.maximum(product(k.swapaxes(1, 2), q), 0)  # [stream, token, head, cell]
    out = np.einsum("sthc,sth->stc", scores, weights[:, 0])[:, None]
    mask = call.f64(3)[:, :, : out.shape[2], : out.shape[3]]
    call.dst.write(out + mask[np.arange(out.shape[0]) % mask.shape[0]])
