"""GPT-2 and models of its kind: LayerNorm, other positions, or parts of a layer side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from weft import graph as G
from weft.graph import RopeMode
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.config_parts import MoeConfig
from weft.llm.models.architecture import Architecture, Configure, last
from weft.llm.models.experts import Experts, require_experts
from weft.llm.models.parts import (
    LAYER,
    LAYER_NORMED_HEADS,
    RMS,
    Attention,
    ClampedAttention,
    FusedGated,
    HeadNorm,
    Mlp,
    Norm,
)
from weft.llm.models.step import Step
from weft.llm.weights import Row, Weights, maybe

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
        yield from super().rows(c, il)
        yield maybe(f"blk.{il}.ffn.act.scales", c.n_ff(il))

    def inner(self, w: Weights, inside: Tensor) -> Tensor:
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
        x = G.add(x, y).named(f"ffn_inp-{il}")
        if "ffn_norm.weight" in layer:
            normed = self.normed(step, layer, "ffn_norm", x)
        return G.add(x, self.feed_forward(step, w, il, normed))


# Command R (Cohere, 2024): attention and a gated feed-forward layer side by side behind one
# LayerNorm without bias; logits are scaled. Command R+ norms each query and key head.
#
# Command R7B and A (cohere2) have no such norms; three of four layers see only a sliding window,
# and those alone rotate (arXiv 2501.18795). North (cohere2moe) has a mixture of experts behind the
# first layers, which rotate as well. PLaMo (Preferred Networks, 2023) has an RMS norm and plain
# logits.


def configure_windows(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the layers of cohere2 that have a window, which are those that rotate."""
    windowed = keys.windowed(4, c.n_layer)
    none = replace(c.rope, n_dims=0)
    return replace(c, windowed=windowed, ropes=tuple(c.rope if w else none for w in windowed))


def configure_experts(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets windows, of which the first layer of four has none, and the layers that rotate. Files
    with an epsilon of RMS norms have such norms: the other epsilon is then 0. Raises FormatError
    for a file without experts."""
    moe = require_experts(c)
    if f"{c.arch}.attention.layer_norm_rms_epsilon" in keys.file.metadata:
        c = replace(c, norm_eps=0.0)
    windowed = keys.windowed(4, c.n_layer, first=True)
    none = replace(c.rope, n_dims=0)
    usual = tuple(w or moe.is_dense(il) for il, w in enumerate(windowed))
    rotates = keys.flags("attention.rope_pattern", c.n_layer) or usual
    return replace(c, windowed=windowed, ropes=tuple(c.rope if r else none for r in rotates))


class CommandR(Architecture):
    """Attention and feed-forward layer read the same normed input; logits are scaled."""

    def block(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        normed = self.normed(step, w.layer(il), "attn_norm", x)
        y = self.attention(step, w, il, normed)
        x, y, normed = last(step, il, x, y, normed)
        return G.add(G.add(self.feed_forward(step, w, il, normed), x), y)

    def logits(self, step: Step, w: Weights, x: Tensor) -> Tensor:
        return G.scale(super().logits(step, w, x), step.config.logit_scale or 1.0)


class North(CommandR):
    """All norms are RMS norms if LayerNorm has no epsilon."""

    def normed(self, step: Step, w: Weights, name: str, x: Tensor) -> Tensor:
        rms = name and step.config.norm_eps == 0.0
        return RMS(step.config, w, name, x) if rms else super().normed(step, w, name, x)


def _command_r(configure: Configure = lambda c, keys: c) -> CommandR:
    return CommandR(
        RopeMode.NORMAL,
        configure,
        norm=LAYER,
        before=("attn_norm", ""),
        attention=Attention(LAYER_NORMED_HEADS),
    )


# The Phi models of Microsoft.

# Phi-2 (Microsoft, 2023; its shape is phi-1.5's, arXiv 2309.05463): attention and feed-forward
# layer side by side behind one LayerNorm, rotation of a part of each head, biases everywhere.


class Parallel(Architecture):
    """Attention and feed-forward layer read the same normed input."""

    def block(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        normed = self.normed(step, w.layer(il), "attn_norm", x)
        y = self.attention(step, w, il, normed)
        x, y, normed = last(step, il, x, y, normed)
        return G.add(G.add(y, self.feed_forward(step, w, il, normed)), x)


# Phi-3 (arXiv 2404.14219): LLaMA's blocks with q, k and v in one matrix, and gate and up in
# another. Long contexts have LongRoPE (arXiv 2402.13753): a factor for each rotated pair.
#
# All layers see only the sliding window, where there is one (models for 4096 tokens).


def configure_phi3(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the window of all layers, where it is shorter than the context of training."""
    return replace(c, windowed=(0 < c.sliding_window < c.n_ctx_train,) * c.n_layer)


# Phi-3.5-MoE (arXiv 2404.14219): Phi-3 with LayerNorm, biases, and two of the experts in every
# layer, by SparseMixer (arXiv 2409.12136): each of the two is weighed by a softmax over those
# scores that are nearly as large as its own, the second without the first.


_NEAR = 0.02
"""Maximum relative distance of a score that is nearly as large, twice the jitter of training."""


def configure_phimoe(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the epsilon of norms, which files store as the epsilon of RMS norms. Raises FormatError
    unless tokens use two experts."""
    if require_experts(c).n_used != 2:
        raise keys.bad("expert_used_count", require_experts(c).n_used, "2")
    return replace(c, norm_eps=c.rms_eps)


class Mixer(Experts):
    """Two experts, weighed by SparseMixer."""

    def weigh(self, scores: Tensor, best: Tensor, moe: MoeConfig) -> Tensor:
        n_tokens = scores.ne[1]
        columns = G.reshape(scores, 1, moe.n_expert, n_tokens)
        two = G.reshape(G.get_rows(columns, best), 2, n_tokens)
        middle = G.mean(two)
        half = G.abs(G.sub(middle, row(two, 0)))  # of the distance between the two
        first, second = G.add(middle, half), G.sub(middle, half)
        others = complement(G.step(G.sub(scores, middle)))
        w1 = self.share(scores, first, near(scores, first))
        w2 = self.share(scores, second, G.mul(near(scores, second), others))
        return G.add(G.mul(G.step(G.sub(two, middle)), G.sub(w1, w2)), w2)

    def share(self, scores: Tensor, largest: Tensor, kept: Tensor) -> Tensor:
        """The softmax of the `largest` score [1, n_tokens] among those that are kept."""
        powers = G.mul(G.exp(G.sub(scores, largest)), kept)
        total = G.sum_rows(powers)
        return G.div(G.fill(total, 1.0), total)


def near(scores: Tensor, largest: Tensor) -> Tensor:
    """1 where a score is nearly as large as `largest` [1, n_tokens], 0 elsewhere."""
    distance = G.scale(G.sub(scores, largest), -1.0)
    size = G.add(G.relu(G.sub(G.abs(scores), largest)), largest)
    return complement(G.step(G.sub(G.div(distance, size), G.fill(size, _NEAR))))


def complement(flags: Tensor) -> Tensor:
    """1 - flags."""
    return G.scale(flags, -1.0, 1.0)


def row(x: Tensor, i: int) -> Tensor:
    """The elements `i` of each row of x [n, n_tokens]: [1, n_tokens]."""
    return G.cont(G.view_2d(x, 1, x.ne[1], x.nb[1], i * x.dtype.bytes))


ARCHITECTURES = {
    "gpt2": _GPT2,
    "starcoder": _GPT2,
    "bloom": Architecture(
        RopeMode.NEOX, configure_bloom, norm=LAYER, feed_forward=Mlp(),
        embedding_norm="token_embd_norm",
    ),
    "jais": Architecture(RopeMode.NEOX, configure_jais, norm=LAYER),
    "mpt": Architecture(
        RopeMode.NEOX, configure_mpt, norm=LAYER,
        attention=ClampedAttention(HeadNorm(LAYER, whole=True, optional=True)),
        feed_forward=ScaledMlp(),
    ),
    "codeshell": _STARCODER2,
    "starcoder2": _STARCODER2,
    "falcon": Falcon(RopeMode.NEOX, norm=LAYER, before=("attn_norm", ""), feed_forward=Mlp()),
    "gptneox": GptNeox(RopeMode.NEOX, norm=LAYER, feed_forward=Mlp()),
    "stablelm": StableLm(
        RopeMode.NEOX, norm=LAYER, before=("attn_norm", ""),
        attention=Attention(LAYER_NORMED_HEADS),
    ),
    "command-r": _command_r(),
    "cohere2": _command_r(configure_windows),
    "cohere2moe": North(
        RopeMode.NORMAL, configure_experts, norm=Norm(centred=True), before=("attn_norm", ""),
        feed_forward=Experts(shared="averaged", renormalise=False),
    ),
    "plamo": CommandR(RopeMode.NEOX, before=("attn_norm", "")),
    "phi2": Parallel(RopeMode.NEOX, norm=LAYER, before=("attn_norm", ""), feed_forward=Mlp()),
    "phi3": Architecture(RopeMode.NEOX, configure_phi3, feed_forward=FusedGated()),
    "phimoe": Architecture(
        RopeMode.NEOX, configure_phimoe, norm=LAYER,
        feed_forward=Mixer(dense=None, softmax_first=False),
    ),
}  # fmt: skip
