"""Mixtures of experts in LLaMA's blocks, and the dense models of the same makers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from weft import graph as G
from weft.errors import FormatError
from weft.graph import RopeMode
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig, Temperature
from weft.llm.config_keys import Keys
from weft.llm.models.architecture import Architecture, last
from weft.llm.models.experts import Experts, require_experts
from weft.llm.models.parts import (
    EACH_HEAD,
    WHOLE,
    Attention,
    ClampedAttention,
    FusedGated,
    Gated,
    HeadNorm,
    Norm,
)
from weft.llm.models.step import Step
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
