"""Models in which most layers see only a sliding window, with experts or gates of their own."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from weft import graph as G
from weft.graph import RopeMode
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.config_parts import RopeConfig
from weft.llm.models.architecture import Architecture, last
from weft.llm.models.common import linear
from weft.llm.models.experts import Experts, LimitedHalves, halves_limits, require_experts
from weft.llm.models.parts import (
    EACH_HEAD,
    WHOLE,
    Attention,
    ClampedAttention,
    Gated,
    HeadNorm,
    Norm,
)
from weft.llm.models.step import Step
from weft.llm.weights import Weights

# AFMoE (Arcee Trinity, 2025): norms in front of attention and feed-forward layer and behind them,
# a gate on the results of heads, and shared and routed experts behind the first layers. Three of
# four layers see only a sliding window, and those alone rotate (arXiv 2501.18795).
#
# Laguna (Poolside, 2026) has no norms behind, gates of heads or elements through softplus, and
# rotates everywhere, in layers with a window in another way. The first layer of four sees
# everything.


def configure_afmoe(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets windows, the layers that rotate, and the factor of embeddings."""
    windowed = keys.windowed(4, c.n_layer)
    none = replace(c.rope, n_dims=0)
    return replace(
        c,
        embedding_scale=math.sqrt(c.n_embd),
        windowed=windowed if c.sliding_window else (),
        ropes=tuple(c.rope if w else none for w in windowed),
    )


def configure_laguna(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets windows and rotations, the kind of gate, and a shared expert, which files always
    have."""
    moe = require_experts(c)
    gate = keys.file.tensors.get("blk.0.attn_gate.weight")
    c = replace(
        c,
        gated_heads=gate is not None and gate.ne[1] == c.n_head(),
        moe=replace(moe, n_ff_shared=moe.n_ff_shared or moe.n_ff),
    )
    if not c.sliding_window:
        return c
    windowed = keys.windowed(4, c.n_layer, first=True)
    local = keys.local_rope(c)
    return replace(c, windowed=windowed, ropes=tuple(local if w else c.rope for w in windowed))


_EXPERTS = Experts(shared="added", balanced=True)


# Maple (Deepgrove, 2026): a mixture of experts in every layer, whose gate and up are limited, and
# norms of each head. Only layers with a sliding window rotate.


def configure_maple(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the layers that rotate, and the limit of each layer; 0: there is none."""
    other, none = keys.local_rope(c), replace(c.rope, n_dims=0)
    local = replace(c.rope, n_dims=other.n_dims, freq_base=other.freq_base)
    limits = keys.numbers("swiglu_clamp_exp", c.n_layer, 0.0)
    return replace(
        c,
        ropes=tuple(local if c.is_windowed(il) else none for il in range(c.n_layer)),
        activation=tuple((limit,) for limit in limits),
    )


class LimitedGate(Experts):
    """Experts with the limit of their layer: silu(min(gate, limit)) * clamp(up)."""

    def __call__(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        (limit,) = step.config.activation[il]
        act = partial(G.swiglu_clamp, limit=limit) if limit > 0 else G.swiglu
        return Experts(None, act=act)(step, w, il, x)


# MiMo-V2 (arXiv 2601.02780): five of six layers have a sliding window, another number of key
# heads, a rotation with a base of its own, and attention sinks; values are scaled. Behind the
# first layer are experts, chosen by sigmoids and a learned bias.


def configure_mimo2(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets windows, rotations and the scale of values, and what no key has: the layers without
    experts, by their tensors, and that weights are sigmoids."""
    tensors, local = keys.file.tensors, keys.local_rope(c)
    dense = (il for il in range(c.n_layer) if f"blk.{il}.ffn_gate_inp.weight" not in tensors)
    return replace(
        c,
        ropes=tuple(local if c.is_windowed(il) else c.rope for il in range(c.n_layer)),
        value_scale=keys.number("attention.value_scale", 0.0),
        moe=replace(require_experts(c), sigmoid=True, dense=tuple(dense)),
    )


class ScaledValues(Attention):
    """Attention whose values are scaled."""

    def output(self, step: Step, w: Weights, y: Tensor) -> Tensor:
        scale = step.config.value_scale
        return super().output(step, w, G.scale(y, scale) if scale else y)


# SmallThinker (arXiv 2507.20984): the router reads the input of the block, in front of attention
# and its norm, so that experts can be fetched meanwhile. Experts have ReLU gates. Three of four
# layers see only a sliding window, and those alone rotate.


_RELU_EXPERTS = Experts(dense=None, act=G.reglu)


def configure_smallthinker(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets windows and the layers that rotate; without a window all do."""
    if not c.sliding_window:
        return c
    windowed = keys.windowed(4, c.n_layer, first=True)
    local = replace(c.rope, freq_base=keys.local_rope(c).freq_base)
    none = replace(c.rope, n_dims=0)
    return replace(c, windowed=windowed, ropes=tuple(local if w else none for w in windowed))


class Early(Architecture):
    """The router reads the input of the block."""

    def block(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        layer = w.layer(il)
        scores = linear(layer, "ffn_gate_inp", x)
        y = self.attention(step, w, il, self.normed(step, layer, "attn_norm", x))
        x, y, scores = last(step, il, x, y, scores)
        x = G.add(x, y).named(f"ffn_inp-{il}")
        y = self.normed(step, layer, "ffn_norm", x)
        return G.add(x, _RELU_EXPERTS.mixture(layer, y, require_experts(step.config), scores))


# Spark X2.5 (iFlytek, 2026): layers with a sliding window rotate in a way of their own, the
# results of heads have a gate of one number for each head, and the feed-forward layer has GELU.


def configure_spark(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the rotation of each layer, and what gates are of."""
    other = keys.local_rope(c)
    local = replace(c.rope, n_dims=other.n_dims, freq_base=other.freq_base)
    ropes = tuple(local if c.is_windowed(il) else c.rope for il in range(c.n_layer))
    return replace(c, gated_heads=True, ropes=ropes)


# Step 3.5 and 3.7 (StepFun, 2026): three of four layers have a sliding window, another number of
# heads and a rotation of their own; the others rotate half of each head. The results of heads have
# a gate, and experts, chosen by sigmoids and a learned bias, are behind the first layers. In some
# layers the halves of the gated product are limited:
#
#     down(min(silu(gate x), limit) * clamp(up x, -limit, limit))


def configure_step(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets rotations, limits, and that weights are sigmoids where no key says otherwise. Divisors
    of angles are for layers without a window."""
    moe = require_experts(c)
    if c.rope.n_dims % 4:
        raise keys.bad("rope.dimension_count", c.rope.n_dims, "a multiple of 4")
    half = replace(c.rope, n_dims=c.rope.n_dims // 2)
    local = replace(keys.local_rope(c), factored=False)
    stated = f"{c.arch}.expert_gating_func" in keys.file.metadata
    return replace(
        c,
        gated_heads=True,
        ropes=tuple(local if c.is_windowed(il) else half for il in range(c.n_layer)),
        activation=halves_limits(c, keys),
        moe=replace(moe, sigmoid=moe.sigmoid or not stated),
    )


# EXAONE 4.0 (arXiv 2507.11407): norms behind attention and feed-forward layer instead of in front
# of them, and an RMS norm of each query and key head.
#
# In the 32B model three of four layers have a sliding window; the others do not rotate. EXAONE 3
# (arXiv 2408.03541) has LLaMA's blocks. K-EXAONE (arXiv 2601.01739) has the norms in front, and a
# mixture of experts behind the first layers.


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the window, if there is one, in all but every fourth layer, and rotation in these."""
    if not c.sliding_window:
        return c
    windowed = keys.windowed(4, c.n_layer)
    none = replace(c.rope, n_dims=0)
    return replace(c, windowed=windowed, ropes=tuple(c.rope if w else none for w in windowed))


# The OLMo models of the Allen Institute for AI.

# OLMo 2 (arXiv 2501.00656): norms behind attention and feed-forward layer instead of in front of
# them, and queries and keys normed over all heads at once.
#
# OLMo 3 adds a sliding window to three of four layers, whose rotation is never scaled (no YaRN).


def configure_olmo2(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the window, if there is one, in all but every fourth layer."""
    if not c.sliding_window:
        return c
    windowed = keys.windowed(4, c.n_layer)
    local = RopeConfig(c.rope.n_dims, c.rope.freq_base)
    return replace(c, windowed=windowed, ropes=tuple(local if w else c.rope for w in windowed))


# OLMoE (arXiv 2409.02060): a mixture of experts in every layer, whose weights are not scaled to
# sum 1, and queries and keys normed over all heads at once.


def configure_olmoe(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Raises FormatError if the file has no experts."""
    require_experts(c)
    return c


ARCHITECTURES = {
    "afmoe": Architecture(
        RopeMode.NEOX, configure_afmoe, attention=Attention(EACH_HEAD, gate=G.sigmoid),
        feed_forward=_EXPERTS, after=("post_attention_norm", "post_ffw_norm"),
    ),
    "laguna": Architecture(
        RopeMode.NEOX, configure_laguna, attention=Attention(EACH_HEAD, gate=G.softplus),
        feed_forward=_EXPERTS,
    ),
    "maple": Architecture(
        RopeMode.NEOX, configure_maple, attention=Attention(EACH_HEAD),
        feed_forward=LimitedGate(None),
    ),
    "mimo2": Architecture(
        RopeMode.NEOX, configure_mimo2, attention=ScaledValues(sinks="some"),
        feed_forward=Experts(balanced=True),
    ),
    "smallthinker": Early(RopeMode.NEOX, configure_smallthinker, feed_forward=_RELU_EXPERTS),
    "spark2_5": Architecture(
        RopeMode.NEOX, configure_spark, attention=Attention(gate=G.sigmoid),
        feed_forward=Gated(G.geglu),
    ),
    "step35": Architecture(
        RopeMode.NEOX, configure_step, attention=Attention(HeadNorm(optional=True), gate=G.sigmoid),
        feed_forward=LimitedHalves(shared="added", renormalise=False, balanced=True),
    ),
    "exaone": Architecture(RopeMode.NEOX),
    "exaone4": Architecture(
        RopeMode.NEOX, configure, attention=Attention(EACH_HEAD), before=("", ""),
        after=("post_attention_norm", "post_ffw_norm"),
    ),
    "exaone-moe": Architecture(
        RopeMode.NEOX, configure, attention=Attention(EACH_HEAD),
        feed_forward=Experts(shared="added", renormalise=False, balanced=True),
    ),
    # OLMo (arXiv 2402.00838): LLaMA's blocks with a LayerNorm without learned gains. The 7B models
    # clamp queries, keys and values.
    "olmo": Architecture(
        RopeMode.NORMAL, attention=ClampedAttention(), norm=Norm(centred=True, gains=False),
    ),
    "olmo2": Architecture(
        RopeMode.NEOX, configure_olmo2, attention=Attention(WHOLE), before=("", ""),
        after=("post_attention_norm", "post_ffw_norm"),
    ),
    "olmoe": Architecture(
        RopeMode.NEOX, configure_olmoe, attention=Attention(WHOLE),
        feed_forward=Experts(dense=None, renormalise=False),
    ),
}  # fmt: skip
