"""Qwen3 (arXiv 2505.09388): LLaMA's blocks with an RMS norm of each query and key head in front of
the rotation; the feed-forward layer is dense or a mixture of experts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from weft import graph as G
from weft.graph.tensor import Tensor
from weft.llm.config import Keys, ModelConfig
from weft.llm.models import common, rows
from weft.llm.models.common import Step, norm
from weft.llm.weights import Row, Weights, need

__all__ = ["configure_experts", "forward", "table"]


def configure_experts(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Where no width of one expert is stated, `feed_forward_length` is that of all the experts of a
    token together."""
    moe = rows.require_experts(c)
    n_ff = keys.count("expert_feed_forward_length", 0, least=0) or c.n_ff() // moe.n_used
    return replace(c, moe=replace(moe, n_ff=n_ff))


def table(c: ModelConfig) -> Iterator[Row]:
    """The tensors of a file."""
    yield from rows.model_rows(c)
    for il in range(c.n_layer):
        yield need(f"blk.{il}.attn_norm.weight", c.n_embd)
        yield from rows.attention_rows(c, il)
        yield need(f"blk.{il}.attn_q_norm.weight", c.head_dim_k)
        yield need(f"blk.{il}.attn_k_norm.weight", c.head_dim_k)
        yield need(f"blk.{il}.ffn_norm.weight", c.n_embd)
        if c.moe is None:
            yield from rows.feed_forward_rows(c, il)
        else:
            yield from rows.expert_rows(c, c.moe, il)


def feed_forward(step: Step, w: Weights, x: Tensor) -> Tensor:
    """Dense, or a mixture of experts: [n_embd, n_tokens] -> the same."""
    moe = step.config.moe
    return common.feed_forward(w, x) if moe is None else common.mixture(w, x, moe)


def block(step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
    """One layer. The last one goes on with the wanted tokens only, once the cache is written."""
    eps, layer = step.config.rms_eps, w.layer(il)
    y = common.self_attention(step, w, il, norm(layer, "attn_norm", x, eps), qk_norm=norm)
    if il == step.config.n_layer - 1:
        x, y = common.wanted(step, x), common.wanted(step, y)
    x = G.add(x, y)
    y = feed_forward(step, layer, norm(layer, "ffn_norm", x, eps))
    return G.add(x, y).named(f"l_out-{il}")


def forward(step: Step, w: Weights) -> Tensor:
    """Tokens to logits [n_vocab, n_outputs]."""
    x = common.embed(step, w)
    for il in range(step.config.n_layer):
        x = block(step, w, il, x)
    return common.logits(step, w, x)
