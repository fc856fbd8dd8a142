"""Gemma 3 (arXiv 2503.19786): Gemma 2 with an RMS norm of each query and key head instead of the
caps, and a sliding window in five of six layers, which rotate by a base of their own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from weft import graph as G
from weft.graph.tensor import Tensor
from weft.llm.config import Keys, ModelConfig
from weft.llm.models import common, rows
from weft.llm.models.common import Step, norm
from weft.llm.weights import Row, Weights, need

__all__ = ["configure", "forward", "table"]


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Windows and both rotations: layers with a window never scale positions."""
    c = replace(c, embedding_scale=math.sqrt(c.n_embd))
    if c.n_layer == 62:  # the 27B model, which has another scale than its head size asks for
        c = replace(c, attn_scale=1 / math.sqrt(c.n_embd // c.n_head()))
    if not c.sliding_window:
        return c
    windowed = keys.windowed(6, c.n_layer)
    base = keys.number("rope.freq_base_swa", 10000.0, above=0)
    local = replace(c.rope, freq_base=base, scaling="none", factor=1.0, ext_factor=0.0)
    return replace(c, windowed=windowed, ropes=tuple(local if w else c.rope for w in windowed))


def table(c: ModelConfig) -> Iterator[Row]:
    """The tensors of a file."""
    yield from rows.model_rows(c)
    for il in range(c.n_layer):
        yield need(f"blk.{il}.attn_norm.weight", c.n_embd)
        yield from rows.attention_rows(c, il)
        yield need(f"blk.{il}.attn_q_norm.weight", c.head_dim_k)
        yield need(f"blk.{il}.attn_k_norm.weight", c.head_dim_k)
        yield need(f"blk.{il}.post_attention_norm.weight", c.n_embd)
        yield need(f"blk.{il}.ffn_norm.weight", c.n_embd)
        yield from rows.feed_forward_rows(c, il)
        yield need(f"blk.{il}.post_ffw_norm.weight", c.n_embd)


def block(step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
    """One layer. The last one goes on with the wanted tokens only, once the cache is written."""
    eps, layer = step.config.rms_eps, w.layer(il)
    y = common.self_attention(step, w, il, norm(layer, "attn_norm", x, eps), qk_norm=norm)
    if il == step.config.n_layer - 1:
        x, y = common.wanted(step, x), common.wanted(step, y)
    x = G.add(x, norm(layer, "post_attention_norm", y, eps))
    y = common.feed_forward(layer, norm(layer, "ffn_norm", x, eps), G.geglu)
    return G.add(x, norm(layer, "post_ffw_norm", y, eps)).named(f"l_out-{il}")


def forward(step: Step, w: Weights) -> Tensor:
    """Tokens to logits [n_vocab, n_outputs]."""
    x = common.embed(step, w)
    for il in range(step.config.n_layer):
        x = block(step, w, il, x)
    return common.capped(step, common.logits(step, w, x))
