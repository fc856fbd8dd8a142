"""Phi-3 (arXiv 2404.14219): LLaMA's blocks with q, k and v in one matrix, and gate and up in
another. Long contexts have LongRoPE (arXiv 2402.13753): a factor for each rotated pair.

The window that metadata states is not used: which layers have it, files do not say.
"""

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
        yield need(f"blk.{il}.ffn_norm.weight", c.n_embd)
        yield from rows.fused_feed_forward_rows(c, il)


def block(step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
    """One layer. The last one goes on with the wanted tokens only, once the cache is written."""
    eps, layer = step.config.rms_eps, w.layer(il)
    y = common.self_attention(step, w, il, norm(layer, "attn_norm", x, eps))
    if il == step.config.n_layer - 1:
        x, y = common.wanted(step, x), common.wanted(step, y)
    x = G.add(x, y)
    y = common.fused_feed_forward(layer, norm(layer, "ffn_norm", x, eps))
    return G.add(x, y).named(f"l_out-{il}")


def forward(step: Step, w: Weights) -> Tensor:
    """Tokens to logits [n_vocab, n_outputs]."""
    x = common.embed(step, w)
    for il in range(step.config.n_layer):
        x = block(step, w, il, x)
    return common.logits(step, w, x)
