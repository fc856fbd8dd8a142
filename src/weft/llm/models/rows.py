"""The rows that most weight tables have: the tensors of the parts in `common.py`. Sizes are ggml's
`ne`, innermost first."""

from __future__ import annotations

from collections.abc import Iterator

from weft.errors import FormatError
from weft.llm.config import ModelConfig, MoeConfig
from weft.llm.weights import Row, maybe, need

__all__ = [
    "attention_rows",
    "expert_rows",
    "feed_forward_rows",
    "fused_feed_forward_rows",
    "layer_norm_rows",
    "layer_normed_model_rows",
    "linear_rows",
    "mlp_rows",
    "model_rows",
    "position_rows",
    "require_experts",
    "shared_expert_rows",
]


def model_rows(c: ModelConfig) -> Iterator[Row]:
    """Tensors outside the layers."""
    yield need("token_embd.weight", c.n_embd, c.n_vocab)
    yield need("output_norm.weight", c.n_embd)
    yield maybe("output.weight", c.n_embd, c.n_vocab)  # absent: the embedding, transposed
    yield maybe("output.bias", c.n_vocab)
    yield maybe("output.scale", 1)
    yield maybe("rope_freqs.weight", c.rope.n_dims // 2)
    yield maybe("rope_factors_long.weight", c.rope.n_dims // 2)
    yield maybe("rope_factors_short.weight", c.rope.n_dims // 2)


def attention_rows(c: ModelConfig, il: int) -> Iterator[Row]:
    """Projections of layer `il`, with optional biases and scales: q, k and v, or one matrix that
    has their rows one after another, and the output's."""
    n_q, n_k, n_v = c.n_head(il) * c.head_dim_k, c.n_embd_k(il), c.n_embd_v(il)
    fused = f"blk.{il}.attn_qkv"
    yield maybe(f"{fused}.weight", c.n_embd, n_q + n_k + n_v)
    yield maybe(f"{fused}.bias", n_q + n_k + n_v)
    yield maybe(f"{fused}.scale", 1)
    for name, n_out in (("q", n_q), ("k", n_k), ("v", n_v)):
        yield from linear_rows(f"blk.{il}.attn_{name}", c.n_embd, n_out, unless=f"{fused}.weight")
    yield from linear_rows(f"blk.{il}.attn_output", c.n_head(il) * c.head_dim_v, c.n_embd)


def feed_forward_rows(c: ModelConfig, il: int) -> Iterator[Row]:
    """The three matrices of a dense gated feed-forward layer."""
    yield from linear_rows(f"blk.{il}.ffn_gate", c.n_embd, c.n_ff(il))
    yield from mlp_rows(c, il)


def fused_feed_forward_rows(c: ModelConfig, il: int) -> Iterator[Row]:
    """A gated feed-forward layer whose gate is the first half of `ffn_up`."""
    yield from linear_rows(f"blk.{il}.ffn_up", c.n_embd, 2 * c.n_ff(il))
    yield from linear_rows(f"blk.{il}.ffn_down", c.n_ff(il), c.n_embd)


def mlp_rows(c: ModelConfig, il: int) -> Iterator[Row]:
    """The two matrices of a feed-forward layer without a gate."""
    yield from linear_rows(f"blk.{il}.ffn_up", c.n_embd, c.n_ff(il))
    yield from linear_rows(f"blk.{il}.ffn_down", c.n_ff(il), c.n_embd)


def layer_norm_rows(name: str, n: int) -> Iterator[Row]:
    """Gain and, optionally, bias of LayerNorm."""
    yield need(f"{name}.weight", n)
    yield maybe(f"{name}.bias", n)


def layer_normed_model_rows(c: ModelConfig) -> Iterator[Row]:
    """Tensors outside the layers, where the last norm is LayerNorm."""
    yield from model_rows(c)
    yield maybe("output_norm.bias", c.n_embd)


def position_rows(c: ModelConfig) -> Iterator[Row]:
    """The table of learned positions, where the file has one."""
    if c.n_positions:
        yield need("position_embd.weight", c.n_embd, c.n_positions)


def expert_rows(c: ModelConfig, moe: MoeConfig, il: int) -> Iterator[Row]:
    """Router and stacked experts of layer `il`, with optional biases."""
    yield need(f"blk.{il}.ffn_gate_inp.weight", c.n_embd, moe.n_expert)
    yield maybe(f"blk.{il}.ffn_gate_inp.bias", moe.n_expert)
    for name, n_in, n_out in (
        ("ffn_gate_exps", c.n_embd, moe.n_ff),
        ("ffn_up_exps", c.n_embd, moe.n_ff),
        ("ffn_down_exps", moe.n_ff, c.n_embd),
    ):
        yield need(f"blk.{il}.{name}.weight", n_in, n_out, moe.n_expert)
        yield maybe(f"blk.{il}.{name}.bias", n_out, moe.n_expert)
        yield maybe(f"blk.{il}.{name}.scale", moe.n_expert)


def shared_expert_rows(c: ModelConfig, n_ff: int, il: int) -> Iterator[Row]:
    """The three matrices, `n_ff` wide inside, that every token goes through besides its experts."""
    yield from linear_rows(f"blk.{il}.ffn_gate_shexp", c.n_embd, n_ff)
    yield from linear_rows(f"blk.{il}.ffn_up_shexp", c.n_embd, n_ff)
    yield from linear_rows(f"blk.{il}.ffn_down_shexp", n_ff, c.n_embd)


def require_experts(c: ModelConfig) -> MoeConfig:
    """The mixture of experts; raises FormatError naming the key that a file without one lacks."""
    if c.moe is None:
        raise FormatError(f"metadata key {c.arch}.expert_count is missing; convert the model again")
    return c.moe


def linear_rows(name: str, n_in: int, n_out: int, *, unless: str = "") -> Iterator[Row]:
    """A matrix with optional bias and scale; `unless` as in `need`."""
    yield need(f"{name}.weight", n_in, n_out, unless=unless)
    yield maybe(f"{name}.bias", n_out)
    yield maybe(f"{name}.scale", 1)
