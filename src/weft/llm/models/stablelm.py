"""StableLM (arXiv 2402.17834): LayerNorm, rotation of a part of each head, a gated feed-forward
layer.

StableLM 2 12B norms each query and key head, and has no norm in front of the feed-forward layer: it
works beside attention, on the same normed input."""

from __future__ import annotations

from collections.abc import Iterator

from weft import graph as G
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig
from weft.llm.models import common, rows
from weft.llm.models.common import Step, layer_norm
from weft.llm.weights import Row, Weights, maybe

__all__ = ["forward", "table"]


def table(c: ModelConfig) -> Iterator[Row]:
    """The tensors of a file."""
    yield from rows.layer_normed_model_rows(c)
    for il in range(c.n_layer):
        yield from rows.layer_norm_rows(f"blk.{il}.attn_norm", c.n_embd)
        yield from rows.attention_rows(c, il)
        yield maybe(f"blk.{il}.attn_q_norm.weight", c.head_dim_k, c.n_head(il))
        yield maybe(f"blk.{il}.attn_k_norm.weight", c.head_dim_k, c.n_head_kv(il))
        yield maybe(f"blk.{il}.ffn_norm.weight", c.n_embd)
        yield maybe(f"blk.{il}.ffn_norm.bias", c.n_embd)
        yield from rows.feed_forward_rows(c, il)


def block(step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
    """One layer. The last one goes on with the wanted tokens only, once the cache is written."""
    eps, layer = step.config.norm_eps, w.layer(il)
    normed = layer_norm(layer, "attn_norm", x, eps)
    y = common.head_normed_attention(step, w, il, normed)
    if il == step.config.n_layer - 1:
        x, y, normed = (common.wanted(step, t) for t in (x, y, normed))
    x = G.add(x, y)
    if "ffn_norm.weight" in layer:
        normed = layer_norm(layer, "ffn_norm", x, eps)
    return G.add(x, common.feed_forward(layer, normed)).named(f"l_out-{il}")


def forward(step: Step, w: Weights) -> Tensor:
    """Tokens to logits [n_vocab, n_outputs]."""
    x = common.embed(step, w)
    for il in range(step.config.n_layer):
        x = block(step, w, il, x)
    return common.layer_normed_logits(step, w, x)
