"""MPT (MosaicML, 2023): GPT-2's blocks, mostly without biases; queries, keys and values are
clamped.

Positions come from linear biases (ALiBi, arXiv 2108.12409) where `attention.max_alibi_bias` says
so, or are learned. Some files norm queries and keys, or divide what GELU gives (AWQ)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from weft import graph as G
from weft.graph.tensor import Tensor
from weft.llm.config import Keys, ModelConfig
from weft.llm.models import common, rows
from weft.llm.models.common import Step, layer_norm, linear
from weft.llm.weights import Row, Weights, maybe

__all__ = ["configure", "forward", "table"]


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Positions are never rotated; those that have learned them have a table."""
    learned = c.n_ctx_train if "position_embd.weight" in keys.file.tensors else 0
    return replace(c.without_rope(), n_positions=learned)


def table(c: ModelConfig) -> Iterator[Row]:
    """The tensors of a file."""
    yield from rows.layer_normed_model_rows(c)
    yield from rows.position_rows(c)
    for il in range(c.n_layer):
        yield from rows.layer_norm_rows(f"blk.{il}.attn_norm", c.n_embd)
        yield from rows.attention_rows(c, il)
        for name, n in (("q", c.n_head(il) * c.head_dim_k), ("k", c.n_embd_k(il))):
            yield maybe(f"blk.{il}.attn_{name}_norm.weight", n)
            yield maybe(f"blk.{il}.attn_{name}_norm.bias", n)
        yield from rows.layer_norm_rows(f"blk.{il}.ffn_norm", c.n_embd)
        yield maybe(f"blk.{il}.ffn.act.scales", c.n_ff(il))
        yield from rows.mlp_rows(c, il)


def attention(step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
    """Attention over clamped, perhaps normed, queries and keys."""
    c, layer = step.config, w.layer(il)
    q, k, v = common.qkv(step, layer, il, x)
    if c.clamp_qkv > 0:
        q, k, v = (G.clamp(t, -c.clamp_qkv, c.clamp_qkv) for t in (q, k, v))
    q, k = (norm_heads(layer, name, t, c.norm_eps) for name, t in (("q", q), ("k", k)))
    return linear(layer, "attn_output", common.attention(step, il, q, k, v))


def norm_heads(w: Weights, name: str, x: Tensor, eps: float) -> Tensor:
    """LayerNorm of x [d, n_head, n_tokens] over all heads at once, where the file has one."""
    if f"attn_{name}_norm.weight" not in w:
        return x
    d, n_head, n_tokens, _ = x.ne
    flat = G.reshape(x if x.is_contiguous else G.cont(x), d * n_head, n_tokens)
    return G.reshape(layer_norm(w, f"attn_{name}_norm", flat, eps), d, n_head, n_tokens)


def feed_forward(w: Weights, x: Tensor) -> Tensor:
    """down(gelu(up x)), each element of the inside divided by its scale where the file has them."""
    y = G.gelu(linear(w, "ffn_up", x))
    if "ffn.act.scales" in w:
        y = G.div(y, w["ffn.act.scales"])
    return linear(w, "ffn_down", y)


def block(step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
    """One layer. The last one goes on with the wanted tokens only, once the cache is written."""
    eps, layer = step.config.norm_eps, w.layer(il)
    y = attention(step, w, il, layer_norm(layer, "attn_norm", x, eps))
    if il == step.config.n_layer - 1:
        x, y = common.wanted(step, x), common.wanted(step, y)
    x = G.add(x, y)
    y = feed_forward(layer, layer_norm(layer, "ffn_norm", x, eps))
    return G.add(x, y).named(f"l_out-{il}")


def forward(step: Step, w: Weights) -> Tensor:
    """Tokens to logits [n_vocab, n_outputs]."""
    x = common.add_positions(step, w, common.embed(step, w))
    for il in range(step.config.n_layer):
        x = block(step, w, il, x)
    return common.layer_normed_logits(step, w, x)
