"""BitNet b1.58 (arXiv 2402.17764): LLaMA's blocks with ternary matrices, and one more norm in front
of each block's last matrix (SubLN, arXiv 2210.06423). The output is tied to the embedding."""

from __future__ import annotations

from collections.abc import Iterator

from weft import graph as G
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig
from weft.llm.models import common, rows
from weft.llm.models.common import Step, linear, norm
from weft.llm.weights import Row, Weights, need

__all__ = ["forward", "table"]


def table(c: ModelConfig) -> Iterator[Row]:
    """The tensors of a file."""
    yield from rows.model_rows(c)
    for il in range(c.n_layer):
        yield need(f"blk.{il}.attn_norm.weight", c.n_embd)
        yield from rows.attention_rows(c, il)
        yield need(f"blk.{il}.attn_sub_norm.weight", c.n_head(il) * c.head_dim_v)
        yield need(f"blk.{il}.ffn_norm.weight", c.n_embd)
        yield from rows.feed_forward_rows(c, il)
        yield need(f"blk.{il}.ffn_sub_norm.weight", c.n_ff(il))


def attention(step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
    """Attention with a norm before the output matrix."""
    c, layer = step.config, w.layer(il)
    q, k, v = common.qkv(step, layer, il, x)
    q, k = common.rope(step, w, q, il), common.rope(step, w, k, il)
    y = common.attention(step, il, q, k, v)
    return linear(layer, "attn_output", norm(layer, "attn_sub_norm", y, c.rms_eps))


def feed_forward(w: Weights, x: Tensor, eps: float) -> Tensor:
    """down(norm(silu(gate x) * up x))."""
    y = G.swiglu(linear(w, "ffn_gate", x), linear(w, "ffn_up", x))
    return linear(w, "ffn_down", norm(w, "ffn_sub_norm", y, eps))


def block(step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
    """One layer. The last one goes on with the wanted tokens only, once the cache is written."""
    eps, layer = step.config.rms_eps, w.layer(il)
    y = attention(step, w, il, norm(layer, "attn_norm", x, eps))
    if il == step.config.n_layer - 1:
        x, y = common.wanted(step, x), common.wanted(step, y)
    x = G.add(x, y)
    y = feed_forward(layer, norm(layer, "ffn_norm", x, eps), eps)
    return G.add(x, y).named(f"l_out-{il}")


def forward(step: Step, w: Weights) -> Tensor:
    """Tokens to logits [n_vocab, n_outputs]."""
    x = common.embed(step, w)
    for il in range(step.config.n_layer):
        x = block(step, w, il, x)
    return common.logits(step, w, x)
