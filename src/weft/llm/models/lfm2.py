"""LFM2 (Liquid AI, arXiv 2511.23404): layers without key/value heads are gated short convolutions,
the others attention with an RMS norm of each query and key head; a gated feed-forward layer follows
either.

    b, c, x = in(u)
    out(c * conv(b * x))
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from weft import graph as G
from weft.graph.tensor import Tensor
from weft.llm.config import Keys, ModelConfig, RecurrentConfig
from weft.llm.models import common, rows
from weft.llm.models.common import Step, linear, norm
from weft.llm.models.recurrence import convolve, require_recurrent
from weft.llm.weights import Row, Weights, maybe, need

__all__ = ["configure", "forward", "table"]


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Which layers are convolutions."""
    r = RecurrentConfig(
        layers=tuple(n == 0 for n in c.heads_kv),
        d_conv=keys.count("shortconv.l_cache", least=2),
        n_channels=c.n_embd,
    )
    return replace(c, recurrent=r)


def table(c: ModelConfig) -> Iterator[Row]:
    """The tensors of a file; the last norm has the name of the embedding's."""
    r = require_recurrent(c)
    yield need("token_embd.weight", c.n_embd, c.n_vocab)
    yield need("token_embd_norm.weight", c.n_embd)
    yield maybe("output.weight", c.n_embd, c.n_vocab)
    for il in range(c.n_layer):
        yield need(f"blk.{il}.attn_norm.weight", c.n_embd)
        if r.layers[il]:
            yield from rows.linear_rows(f"blk.{il}.shortconv.in_proj", c.n_embd, 3 * c.n_embd)
            yield need(f"blk.{il}.shortconv.conv.weight", r.d_conv, c.n_embd)
            yield from rows.linear_rows(f"blk.{il}.shortconv.out_proj", c.n_embd, c.n_embd)
        else:
            yield from rows.attention_rows(c, il)
            yield need(f"blk.{il}.attn_q_norm.weight", c.head_dim_k)
            yield need(f"blk.{il}.attn_k_norm.weight", c.head_dim_k)
        yield need(f"blk.{il}.ffn_norm.weight", c.n_embd)
        yield from rows.feed_forward_rows(c, il)


def short_convolution(step: Step, w: Weights, il: int, u: Tensor) -> Tensor:
    """A gated short convolution, by the weights `w` of layer `il`."""
    n, bcx = step.config.n_embd, linear(w, "shortconv.in_proj", u)
    b, c, x = (
        G.cont(G.view_2d(bcx, n, bcx.ne[1], bcx.nb[1], i * n * bcx.dtype.bytes)) for i in range(3)
    )
    y = convolve(step, il, G.mul(b, x), w["shortconv.conv.weight"])
    return linear(w, "shortconv.out_proj", G.mul(c, y))


def block(step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
    """One layer. The last one goes on with the wanted tokens only, once its state is written."""
    eps, layer = step.config.rms_eps, w.layer(il)
    y = norm(layer, "attn_norm", x, eps)
    if require_recurrent(step.config).layers[il]:
        y = short_convolution(step, layer, il, y)
    else:
        y = common.self_attention(step, w, il, y, qk_norm=norm)
    if il == step.config.n_layer - 1:
        x, y = common.wanted(step, x), common.wanted(step, y)
    x = G.add(x, y)
    y = common.feed_forward(layer, norm(layer, "ffn_norm", x, eps))
    return G.add(x, y).named(f"l_out-{il}")


def forward(step: Step, w: Weights) -> Tensor:
    """Tokens to logits [n_vocab, n_outputs]."""
    x = common.embed(step, w)
    for il in range(step.config.n_layer):
        x = block(step, w, il, x)
    x = norm(w, "token_embd_norm", x, step.config.rms_eps).named("result_norm")
    return common.output(w, x)
