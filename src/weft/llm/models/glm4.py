"""GLM-4 (arXiv 2406.12793) of 2025 (0414): LLaMA's blocks with an RMS norm behind attention and
feed-forward layer, too, and rotation of a part of each head. Gate and up are one matrix."""

from __future__ import annotations

from collections.abc import Iterator

from weft import graph as G
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig
from weft.llm.models import common, rows
from weft.llm.models.common import Step, norm
from weft.llm.weights import Row, Weights, need

__all__ = ["forward", "table"]


def table(c: ModelConfig) -> Iterator[Row]:
    """The tensors of a file."""
    yield from rows.model_rows(c)
    for il in range(c.n_layer):
        yield need(f"blk.{il}.attn_norm.weight", c.n_embd)
        yield from rows.attention_rows(c, il)
        yield need(f"blk.{il}.post_attention_norm.weight", c.n_embd)
        yield need(f"blk.{il}.ffn_norm.weight", c.n_embd)
        yield from rows.fused_feed_forward_rows(c, il)
        yield need(f"blk.{il}.post_ffw_norm.weight", c.n_embd)


def block(step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
    """One layer. The last one goes on with the wanted tokens only, once the cache is written."""
    eps, layer = step.config.rms_eps, w.layer(il)
    y = common.self_attention(step, w, il, norm(layer, "attn_norm", x, eps))
    if il == step.config.n_layer - 1:
        x, y = common.wanted(step, x), common.wanted(step, y)
    x = G.add(x, norm(layer, "post_attention_norm", y, eps))
    y = common.fused_feed_forward(layer, norm(layer, "ffn_norm", x, eps))
    return G.add(x, norm(layer, "post_ffw_norm", y, eps)).named(f"l_out-{il}")


def forward(step: Step, w: Weights) -> Tensor:
    """Tokens to logits [n_vocab, n_outputs]."""
    x = common.embed(step, w)
    for il in range(step.config.n_layer):
        x = block(step, w, il, x)
    return common.logits(step, w, x)
