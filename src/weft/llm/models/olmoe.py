"""OLMoE (arXiv 2409.02060): a mixture of experts in every layer, whose weights are not brought to
sum 1, and queries and keys normed over all heads at once."""

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
    """The tensors of a file; raises FormatError without experts."""
    moe = rows.require_experts(c)
    yield from rows.model_rows(c)
    for il in range(c.n_layer):
        yield need(f"blk.{il}.attn_norm.weight", c.n_embd)
        yield from rows.attention_rows(c, il)
        yield need(f"blk.{il}.attn_q_norm.weight", c.n_head(il) * c.head_dim_k)
        yield need(f"blk.{il}.attn_k_norm.weight", c.n_embd_k(il))
        yield need(f"blk.{il}.ffn_norm.weight", c.n_embd)
        yield from rows.expert_rows(c, moe, il)


def block(step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
    """One layer. The last one goes on with the wanted tokens only, once the cache is written."""
    eps, layer, moe = step.config.rms_eps, w.layer(il), rows.require_experts(step.config)
    y = norm(layer, "attn_norm", x, eps)
    y = common.self_attention(step, w, il, y, qk_norm=common.norm_whole)
    if il == step.config.n_layer - 1:
        x, y = common.wanted(step, x), common.wanted(step, y)
    x = G.add(x, y)
    y = common.mixture(layer, norm(layer, "ffn_norm", x, eps), moe, renormalise=False)
    return G.add(x, y).named(f"l_out-{il}")


def forward(step: Step, w: Weights) -> Tensor:
    """Tokens to logits [n_vocab, n_outputs]."""
    x = common.embed(step, w)
    for il in range(step.config.n_layer):
        x = block(step, w, il, x)
    return common.logits(step, w, x)
