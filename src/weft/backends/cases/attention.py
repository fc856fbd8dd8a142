"""Softmax, attention, rotary positions, and the ops of sparse-attention models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from weft import graph as g
from weft.backends.cases.case import Build, Case, Sources, bound
from weft.backends.cases.formats import FLOATS
from weft.graph.ops import RopeMode
from weft.graph.tensor import Tensor

CACHES = (*FLOATS, "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl")

# for rows of a cache in 8 bits or less, queries are quantized, too
ATTENTION = 5e-4


def attention_cases() -> Iterator[Case]:
    """The cases of this file."""
    yield Case("SOFT_MAX", "", lambda s: g.soft_max(s.normal(133, 6, 2), scale=0.5))
    for t in ("f32", "f16"):
        yield Case("SOFT_MAX", f"mask {t}", bound(_masked, t))
    yield Case("SOFT_MAX", "mask, slopes, sinks", _sloped)
    op = "FLASH_ATTN_EXT"
    for t in CACHES:
        for tokens in (1, 7):
            yield Case(op, f"{t} x{tokens}", _attention(t, tokens), ATTENTION, op, t)
    yield Case(op, "f32 biases of windows", _windows, ATTENTION)
    yield Case(op, "f16 sinks", _attention("f16", 3, sinks=True), ATTENTION)
    sloped = _attention("f16", 3, max_bias=8.0, logit_softcap=20.0)
    yield Case(op, "f16 slopes, soft cap", sloped, ATTENTION)
    yield Case(op, "f16 head of 72", _attention("f16", 3, head=72), ATTENTION)
    yield from _ropes()
    yield from _others()


def _masked(s: Sources, t: str) -> Tensor:
    return g.soft_max(s.normal(133, 5, 4), _mask(s, 133, 5, t), scale=0.5)


def _sloped(s: Sources) -> Tensor:
    return g.soft_max(s.normal(133, 5, 4), _mask(s, 133, 5, "f32"), s.normal(4), 0.5, 8.0)


def _mask(s: Sources, n_kv: int, n_tokens: int, t: str) -> Tensor:
    """A mask under which token i sees all but the last n_tokens - 1 - i cells."""
    visible = np.tri(n_tokens, n_kv, n_kv - n_tokens, dtype=bool)
    return s.fixed(np.where(visible, 0.0, -np.inf), t)


def _attention(t: str, tokens: int, head: int = 64, *, sinks: bool = False, **more: Any) -> Build:
    def build(s: Sources) -> Tensor:
        q = s.normal(head, tokens, 4)
        k, v = s.normal(head, 96, 2, dtype=t), s.normal(head, 96, 2, dtype=t)
        extra = s.normal(4) if sinks else None
        return g.flash_attn_ext(q, k, v, _mask(s, 96, tokens, "f16"), extra, scale=0.125, **more)

    return build


def _windows(s: Sources) -> Tensor:
    """Short sequences side by side, with a bias for each head, and cells that some of them hide."""
    q, k, v = (s.normal(32, 49, 3, 4) for _ in range(3))
    hidden = np.zeros((4, 1, 49, 49))
    hidden[1::2, :, :20, 30:] = hidden[2, :, 5:, :5] = -np.inf
    mask = hidden + np.sin(np.arange(3 * 49 * 49)).reshape(1, 3, 49, 49)
    return g.flash_attn_ext(q, k, v, s.fixed(mask, "f32"), scale=0.18)


def _ropes() -> Iterator[Case]:
    def turned(s: Sources, mode: RopeMode, t: str = "f32", **more: Any) -> Tensor:
        several = mode in (RopeMode.MROPE, RopeMode.VISION, RopeMode.IMROPE)
        pos = s.integers(300, 5 * (4 if several else 1))
        if several:
            more["sections"] = (16, 16, 0, 0) if mode is RopeMode.VISION else (8, 12, 12, 0)
        n_dims = 32 if mode is RopeMode.VISION else 64
        return g.rope(s.normal(64, 3, 5, dtype=t), pos, mode=mode, n_dims=n_dims, **more)

    def stretched(s: Sources) -> Tensor:
        return turned(s, RopeMode.NORMAL, n_ctx_orig=128, freq_scale=0.25, ext_factor=1.0)

    def with_factors(s: Sources) -> Tensor:
        x, pos, factors = s.normal(80, 3, 5), s.integers(300, 5), s.uniform(1, 4, 32)
        return g.rope(x, pos, factors, mode=RopeMode.NEOX, n_dims=64)

    def back(s: Sources) -> Tensor:
        return g.rope_back(s.normal(64, 3, 5), s.integers(300, 5), mode=RopeMode.NEOX, n_dims=64)

    for mode in RopeMode:
        yield Case("ROPE", f"{mode.name} f32", bound(turned, mode), 1e-6)
    yield Case("ROPE", "NEOX f16", lambda s: turned(s, RopeMode.NEOX, "f16"), 1e-6)
    yield Case("ROPE", "NORMAL stretched", stretched, 1e-6)
    yield Case("ROPE", "NEOX factors", with_factors, 1e-6)
    yield Case("ROPE_BACK", "NEOX f32", back, 1e-6)
    for n in (2, 32, 64, 512):
        build = bound(lambda s, n: g.hadamard(s.normal(1024 if n > 64 else 192, 3, 5), n), n)
        yield Case("HADAMARD", f"{n}", build, 1e-6)


def _others() -> Iterator[Case]:
    def indexer(s: Sources, t: str) -> Tensor:
        q, k, weights = s.normal(64, 4, 3, 2), s.normal(64, 1, 20, 2, dtype=t), s.normal(4, 3, 1, 2)
        return g.lightning_indexer(q, k, weights, _mask(s, 20, 3, "f16"))

    def comb(s: Sources) -> Tensor:
        return g.dsv4_hc_comb(s.normal(24, 5), s.normal(3), s.normal(24), eps=1e-6, n_iter=3)

    def gated(s: Sources) -> Tensor:
        return g.dsv4_hc_pre(s.normal(31, 4, 5), s.normal(31, 4, 5), gated=True, scale=0.3)

    def post(s: Sources) -> Tensor:
        x, streams = s.normal(31, 5), s.normal(31, 4, 5)
        return g.dsv4_hc_post(x, streams, s.normal(4, 5), s.normal(4, 4, 5))

    for t in (*FLOATS, "q8_0"):
        yield Case("LIGHTNING_INDEXER", t, bound(indexer, t), ATTENTION)
    yield Case("DSV4_HC_COMB", "", comb)
    yield Case("DSV4_HC_PRE", "", lambda s: g.dsv4_hc_pre(s.normal(31, 4, 5), s.normal(4, 5)))
    yield Case("DSV4_HC_PRE", "gated", gated)
    yield Case("DSV4_HC_POST", "", post)
