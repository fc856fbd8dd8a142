"""OLMo 2 (arXiv 2501.00656): no norm in front of attention and feed-forward layer but one behind
each, and queries and keys normed over all heads at once.

OLMo 3 adds a sliding window to three of four layers, whose rotation is never scaled (no YaRN).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from weft import graph as G
from weft.graph.tensor import Tensor
from weft.llm.config import Keys, ModelConfig, RopeConfig
from weft.llm.models import common, rows
from weft.llm.models.common import Step, norm
from weft.llm.weights import Row, Weights, need

__all__ = ["configure", "forward", "table"]


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """The window, where there is one: every fourth layer sees everything."""
    if not c.sliding_window:
        return c
    windowed = keys.windowed(4, c.n_layer)
    local = RopeConfig(c.rope.n_dims, c.rope.freq_base)
    return replace(c, windowed=windowed, ropes=tuple(local if w else c.rope for w in windowed))


def table(c: ModelConfig) -> Iterator[Row]:
    """The tensors of a file."""
    yield from rows.model_rows(c)
    for il in range(c.n_layer):
        yield from rows.attention_rows(c, il)
        yield need(f"blk.{il}.attn_q_norm.weight", c.n_head(il) * c.head_dim_k)
        yield need(f"blk.{il}.attn_k_norm.weight", c.n_embd_k(il))
        yield need(f"blk.{il}.post_attention_norm.weight", c.n_embd)
        yield from rows.feed_forward_rows(c, il)
        yield need(f"blk.{il}.post_ffw_norm.weight", c.n_embd)


def block(step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
    """One layer. The last one goes on with the wanted tokens only, once the cache is written."""
    eps, layer = step.config.rms_eps, w.layer(il)
    y = common.self_attention(step, w, il, x, qk_norm=common.norm_whole)
    if il == step.config.n_layer - 1:
        x, y = common.wanted(step, x), common.wanted(step, y)
    x = G.add(x, norm(layer, "post_attention_norm", y, eps))
    y = norm(layer, "post_ffw_norm", common.feed_forward(layer, x), eps)
    return G.add(x, y).named(f"l_out-{il}")


def forward(step: Step, w: Weights) -> Tensor:
    """Tokens to logits [n_vocab, n_outputs]."""
    x = common.embed(step, w)
    for il in range(step.config.n_layer):
        x = block(step, w, il, x)
    return common.logits(step, w, x)
