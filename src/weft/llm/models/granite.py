"""Granite 3 (IBM, 2024): LLaMA's blocks with four constants: what embeddings, attention scores and
what a layer adds to the residual are multiplied with, and what logits are divided by.

The mixture of experts (granitemoe) may have a shared expert, simply added."""

from __future__ import annotations

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
    """`rope.scaling.finetuned` is a switch here: false means no rotary embedding."""
    if keys.flag("rope.scaling.finetuned", True):
        return c
    return replace(c, rope=replace(c.rope, n_dims=0))


def table(c: ModelConfig) -> Iterator[Row]:
    """The tensors of a file."""
    yield from rows.model_rows(c)
    for il in range(c.n_layer):
        yield need(f"blk.{il}.attn_norm.weight", c.n_embd)
        yield from rows.attention_rows(c, il)
        yield need(f"blk.{il}.ffn_norm.weight", c.n_embd)
        if c.moe is None:
            yield from rows.feed_forward_rows(c, il)
            continue
        yield from rows.expert_rows(c, c.moe, il)
        if c.moe.n_ff_shared:
            yield from rows.shared_expert_rows(c, c.moe.n_ff_shared, il)


def feed_forward(step: Step, w: Weights, x: Tensor) -> Tensor:
    """Dense, or a mixture of experts: [n_embd, n_tokens] -> the same."""
    moe = step.config.moe
    if moe is None:
        return common.feed_forward(w, x)
    y = common.mixture(w, x, moe)
    return G.add(y, common.feed_forward(w, x, suffix="_shexp")) if moe.n_ff_shared else y


def block(step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
    """One layer. The last one goes on with the wanted tokens only, once the cache is written."""
    eps, layer = step.config.rms_eps, w.layer(il)
    scale = step.config.residual_scale or 1.0
    y = common.self_attention(step, w, il, norm(layer, "attn_norm", x, eps))
    if il == step.config.n_layer - 1:
        x, y = common.wanted(step, x), common.wanted(step, y)
    x = G.add(x, G.scale(y, scale))
    y = feed_forward(step, layer, norm(layer, "ffn_norm", x, eps))
    return G.add(x, G.scale(y, scale)).named(f"l_out-{il}")


def forward(step: Step, w: Weights) -> Tensor:
    """Tokens to logits [n_vocab, n_outputs]."""
    x = common.embed(step, w)
    for il in range(step.config.n_layer):
        x = block(step, w, il, x)
    return G.scale(common.logits(step, w, x), 1.0 / (step.config.logit_scale or 1.0))
