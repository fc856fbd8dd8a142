"""DeepSeek-V4's hyper-connections: `hc` residual streams mixed around each block, in float64."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weft.backends.reference.kernel import Call, f32, kernel
from weft.graph.ops import HcCombParams, HcPreParams

F64 = NDArray[np.float64]


@kernel("DSV4_HC_COMB")
def hc_comb(call: Call) -> None:
    """A nearly doubly stochastic matrix `[token, from, to]` by Sinkhorn's iteration.

    mixes `[token, (2 + hc) * hc]`, of which the last hc * hc count; times scale[2], plus base."""
    p: HcCombParams = call.params
    hc = call.dst.ne[0]
    eps = f32(p.eps)
    mixes, base = call.f64(0)[0, 0, :, 2 * hc :], call.f64(2).reshape(-1)[2 * hc :]
    logits = (mixes * call.f64(1).reshape(-1)[2] + base).reshape(-1, hc, hc)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    comb = weights / weights.sum(-1, keepdims=True) + eps
    for i in range(p.n_iter):
        if i > 0:
            comb = comb / (comb.sum(2, keepdims=True) + eps)
        comb = comb / (comb.sum(1, keepdims=True) + eps)
    call.dst.write(comb[None])


@kernel("DSV4_HC_PRE")
def hc_pre(call: Call) -> None:
    """The streams x `[token, hc, dim]` as one, `[token, dim]`: a weighted sum.

    Weights `[token, hc]`; gated: scale * sum of x * sigmoid(gate), the gate shaped like x."""
    p: HcPreParams = call.params
    x = call.f64(0)[0]
    if p.gated:
        out = f32(p.scale) * (x / (1 + np.exp(-call.f64(1)[0]))).sum(1)
    else:
        out = np.einsum("thd,th->td", x, call.f64(1)[0, 0])
    call.dst.write(out)


@kernel("DSV4_HC_POST")
def hc_post(call: Call) -> None:
    """A block's result back on the streams: post * x + comb^T residual, `[token, hc, dim]`.

    x `[token, dim]`, residual `[token, hc, dim]`, post `[token, hc]`, comb `[token, from, to]`;
    without comb the streams stay where they are."""
    x, residual, post = call.f64(0)[0, 0], call.f64(1)[0], call.f64(2)[0, 0]
    comb = call.optional(3)
    if comb is not None:
        residual = np.einsum("tfd,tfo->tod", residual, comb.f64()[0])
    call.dst.write((x[:, None] * post[..., None] + residual)[None])
