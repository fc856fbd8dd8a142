"""Qwen2 (arXiv 2407.10671): LLaMA's blocks with biases on q, k and v.

Qwen1.5-MoE and Qwen2-57B-A14B have a mixture instead of the feed-forward layer: the experts'
weights are not brought to sum 1, and a shared expert is added, weighted by a sigmoid of its gate.
"""

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
    """Widths that the metadata may leave out: `feed_forward_length` is that of the shared expert,
    and of all the experts of a token together."""
    moe = rows.require_experts(c)
    n_ff = keys.count("expert_feed_forward_length", 0, least=0) or c.n_ff() // moe.n_used
    return replace(c, moe=replace(moe, n_ff=n_ff, n_ff_shared=moe.n_ff_shared or c.n_ff()))


def table(c: ModelConfig) -> Iterator[Row]:
    """The tensors of a file."""
    yield from rows.model_rows(c)
    for il in range(c.n_layer):
        yield need(f"blk.{il}.attn_norm.weight", c.n_embd)
        yield from rows.attention_rows(c, il)
        yield need(f"blk.{il}.ffn_norm.weight", c.n_embd)
        if c.moe is None:
            yield from rows.feed_forward_rows(c, il)
        else:
            yield from rows.expert_rows(c, c.moe, il)
            yield need(f"blk.{il}.ffn_gate_inp_shexp.weight", c.n_embd)
            yield from rows.shared_expert_rows(c, c.moe.n_ff_shared, il)


def feed_forward(step: Step, w: Weights, x: Tensor) -> Tensor:
    """Dense, or experts and a gated shared expert: [n_embd, n_tokens] -> the same."""
    moe = step.config.moe
    if moe is None:
        return common.feed_forward(w, x)
    gate = G.sigmoid(G.mul_mat(w["ffn_gate_inp_shexp.weight"], x))  # [1, n_tokens]
    shared = G.mul(common.feed_forward(w, x, suffix="_shexp"), gate)
    return G.add(common.mixture(w, x, moe, renormalise=False), shared)


def block(step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
    """One layer. The last one goes on with the wanted tokens only, once the cache is written."""
    eps, layer = step.config.rms_eps, w.layer(il)
    y = common.self_attention(step, w, il, norm(layer, "attn_norm", x, eps))
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
