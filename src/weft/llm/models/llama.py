"""LLaMA (arXiv 2302.13971, 2307.09288, 2407.21783), and what shares its shape: Mistral
(arXiv 2310.06825), Mixtral (arXiv 2401.04088), TinyLlama and many others.

A block is  x + attention(norm(x)), then  x + feed_forward(norm(x)); the feed-forward layer is dense
or, when the metadata has `expert_count`, a mixture of experts.
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
