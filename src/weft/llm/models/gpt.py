"""GPT-2, and models of its kind with other positions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from weft import graph as G
from weft.graph import RopeMode
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.models.architecture import Architecture, last
from weft.llm.models.parts import (
    LAYER,
    LAYER_NORMED_HEADS,
    Attention,
    ClampedAttention,
    HeadNorm,
    Mlp,
)
from weft.llm.models.step import Step
from weft.llm.weights import Row, Weights, maybe

__all__ = ["ARCHITECTURES"]

# GPT-2 (Radford et al., 2019): learned positions, LayerNorm, and a feed-forward layer of two
# matrices around GELU.
#
# StarCoder (arXiv 2305.06161) has one key and value head for all query heads.


def configure_gpt2(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets learned positions and no rotation."""
    return replace(c.without_rope(), n_positions=c.n_ctx_train)


_GPT2 = Architecture(RopeMode.NEOX, configure_gpt2, norm=LAYER, feed_forward=Mlp())


# BLOOM (arXiv 2211.05100): GPT-2's blocks with a LayerNorm behind the embedding, and attention
# with linear biases (ALiBi, arXiv 2108.12409) instead of positions.


def configure_bloom(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the slopes of ALiBi from the paper; no key has them."""
    return replace(c.without_rope(), alibi_bias=8.0)


# Jais (arXiv 2308.16149): LayerNorm and biases, ALiBi (arXiv 2108.12409) in place of a rotation, a
# gated feed-forward layer, and scores divided by the size of a head, not by its root.


def configure_jais(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the scale of scores, and that nothing rotates."""
    return replace(c.without_rope(), attn_scale=1.0 / c.head_dim_k)


# MPT (MosaicML, 2023): GPT-2's blocks, mostly without biases; queries, keys and values are
# clamped.
#
# Positions are linear biases (ALiBi, arXiv 2108.12409) if the file has `attention.max_alibi_bias`,
# or learned. Some files norm queries and keys, or divide the output of GELU by scales (AWQ).


def configure_mpt(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Removes the rotation; positions are learned if the file has a table of them."""
    learned = c.n_ctx_train if "position_embd.weight" in keys.file.tensors else 0
    return replace(c.without_rope(), n_positions=learned)


class ScaledMlp(Mlp):
    """An Mlp that divides the input of the last matrix by scales, if the file has them."""

    def rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        """The two matrices and the scales."""
        yield from super().rows(c, il)
        yield maybe(f"blk.{il}.ffn.act.scales", c.n_ff(il))

    def inner(self, w: Weights, inside: Tensor) -> Tensor:
        """Divides the input of the last matrix, [n_ff, n_tokens], by the scales."""
        return G.div(inside, w["ffn.act.scales"]) if "ffn.act.scales" in w else inside


# StarCoder2 (arXiv 2402.19173): LayerNorm, biases everywhere, grouped-query attention with rotary
# embedding, and a feed-forward layer of two matrices around GELU. CodeShell (arXiv 2403.15747) is
# the same.


_STARCODER2 = Architecture(RopeMode.NEOX, norm=LAYER, feed_forward=Mlp())


# Falcon (arXiv 2311.16867): attention with few key/value heads and a feed-forward layer side by
# side behind one LayerNorm. In the 40B shape attention has a norm of its own, `attn_norm_2`.


class Falcon(Architecture):
    """Attention and feed-forward layer read the same input; the 40B model norms it for each."""

    def block_rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        yield from super().block_rows(c, il)
        yield from self.norm.rows(f"blk.{il}.attn_norm_2", c.n_embd, optional=True)

    def block(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        layer = w.layer(il)
        normed = self.normed(step, layer, "attn_norm", x)
        own = "attn_norm_2.weight" in layer
        y = self.normed(step, layer, "attn_norm_2", x) if own else normed
        y = self.attention(step, w, il, y)
        x, y, normed = last(step, il, x, y, normed)
        return G.add(G.add(y, self.feed_forward(step, w, il, normed)), x)


# GPT-NeoX (arXiv 2204.06745) and Pythia (arXiv 2304.01373): rotation of a part of each head, and
# attention and feed-forward layer side by side, each behind its own LayerNorm.
#
# `use_parallel_residual` = false puts them one after another, as in GPT-2.


class GptNeox(Architecture):
    """The feed-forward layer has the input of attention, unless the metadata says otherwise."""

    def block(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        layer = w.layer(il)
        y = self.attention(step, w, il, self.normed(step, layer, "attn_norm", x))
        x, y = last(step, il, x, y)
        attended = G.add(x, y)
        read = x if step.config.parallel_residual else attended
        y = self.feed_forward(step, w, il, self.normed(step, layer, "ffn_norm", read))
        return G.add(attended, y)


# StableLM (arXiv 2402.17834): LayerNorm, rotation of a part of each head, a gated feed-forward
# layer.
#
# StableLM 2 12B norms each query and key head, and has no norm in front of the feed-forward layer,
# which reads the normed input of attention.


class StableLm(Architecture):
    """The norm in front of the feed-forward layer is optional."""

    def block_rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        yield from super().block_rows(c, il)
        yield from self.norm.rows(f"blk.{il}.ffn_norm", c.n_embd, optional=True)

    def block(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        layer = w.layer(il)
        normed = self.normed(step, layer, "attn_norm", x)
        y = self.attention(step, w, il, normed)
        x, y, normed = last(step, il, x, y, normed)
        x = G.add(x, y)
        if "ffn_norm.weight" in layer:
            normed = self.normed(step, layer, "ffn_norm", x)
        return G.add(x, self.feed_forward(step, w, il, normed))


ARCHITECTURES = {
    "gpt2": _GPT2,
    "starcoder": _GPT2,
    "bloom": Architecture(
        RopeMode.NEOX,
        configure_bloom,
        norm=LAYER,
        feed_forward=Mlp(),
        embedding_norm="token_embd_norm",
    ),
    "jais": Architecture(RopeMode.NEOX, configure_jais, norm=LAYER),
    "mpt": Architecture(
        RopeMode.NEOX,
        configure_mpt,
        norm=LAYER,
        attention=ClampedAttention(HeadNorm(LAYER, whole=True, optional=True)),
        feed_forward=ScaledMlp(),
    ),
    "codeshell": _STARCODER2,
    "starcoder2": _STARCODER2,
    "falcon": Falcon(RopeMode.NEOX, norm=LAYER, before=("attn_norm", ""), feed_forward=Mlp()),
    "gptneox": GptNeox(RopeMode.NEOX, norm=LAYER, feed_forward=Mlp()),
    "stablelm": StableLm(
        RopeMode.NEOX,
        norm=LAYER,
        before=("attn_norm", ""),
        attention=Attention(LAYER_NORMED_HEADS),
    ),
}
