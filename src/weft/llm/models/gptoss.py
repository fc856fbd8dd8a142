"""gpt-oss (OpenAI, "gpt-oss-120b & gpt-oss-20b model card", arXiv 2508.10925).

A mixture of experts in every layer, attention sinks (one learned logit a head that only the softmax
denominator sees), biases everywhere, and a sliding window in every second layer, the first one on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from weft import graph as G
from weft.errors import FormatError
from weft.graph.tensor import Tensor
from weft.llm.config import Keys, ModelConfig
from weft.llm.models import common, rows
from weft.llm.models.common import Step, linear, norm
from weft.llm.weights import Row, Weights, need

__all__ = ["configure", "forward", "table"]


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Every second layer has a sliding window, the first one on."""
    return replace(c, windowed=keys.windowed(2, c.n_layer))


def table(c: ModelConfig) -> Iterator[Row]:
    """The tensors of a file; raises FormatError without experts or a sliding window."""
    if c.moe is None or c.sliding_window == 0:
        missing = "attention.sliding_window" if c.moe else "expert_count"
        raise FormatError(f"metadata key {c.arch}.{missing} is missing; convert the model again")
    yield from rows.model_rows(c)
    for il in range(c.n_layer):
        yield need(f"blk.{il}.attn_norm.weight", c.n_embd)
        yield from rows.attention_rows(c, il)
        yield need(f"blk.{il}.attn_sinks.weight", c.n_head(il))
        yield need(f"blk.{il}.post_attention_norm.weight", c.n_embd)
        yield from rows.expert_rows(c, c.moe, il)


def attention(step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
    """Attention with sinks."""
    layer = w.layer(il)
    q, k, v = common.qkv(step, layer, il, x)
    q, k = common.rope(step, w, q, il), common.rope(step, w, k, il)
    y = common.attention(step, il, q, k, v, sinks=layer["attn_sinks.weight"])
    return linear(layer, "attn_output", y)


def block(step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
    """One layer. The last one goes on with the wanted tokens only, once the cache is written."""
    c, layer = step.config, w.layer(il)
    assert c.moe is not None
    y = attention(step, w, il, norm(layer, "attn_norm", x, c.rms_eps))
    if il == c.n_layer - 1:
        x, y = common.wanted(step, x), common.wanted(step, y)
    x = G.add(x, y)
    y = norm(layer, "post_attention_norm", x, c.rms_eps)
    y = common.mixture(layer, y, c.moe, softmax_first=False, oai=True)
    return G.add(x, y).named(f"l_out-{il}")


def forward(step: Step, w: Weights) -> Tensor:
    """Tokens to logits [n_vocab, n_outputs]."""
    x = common.embed(step, w)
    for il in range(step.config.n_layer):
        x = block(step, w, il, x)
    return common.logits(step, w, x)
