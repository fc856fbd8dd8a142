"""Mixtures of experts in LLaMA's blocks, and the dense models of the same makers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from weft import graph as G
from weft.errors import FormatError
from weft.graph import RopeMode
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.config_parts import RecurrentConfig, Temperature
from weft.llm.models import common
from weft.llm.models.architecture import Architecture, last
from weft.llm.models.common import linear
from weft.llm.models.experts import Experts, require_experts
from weft.llm.models.parts import (
    EACH_HEAD,
    RMS,
    WHOLE,
    Attention,
    ClampedAttention,
    FusedGated,
    Gated,
    HeadNorm,
    Norm,
    linear_rows,
)
from weft.llm.models.step import Step, kept_state, recurs, require_recurrent
from weft.llm.weights import Row, Weights, maybe

# Arctic (Snowflake, 2024): beside attention and a small dense feed-forward layer, as wide as the
# model, a mixture of experts reads the input of the block.
#
#     h = x + attention(norm(x));  h + dense(norm(h)) + experts(norm(x))


_DENSE = Gated()


class Arctic(Architecture):
    """A block with a dense layer and experts."""

    def block_rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        yield from super().block_rows(c, il)
        yield from self.norm.rows(f"blk.{il}.ffn_norm_exps", c.n_embd)
        yield from _DENSE.sized_rows(c, il, c.n_embd)

    def block(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        layer = w.layer(il)
        y = self.attention(step, w, il, self.normed(step, layer, "attn_norm", x))
        x, y = last(step, il, x, y)
        h = G.add(x, y).named(f"ffn_inp-{il}")
        h = G.add(h, _DENSE(step, w, il, self.normed(step, layer, "ffn_norm", h)))
        return G.add(
            h, self.feed_forward(step, w, il, self.normed(step, layer, "ffn_norm_exps", x))
        )


# ERNIE 4.5 (Baidu, 2025), the dense models: LLaMA's blocks. The weights are trained for a rotation
# of adjacent pairs, so converters do not reorder their rows.
#
# In the mixture of experts, a learned bias takes part in the choice, and shared experts are added.


def configure_ernie(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the width of the shared experts, which files state wrongly for some sizes, and that
    weights are a softmax although there is a bias."""
    moe = require_experts(c)
    n_shared = keys.count("expert_shared_count", 0, least=0)
    return replace(c, moe=replace(moe, sigmoid=False, n_ff_shared=n_shared * moe.n_ff))


# GLM-4 (arXiv 2406.12793): LLaMA's blocks with rotation of a part of each head, and gate and up in
# one matrix (chatglm). The models of 2025 (0414) have RMS norms behind attention and feed-forward
# layer as well.
#
# GLM-4.5 (arXiv 2508.06471) has a mixture of experts behind the first layers; its large model
# norms each query and key head.


_CHAT = Architecture(RopeMode.NORMAL, feed_forward=FusedGated())


# Hunyuan (arXiv 2411.02265, and Tencent, 2025): LLaMA's blocks with an RMS norm of each query and
# key head behind the rotation; the mixture of experts of A13B has a shared expert. Hy 3 (hy_v3,
# Tencent, 2026) norms heads in front of the rotation, and has experts chosen by sigmoids and a
# learned bias behind dense layers. HunyuanOCR (hunyuan_vl, arXiv 2511.19575) is the dense model
# with positions of images. Maincoder (Maincode, 2025) is Hunyuan's dense model, with pairs of
# adjacent elements that rotate.


def configure_hunyuan(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets where heads are normed."""
    return replace(c, heads_last=True)


def configure_hunyuan_images(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the base of the rotation, which a factor of the file stretches, as well. The positions
    of an image are described in `Run.framed`."""
    alpha, d = keys.number("rope.scaling.alpha", 0.0), c.head_dim_k
    if not 0 <= alpha <= 1e9:
        raise keys.bad("rope.scaling.alpha", alpha, "a number from 0 to 1e9")
    if alpha and d > 2:
        base = c.rope.freq_base * alpha ** (d / (d - 2))
        c = replace(c, rope=replace(c.rope, freq_base=base))
    return configure_hunyuan(c, keys)


def configure_hunyuan_experts(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the width of the shared expert as well, which is the width of dense layers if not
    stated."""
    moe = require_experts(c)
    moe = replace(moe, n_ff_shared=moe.n_ff_shared or c.n_ff())
    return replace(c, heads_last=True, moe=moe)


def configure_hunyuan_v3(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets what no key has: that weights are sigmoids, and the width of the shared expert if it is
    not stated."""
    moe = require_experts(c)
    sigmoid = moe.sigmoid or f"{c.arch}.expert_gating_func" not in keys.file.metadata
    n_shared = moe.n_ff_shared or moe.n_ff
    return replace(c, moe=replace(moe, sigmoid=sigmoid, n_ff_shared=n_shared))


class BareBias(Experts):
    """A mixture whose files call the bias `exp_probs_b`, without `.bias`."""

    def rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        yield from super().rows(c, il)
        if not require_experts(c).is_dense(il):
            yield maybe(f"blk.{il}.exp_probs_b", require_experts(c).n_expert)


# GroveMoE (arXiv 2508.07785): Qwen3's mixture, where experts share small ones in groups. A small
# expert is weighed as the experts of its group that are chosen, and added with a factor.


def configure_grove(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the small experts."""
    moe, n = require_experts(c), keys.count("experts_per_group")
    if moe.n_expert % n:
        raise keys.bad("experts_per_group", n, f"a divisor of {moe.n_expert} experts")
    return replace(
        c,
        moe=replace(
            moe,
            n_ff_small=keys.count("expert_chunk_feed_forward_length", c.head_dim_k),
            n_sharing=n,
            small_scale=keys.number("expert_group_scale", 0.05),
        ),
    )


# MiniMax-01 (arXiv 2501.08313): seven of eight layers are lightning attention (arXiv 2401.04658),
# whose state forgets at a rate of its head and layer; the others are attention. What is added to
# the results of both and of experts is the norm's output, times a constant.
#
#     q, k, v = silu(qkv u)          state = exp(-rate) state + k v^T         y = q state
#     out(norm(y) sigmoid(gate u))   rate = 2^(-8 h / heads) (1 - layer / (layers - 1) + 1e-5)


def configure_lightning(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the layers that are recurrent, and the sizes of their states."""
    every = keys.count("full_attention_interval", 8)
    usual = tuple((il + 1) % every != 0 for il in range(c.n_layer))
    layers = keys.flags("attention.recurrent_layers", c.n_layer) or usual
    d, n_head = c.head_dim_k, c.heads[0]
    if set(c.heads) != {n_head} or not n_head:
        raise keys.bad("attention.head_count", n_head, "the same for all layers, above 0")
    recurrent = RecurrentConfig(
        layers=layers, d_conv=1, n_channels=d * n_head, d_state=d, n_head=n_head, head_dim=d
    )
    heads_kv = tuple(0 if it else n for it, n in zip(layers, c.heads_kv, strict=True))
    return replace(c, recurrent=recurrent, heads_kv=heads_kv)


class LightningOrAttention(Attention):
    """Lightning attention, or attention if the layer is not recurrent."""

    def rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        if not recurs(c, il):
            yield from super().rows(c, il)
            return
        n, b = require_recurrent(c).d_inner, f"blk.{il}"
        yield from linear_rows(f"{b}.attn_qkv", c.n_embd, 3 * n)
        yield from linear_rows(f"{b}.attn_gate", c.n_embd, n)
        yield from RMS.rows(f"{b}.attn_norm_2", n)
        yield from linear_rows(f"{b}.attn_output", n, c.n_embd)

    def __call__(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        if not recurs(step.config, il):
            return super().__call__(step, w, il, x)
        c, r, layer, n_tokens = step.config, require_recurrent(step.config), w.layer(il), x.ne[1]
        assert step.slots is not None and step.cache.states is not None
        d, table = r.head_dim, step.cache.states.state[il]
        qkv = G.silu(linear(layer, "attn_qkv", x))
        q, k, v = (common.heads(qkv, d, r.n_head, 3 * d, i * d) for i in range(3))
        slow = 1 - il / max(c.n_layer - 1, 1) + 1e-5
        kept = [math.exp(-(2 ** (-8 * (h + 1) / r.n_head)) * slow) for h in range(r.n_head)]
        g = G.repeat(G.reshape(G.constant(kept), 1, r.n_head), (d, r.n_head, n_tokens, 1))
        state = G.get_rows(table, step.slots[0])
        both = G.gated_linear_attn(k, v, q, g, state, scale=1.0)
        y = kept_state(step, il, both)
        y = G.mul(G.sigmoid(linear(layer, "attn_gate", x)), RMS(c, layer, "attn_norm_2", y))
        return linear(layer, "attn_output", y)


class NormedResidual(Architecture):
    """A block that adds the outputs of norms, times a constant, instead of its input."""

    def block(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        layer, scale = w.layer(il), step.config.residual_scale
        x = self.normed(step, layer, "attn_norm", x)
        x, y = last(step, il, x, self.attention(step, w, il, x))
        x = G.add(y, G.scale(x, scale)).named(f"ffn_inp-{il}")
        x = self.normed(step, layer, "ffn_norm", x)
        return G.add(self.feed_forward(step, w, il, x), G.scale(x, scale))


# gpt-oss (OpenAI, "gpt-oss-120b & gpt-oss-20b model card", arXiv 2508.10925).
#
# It has a mixture of experts in every layer, attention sinks (one learned logit per head that
# counts only in the denominator of the softmax), biases everywhere, and a sliding window in every
# second layer, beginning with the first. YaRN mixes between pairs that are not rounded to whole
# ones, unless `rope.scaling.yarn_truncate` is true.


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets a sliding window in every second layer, beginning with the first."""
    return replace(c, windowed=keys.windowed(2, c.n_layer))


class GptOss(Architecture):
    """Every file has experts and a sliding window."""

    def outer_rows(self, c: ModelConfig) -> Iterator[Row]:
        """Tensors outside the layers. Raises FormatError if the metadata has no experts or no
        sliding window."""
        if c.moe is None or c.sliding_window == 0:
            missing = "attention.sliding_window" if c.moe else "expert_count"
            raise FormatError(
                f"metadata key {c.arch}.{missing} is missing; convert the model again"
            )
        return super().outer_rows(c)


# LLaMA 4 (Meta, 2025): every fourth layer does not rotate and sees everything (arXiv 2501.18795),
# its late queries are sharpened; the others see the chunk of positions that they are in, and norm
# queries and keys behind the rotation. Experts weigh their input, and one more expert is always
# used.
#
# Files do not state the lengths of chunks and of the spans of temperatures.

_SPAN = 8192
_UNNORMED = 128
"""Number of experts of Maverick, whose heads have no norm."""


def configure_llama4(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets chunks, rotations, temperatures, and the experts. A window of 0 means no chunks, and
    that all layers rotate unless `attention.rope_pattern` says which."""
    moe = require_experts(c)
    moe = replace(moe, sigmoid=True, n_ff_shared=moe.n_ff)
    c = replace(c, moe=moe, heads_last=moe.n_expert != _UNNORMED)
    window = keys.count("attention.sliding_window", _SPAN, least=0)
    windowed = keys.windowed(4, c.n_layer) if window else ()
    rotates = keys.flags("attention.rope_pattern", c.n_layer) or windowed
    if not rotates:
        return c
    none = replace(c.rope, n_dims=0)
    return replace(
        c,
        sliding_window=window,
        windowed=windowed,
        chunked=window > 0,
        ropes=tuple(c.rope if r else none for r in rotates),
        temperature=Temperature(0.1, _SPAN, offset=1, unrotated=True),
    )


_PLAIN = Attention()


class RotatedNormed(Attention):
    """Attention whose heads are normed in layers that rotate."""

    def __call__(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        if step.config.heads_last and step.config.rope_of(il).n_dims:
            return super().__call__(step, w, il, x)
        return _PLAIN(step, w, il, x)


ARCHITECTURES = {
    "arctic": Arctic(RopeMode.NORMAL, feed_forward=Experts(dense=None)),
    # DBRX (Databricks, 2024): a mixture of experts in every layer, LayerNorm without biases,
    # clamped queries, keys and values.
    "dbrx": Architecture(
        RopeMode.NEOX, norm=Norm(centred=True), before=("attn_norm", "attn_output_norm"),
        attention=ClampedAttention(), feed_forward=Experts(dense=None),
    ),
    "ernie4_5": Architecture(RopeMode.NORMAL),
    "ernie4_5-moe": Architecture(
        RopeMode.NORMAL, configure_ernie, feed_forward=Experts(shared="added", balanced=True),
    ),
    # PaddleOCR-VL (arXiv 2510.14528): ERNIE 4.5, with positions of images as in Qwen2-VL.
    "paddleocr": Architecture(RopeMode.NEOX),
    "chatglm": _CHAT,
    "glm4": replace(_CHAT, after=("post_attention_norm", "post_ffw_norm")),
    "glm4moe": Architecture(
        RopeMode.NEOX, before=("attn_norm", "post_attention_norm"),
        attention=Attention(HeadNorm(optional=True)),
        feed_forward=Experts(shared="added", renormalise=False, balanced=True),
    ),
    "hunyuan-dense": Architecture(RopeMode.NEOX, configure_hunyuan, attention=Attention(EACH_HEAD)),
    "hunyuan-moe": Architecture(
        RopeMode.NEOX, configure_hunyuan_experts, attention=Attention(EACH_HEAD),
        feed_forward=Experts(dense=None, shared="added"),
    ),
    "hunyuan_vl": Architecture(
        RopeMode.NEOX, configure_hunyuan_images, attention=Attention(EACH_HEAD)
    ),
    "hy_v3": Architecture(
        RopeMode.NEOX, configure_hunyuan_v3, attention=Attention(EACH_HEAD),
        feed_forward=BareBias(shared="added", renormalise=False),
    ),
    "maincoder": Architecture(RopeMode.NORMAL, configure_hunyuan, attention=Attention(EACH_HEAD)),
    # MiniMax-M2 (MiniMax, 2025): a mixture of experts in every layer, chosen by sigmoids and a
    # learned bias, rotation of a part of each head, and queries and keys normed over all heads at
    # once.
    "minimax-m2": Architecture(
        RopeMode.NEOX, attention=Attention(WHOLE), feed_forward=Experts(dense=None, balanced=True),
    ),
    "minimax-01": NormedResidual(
        RopeMode.NEOX, configure_lightning, attention=LightningOrAttention(),
        feed_forward=Experts(dense=None),
    ),
    "grovemoe": Architecture(
        RopeMode.NEOX, configure_grove, attention=Attention(EACH_HEAD),
        feed_forward=Experts(dense=None),
    ),
    "gpt-oss": GptOss(
        RopeMode.NEOX, configure, before=("attn_norm", "post_attention_norm"),
        attention=Attention(sinks=True),
        feed_forward=Experts(dense=None, softmax_first=False, oai=True),
    ),
    "llama4": Architecture(
        RopeMode.NORMAL, configure_llama4, attention=RotatedNormed(HeadNorm(Norm(gains=False))),
        feed_forward=Experts(shared="added", renormalise=False, weigh_inputs=True),
    ),
}  # fmt: skip
