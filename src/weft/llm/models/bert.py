"""BERT (arXiv 1810.04805): an encoder. Tokens see those on both sides, there are no logits, and
norms come behind attention and feed-forward layer, around the residual. Token types are all 0,
"sentence A".

Nomic BERT (arXiv 2402.01613) rotates instead of learning positions, and gates its feed-forward
layer with SiLU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from weft import graph as G
from weft.graph.tensor import Tensor
from weft.llm.config import Keys, ModelConfig
from weft.llm.models import common, rows
from weft.llm.models.common import Step, layer_norm
from weft.llm.weights import Row, Weights, need

__all__ = ["configure", "forward", "table"]


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Positions are learned (nomic-bert needs no `configure`)."""
    return replace(c.without_rope(), n_positions=c.n_ctx_train)


def table(c: ModelConfig) -> Iterator[Row]:
    """The tensors of a file."""
    yield need("token_embd.weight", c.n_embd, c.n_vocab)
    if c.n_token_types:
        yield need("token_types.weight", c.n_embd, c.n_token_types)
    yield from rows.position_rows(c)
    yield from rows.layer_norm_rows("token_embd_norm", c.n_embd)
    for il in range(c.n_layer):
        yield from rows.attention_rows(c, il)
        yield from rows.layer_norm_rows(f"blk.{il}.attn_output_norm", c.n_embd)
        yield from (rows.mlp_rows if is_learned(c) else rows.feed_forward_rows)(c, il)
        yield from rows.layer_norm_rows(f"blk.{il}.layer_output_norm", c.n_embd)


def is_learned(c: ModelConfig) -> bool:
    """Whether this is BERT itself."""
    return c.n_positions > 0


def embed(step: Step, w: Weights) -> Tensor:
    """Embeddings of tokens, of type 0 and of positions, normed: [n_embd, n_tokens]."""
    x = common.embed(step, w)
    if step.config.n_token_types:
        x = G.add(x, G.view_1d(w["token_types.weight"], step.config.n_embd, 0))
    x = common.add_positions(step, w, x)
    return layer_norm(w, "token_embd_norm", x, step.config.norm_eps)


def block(step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
    """One layer. The last one goes on with the wanted tokens only, once the cache is written."""
    eps, layer = step.config.norm_eps, w.layer(il)
    y = common.self_attention(step, w, il, x)
    if il == step.config.n_layer - 1:
        x, y = common.wanted(step, x), common.wanted(step, y)
    x = layer_norm(layer, "attn_output_norm", G.add(x, y), eps)
    y = common.mlp(layer, x) if is_learned(step.config) else common.feed_forward(layer, x)
    return layer_norm(layer, "layer_output_norm", G.add(x, y), eps).named(f"l_out-{il}")


def forward(step: Step, w: Weights) -> Tensor:
    """Tokens to embeddings [n_embd, n_outputs]."""
    x = embed(step, w)
    for il in range(step.config.n_layer):
        x = block(step, w, il, x)
    return x.named("result_norm")
