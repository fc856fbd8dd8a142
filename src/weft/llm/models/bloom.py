"""BLOOM (arXiv 2211.05100): GPT-2's blocks with a LayerNorm behind the embedding, and attention
with linear biases (ALiBi, arXiv 2108.12409) instead of positions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from weft import graph as G
from weft.graph.tensor import Tensor
from weft.llm.config import Keys, ModelConfig
from weft.llm.models import common, rows
from weft.llm.models.common import Step, layer_norm
from weft.llm.weights import Row, Weights

__all__ = ["configure", "forward", "table"]


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """The slopes of ALiBi are the paper's; no key says so."""
    return replace(c.without_rope(), alibi_bias=8.0)


def table(c: ModelConfig) -> Iterator[Row]:
    """The tensors of a file."""
    yield from rows.layer_normed_model_rows(c)
    yield from rows.layer_norm_rows("token_embd_norm", c.n_embd)
    for il in range(c.n_layer):
        yield from rows.layer_norm_rows(f"blk.{il}.attn_norm", c.n_embd)
        yield from rows.attention_rows(c, il)
        yield from rows.layer_norm_rows(f"blk.{il}.ffn_norm", c.n_embd)
        yield from rows.mlp_rows(c, il)


def block(step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
    """One layer. The last one goes on with the wanted tokens only, once the cache is written."""
    eps, layer = step.config.norm_eps, w.layer(il)
    y = common.self_attention(step, w, il, layer_norm(layer, "attn_norm", x, eps))
    if il == step.config.n_layer - 1:
        x, y = common.wanted(step, x), common.wanted(step, y)
    x = G.add(x, y)
    y = common.mlp(layer, layer_norm(layer, "ffn_norm", x, eps))
    return G.add(x, y).named(f"l_out-{il}")


def forward(step: Step, w: Weights) -> Tensor:
    """Tokens to logits [n_vocab, n_outputs]."""
    x = layer_norm(w, "token_embd_norm", common.embed(step, w), step.config.norm_eps)
    for il in range(step.config.n_layer):
        x = block(step, w, il, x)
    return common.layer_normed_logits(step, w, x)
