"""Command R (Cohere, 2024): attention and a gated feed-forward layer side by side behind one
LayerNorm without bias; logits are scaled. Command R+ norms each query and key head.

Command R7B and A (cohere2) have no such norms; three of four layers see only a sliding window, and
those alone rotate (arXiv 2501.18795)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from weft import graph as G
from weft.graph.tensor import Tensor
from weft.llm.config import Keys, ModelConfig
from weft.llm.models import common, rows
from weft.llm.models.common import Step, layer_norm
from weft.llm.weights import Row, Weights, maybe

__all__ = ["configure_windows", "forward", "table"]


def configure_windows(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Which layers of cohere2 have a window, and so a rotation."""
    windowed = keys.windowed(4, c.n_layer)
    none = replace(c.rope, n_dims=0)
    return replace(c, windowed=windowed, ropes=tuple(c.rope if w else none for w in windowed))


def table(c: ModelConfig) -> Iterator[Row]:
    """The tensors of a file."""
    yield from rows.layer_normed_model_rows(c)
    for il in range(c.n_layer):
        yield from rows.layer_norm_rows(f"blk.{il}.attn_norm", c.n_embd)
        yield from rows.attention_rows(c, il)
        yield maybe(f"blk.{il}.attn_q_norm.weight", c.head_dim_k, c.n_head(il))
        yield maybe(f"blk.{il}.attn_k_norm.weight", c.head_dim_k, c.n_head_kv(il))
        yield from rows.feed_forward_rows(c, il)


def block(step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
    """One layer. The last one goes on with the wanted tokens only, once the cache is written."""
    layer = w.layer(il)
    normed = layer_norm(layer, "attn_norm", x, step.config.norm_eps)
    y = common.head_normed_attention(step, w, il, normed)
    if il == step.config.n_layer - 1:
        x, y, normed = (common.wanted(step, t) for t in (x, y, normed))
    return G.add(G.add(common.feed_forward(layer, normed), x), y).named(f"l_out-{il}")


def forward(step: Step, w: Weights) -> Tensor:
    """Tokens to logits [n_vocab, n_outputs]."""
    x = common.embed(step, w)
    for il in range(step.config.n_layer):
        x = block(step, w, il, x)
    return G.scale(common.layer_normed_logits(step, w, x), step.config.logit_scale or 1.0)
