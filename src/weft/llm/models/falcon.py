"""Falcon (arXiv 2311.16867): attention with few key/value heads and a feed-forward layer side by
side behind one LayerNorm. In the 40B shape attention has a norm of its own, `attn_norm_2`."""

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
        yield maybe(f"blk.{il}.attn_norm_2.weight", c.n_embd)
        yield maybe(f"blk.{il}.attn_norm_2.bias", c.n_embd)
        yield from rows.mlp_rows(c, il)


def block(step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
    """One layer. The last one goes on with the wanted tokens only, once the cache is written."""
    eps, layer = step.config.norm_eps, w.layer(il)
    normed = layer_norm(layer, "attn_norm", x, eps)
    own = "attn_norm_2.weight" in layer
    y = layer_norm(layer, "attn_norm_2", x, eps) if own else normed
    y = common.self_attention(step, w, il, y)
    if il == step.config.n_layer - 1:
        x, y, normed = (common.wanted(step, t) for t in (x, y, normed))
    return G.add(G.add(y, common.mlp(layer, normed)), x).named(f"l_out-{il}")


def forward(step: Step, w: Weights) -> Tensor:
    """Tokens to logits [n_vocab, n_outputs]."""
    x = common.embed(step, w)
    for il in range(step.config.n_layer):
        x = block(step, w, il, x)
    return common.layer_normed_logits(step, w, x)
