"""LLaMA's blocks, and models that differ from them in one part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from weft import graph as G
from weft.graph import RopeMode
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.config_parts import Temperature
from weft.llm.models import common
from weft.llm.models.architecture import Architecture, last
from weft.llm.models.common import linear
from weft.llm.models.experts import Experts
from weft.llm.models.parts import (
    EACH_HEAD,
    LAYER,
    RMS,
    Attention,
    Gated,
    HeadNorm,
    Mlp,
    Norm,
    linear_rows,
    squared_relu,
)
from weft.llm.models.step import Step
from weft.llm.weights import Row, Weights, need

# LLaMA (arXiv 2302.13971, 2307.09288, 2407.21783), and models of the same shape: Mistral (arXiv
# 2310.06825), Mixtral (arXiv 2401.04088), TinyLlama and many others. Ministral 3 (mistral3)
# sharpens the scores of late tokens; Orion (arXiv 2401.12246) has LayerNorm; Refact and the large
# Baichuan (arXiv 2309.10305) have ALiBi (arXiv 2108.12409) in place of a rotation.
#
# A block is  x + attention(norm(x)), then  x + feed_forward(norm(x)); the feed-forward layer is
# dense or, when the metadata has `expert_count`, a mixture of experts.


def configure_temperature(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the temperature of Ministral 3, whose spans are as long as the original context."""
    scale = keys.number("attention.temperature_scale", 0.0)
    return replace(c, temperature=Temperature(scale, c.rope.n_ctx_orig) if scale else None)


def configure_alibi(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets biases in place of the rotation; no key has them."""
    return replace(c.without_rope(), alibi_bias=8.0)


def configure_baichuan(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the biases of Baichuan 13B, which is told by its number of layers."""
    return configure_alibi(c, keys) if c.n_layer == 40 else c


_LLAMA = Architecture(RopeMode.NORMAL, feed_forward=Experts())


# SmolLM3 (Hugging Face, 2025): LLaMA's blocks, with no rotary embedding in every fourth layer
# (NoPE, arXiv 2501.18795).


def configure_smollm3(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the layers that rotate: all but every fourth in files of converters."""
    none = replace(c.rope, n_dims=0)
    usual = tuple(il % 4 != 3 for il in range(c.n_layer))
    rotates = keys.flags("attention.rope_pattern", c.n_layer) or usual
    return replace(c, ropes=tuple(c.rope if r else none for r in rotates))


# Apertus (Swiss AI, arXiv 2509.14233): LLaMA's blocks with an RMS norm of each query and key head,
# and a feed-forward layer without a gate. Its activation is xIELU (arXiv 2411.13010) with
# parameters of its own in each layer.


_XIELU = ("alpha_n", "alpha_p", "beta", "eps")


def configure_apertus(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Reads the parameters of the activation."""
    columns = [keys.plain_numbers(f"xielu.{name}", c.n_layer) for name in _XIELU]
    return replace(c, activation=tuple(zip(*columns, strict=True)))


class Xielu(Mlp):
    """down(xielu(up x))."""

    def __call__(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        layer = w.layer(il)
        inside = G.xielu(linear(layer, "ffn_up", x), *step.config.activation[il])
        return linear(layer, "ffn_down", inside)


# BitNet b1.58 (arXiv 2402.17764): LLaMA's blocks with ternary matrices, and one more norm in front
# of each block's last matrix (SubLN, arXiv 2210.06423). The output is tied to the embedding.


class SubNormedAttention(Attention):
    """Attention with a norm in front of the output matrix."""

    def rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        yield from super().rows(c, il)
        yield from RMS.rows(f"blk.{il}.attn_sub_norm", c.n_head(il) * c.head_dim_v)

    def output(self, step: Step, w: Weights, y: Tensor) -> Tensor:
        return super().output(step, w, RMS(step.config, w, "attn_sub_norm", y))


class SubNormedGated(Gated):
    """A gated feed-forward layer with one more norm: down(norm(silu(gate x) * up x))."""

    def rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        yield from super().rows(c, il)
        yield from RMS.rows(f"blk.{il}.ffn_sub_norm", c.n_ff(il))

    def inner(self, step: Step, w: Weights, inside: Tensor) -> Tensor:
        return RMS(step.config, w, "ffn_sub_norm", inside)


# BitNet b1.58 2B4T (arXiv 2504.12285) and other files of bitnet.cpp: squared ReLU in place of SiLU.
_BITNET_2B = Architecture(
    RopeMode.NEOX, attention=SubNormedAttention(),
    feed_forward=SubNormedGated(lambda gate, up: G.mul(squared_relu(gate), up)),
)  # fmt: skip


# DeciLM and Nemotron NAS (arXiv 2411.19146): LLaMA's blocks, of which a search over architectures
# has changed some: fewer key heads, a matrix in place of attention, or nothing; a feed-forward
# layer of another width, or none.


class Deci(Architecture):
    """Layers without heads have no attention, those without key heads a matrix in its place."""

    def block_rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        if c.n_head(il):
            yield from self.norm.rows(f"blk.{il}.attn_norm", c.n_embd)
            if c.n_head_kv(il):
                yield from self.attention.rows(c, il)
            else:
                yield from linear_rows(f"blk.{il}.attn_output", c.n_embd, c.n_embd)
        if c.n_ff(il):
            yield from self.norm.rows(f"blk.{il}.ffn_norm", c.n_embd)
            yield from self.feed_forward.rows(c, il)

    def block(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        c, layer = step.config, w.layer(il)
        if c.n_head(il):
            y = self.normed(step, layer, "attn_norm", x)
            attends = c.n_head_kv(il) > 0
            y = self.attention(step, w, il, y) if attends else linear(layer, "attn_output", y)
            x, y = last(step, il, x, y)
            x = G.add(x, y).named(f"ffn_inp-{il}")
        else:
            (x,) = last(step, il, x)
        if c.n_ff(il):
            y = self.normed(step, layer, "ffn_norm", x)
            x = G.add(x, self.feed_forward(step, w, il, y))
        return x


# Nanbeige 4.2 (Nanbeige, 2026): LLaMA's blocks, all of which run several times one after another,
# with keys and values cached each time and the last norm between the runs.


def configure_nanbeige(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets how often the layers run, and whether a norm is between the runs; a layer of the config
    is one run of a layer."""
    n_runs = keys.count("num_loops", 1, most=1 << 10)
    if c.n_layer * n_runs > 1 << 16:
        raise keys.bad("num_loops", n_runs, f"at most {(1 << 16) // c.n_layer}")
    return replace(
        c,
        n_layer=c.n_layer * n_runs,
        heads=c.heads * n_runs,
        heads_kv=c.heads_kv * n_runs,
        widths=c.widths * n_runs,
        cycles=(c.n_layer, n_runs, 0),
        norm_cycles=not keys.flag("skip_loop_final_norm", False),
    )


class Runs(Architecture):
    """Layers that run several times."""

    def block_rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        """Tensors of a layer, which the file has once for all runs."""
        if il < c.cycles[0]:
            yield from super().block_rows(c, il)

    def forward(self, step: Step, w: Weights) -> Tensor:
        c, w = step.config, for_all_runs(step.config, w)
        x = self.embed(step, w)
        for il in range(c.n_layer):
            x = common.steered(step, il, self.block(step, w, il, x))
            if c.norm_cycles and il < c.n_layer - 1 and (il + 1) % c.cycles[0] == 0:
                x = self.normed(step, w, self.last_norm, x)
        return self.logits(step, w, x)


def for_all_runs(c: ModelConfig, w: Weights) -> Weights:
    """The weights of each run of a layer, the same for all runs."""
    size, _, n_fast = c.cycles
    leaves = {name: w[name] for name in w if not name.startswith("blk.")}
    for il in range(c.n_layer):
        is_slow = n_fast > 0 and il // size % (n_fast + 1) == n_fast
        layer = w.layer(il % size + is_slow * size)
        leaves |= {f"blk.{il}.{name}": layer[name] for name in layer}
    return Weights(leaves, scales=w.scales)


# Granite 3 (IBM, 2024): LLaMA's blocks with four constants: factors of embeddings, of attention
# scores and of the outputs that a layer adds to the residual, and a divisor of logits.
#
# MiniCPM (arXiv 2404.06395) has the same factors.
#
# The mixture of experts (granitemoe) may have a shared expert, whose output is added. The models
# with a sliding window in some layers (granite_swa) have attention sinks; some of their layers do
# not rotate.


def configure_granite(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Scales rows of sounds and images as embeddings, if layers add no parts of them. Removes the
    rotary embedding if `rope.scaling.finetuned` is false."""
    c = replace(c, row_scale=0.0 if c.deepstack else c.embedding_scale)
    if keys.flag("rope.scaling.finetuned", True):
        return c
    return replace(c, rope=replace(c.rope, n_dims=0))


def configure_minicpm(c: ModelConfig, keys: Keys) -> ModelConfig:
    """The same as Granite's, but MiniCPM's rows of images are not scaled."""
    return replace(configure_granite(c, keys), row_scale=0.0)


def configure_granite_windows(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the layers with a window, those that rotate, and whether the gate of shared experts is
    in one matrix with the rest."""
    tensors = keys.file.tensors
    fused = "blk.0.ffn_up_shexp.weight" in tensors and "blk.0.ffn_gate_shexp.weight" not in tensors
    windowed = keys.windowed(4, c.n_layer, first=True)
    rotates = keys.flags("attention.rope_pattern", c.n_layer) or (True,) * c.n_layer
    none = replace(c.rope, n_dims=0)
    ropes = tuple(c.rope if r else none for r in rotates)
    return replace(c, windowed=windowed, ropes=ropes, fused_gate=fused, row_scale=c.embedding_scale)


class Granite(Architecture):
    """Logits are divided by the scale of the metadata."""

    def logits(self, step: Step, w: Weights, x: Tensor) -> Tensor:
        return G.scale(super().logits(step, w, x), 1.0 / (step.config.logit_scale or 1.0))


_GRANITE = Granite(RopeMode.NORMAL, configure_granite, feed_forward=Experts(shared="added"))


# Chameleon (arXiv 2405.09818): LLaMA's blocks with a LayerNorm of each query and key head, whose
# gains are its own; in the large model the norms are behind attention and feed-forward layer. It
# writes text alone here: the scores of image tokens are the least that there are.

_IMAGE_TOKENS = range(4, 8196)


class Chameleon(Architecture):
    """Norms behind the parts if the metadata says so, and no image tokens."""

    def block(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        if not step.config.norms_behind:
            return super().block(step, w, il, x)
        other = Architecture(self.rope_mode, attention=self.attention, before=("", ""),
                             after=self.before)  # fmt: skip
        return other.block(step, w, il, x)

    def logits(self, step: Step, w: Weights, x: Tensor) -> Tensor:
        y, n = super().logits(step, w, x), step.config.n_vocab
        if n <= _IMAGE_TOKENS.stop:
            return y
        front, images, behind = (
            G.cont(G.view_2d(y, stop - start, y.ne[1], y.nb[1], start * y.dtype.bytes))
            for start, stop in pairwise((0, _IMAGE_TOKENS.start, _IMAGE_TOKENS.stop, n))
        )
        return G.concat(G.concat(front, G.fill(images, _LEAST), 0), behind, 0)


_LEAST = -3.4028234663852886e38
"""The least float32."""


def configure_chameleon(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets where the norms are."""
    return replace(c, norms_behind=keys.flag("swin_norm", False))


# CogVLM (arXiv 2311.03079): LLaMA's blocks with a second set of matrices, for the rows of images.

_IMAGE_MATRICES = {"vis_attn_qkv": "attn_qkv", "vis_attn_output": "attn_output",
                   "vis_gate": "ffn_gate", "vis_up": "ffn_up", "vis_down": "ffn_down"}  # fmt: skip


class ImageExperts(Architecture):
    """Rows of images have matrices of their own."""

    def block_rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        yield from super().block_rows(c, il)
        n, n_heads = c.n_ff(il), c.n_head(il) * c.d_v(il)
        sizes = ((c.n_embd, 3 * n_heads), (n_heads, c.n_embd), (c.n_embd, n), (c.n_embd, n),
                 (n, c.n_embd))  # fmt: skip
        for name, size in zip(_IMAGE_MATRICES, sizes, strict=True):
            yield need(f"blk.{il}.{name}.weight", *size)

    def block(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        if step.embd is not None:
            layer = w.layer(il)
            w = w.joined({f"blk.{il}.{text}.weight": layer[f"{image}.weight"]
                          for image, text in _IMAGE_MATRICES.items()}, w.scales)  # fmt: skip
        return super().block(step, w, il, x)


def configure_cogvlm(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the base of the rotation, which files do not state."""
    return replace(c, rope=replace(c.rope, freq_base=10000.0))


# HRM-Text (Sapient, 2026; arXiv 2506.21734): two stacks of layers, a fast and a slow one, that run
# several times each, and cache keys and values each time. Norms have no gains, and the results of
# heads have a gate.
#
#     z_l = fast(z_l + z_h)  some times, then  z_h = slow(z_h + z_l),  and all of it some times
#
# Text is read causally, as transformers does where no token types are given.


def configure_hrm_text(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets how often stacks run; a layer of the config is one run of a layer of a stack."""
    size, n_slow, n_fast = (
        keys.count(f"hrm.{name}", most=1 << 10)
        for name in ("layers_per_stack", "h_cycles", "l_cycles")
    )
    n_runs = size * n_slow * (n_fast + 1)
    if c.n_layer != n_runs:
        raise keys.bad("block_count", c.n_layer, f"{n_runs}, the runs of all layers")
    return replace(c, cycles=(size, n_slow, n_fast))


class Stacks(Architecture):
    """Layers of two stacks, first the layers of the fast one, which run in cycles."""

    def outer_rows(self, c: ModelConfig) -> Iterator[Row]:
        yield from super().outer_rows(c)
        yield need("hrm.z_l_init", c.n_embd)

    def block_rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        """Tensors of a layer, which the file has once for all runs."""
        if il < 2 * c.cycles[0]:
            yield from super().block_rows(c, il)

    def forward(self, step: Step, w: Weights) -> Tensor:
        size, n_slow, n_fast = step.config.cycles
        w = for_all_runs(step.config, w)
        slow, fast, start = self.embed(step, w), w["hrm.z_l_init"], 0
        for _ in range(n_slow):
            for _ in range(n_fast):
                fast = self.stack(step, w, start, G.add(slow, fast))
                start += size
            slow = self.stack(step, w, start, G.add(slow, fast))
            start += size
        return self.logits(step, w, slow)

    def stack(self, step: Step, w: Weights, start: int, x: Tensor) -> Tensor:
        """The runs of a stack's layers from `start` on, and a norm."""
        for il in range(start, start + step.config.cycles[0]):
            x = common.steered(step, il, self.block(step, w, il, x))
        return self.normed(step, w, "stack_norm", x)


ARCHITECTURES = {
    "baichuan": Architecture(RopeMode.NORMAL, configure_baichuan),
    "internlm2": _LLAMA,
    "llama": _LLAMA,
    "mistral3": Architecture(RopeMode.NORMAL, configure_temperature, feed_forward=Experts()),
    "orion": Architecture(RopeMode.NEOX, norm=LAYER),
    "refact": Architecture(RopeMode.NORMAL, configure_alibi, feed_forward=Experts()),
    "xverse": _LLAMA,
    # Arcee (AFM-4.5B, 2025): LLaMA's blocks, with squared ReLU (arXiv 2109.08668) and no gate in
    # the feed-forward layer. Jais 2 (MBZUAI, 2025) has LayerNorm, biases, and rotates halves.
    "arcee": Architecture(RopeMode.NORMAL, feed_forward=Mlp(squared_relu)),
    "jais2": Architecture(RopeMode.NEOX, norm=LAYER, feed_forward=Mlp(squared_relu)),
    # Seed-OSS (ByteDance, 2025): LLaMA's blocks with biases on q, k and v. Files call the norm in
    # front of the feed-forward layer `post_attention_norm`.
    "seed_oss": Architecture(RopeMode.NEOX, before=("attn_norm", "post_attention_norm")),
    "smollm3": Architecture(RopeMode.NORMAL, configure_smollm3, feed_forward=Experts()),
    "apertus": Architecture(
        RopeMode.NEOX, configure_apertus, attention=Attention(EACH_HEAD), feed_forward=Xielu(),
    ),
    "bitnet": Architecture(
        RopeMode.NEOX, attention=SubNormedAttention(), feed_forward=SubNormedGated(),
    ),
    "bitnet-b1.58": _BITNET_2B,
    "bitnet-25": _BITNET_2B,
    "deci": Deci(RopeMode.NORMAL),
    "nanbeige": Runs(RopeMode.NORMAL, configure_nanbeige),
    "granite": _GRANITE,
    "granite_swa": replace(
        _GRANITE, configure=configure_granite_windows, attention=Attention(sinks=True),
    ),
    "granitemoe": _GRANITE,
    "minicpm": replace(_GRANITE, configure=configure_minicpm),
    "chameleon": Chameleon(
        RopeMode.NORMAL, configure_chameleon, attention=Attention(
            HeadNorm(LAYER, own_gains=True),
        ),
    ),
    "cogvlm": ImageExperts(RopeMode.NEOX, configure_cogvlm),
    "hrm_text": Stacks(
        RopeMode.NEOX, configure_hrm_text, norm=Norm(gains=False),
        attention=Attention(gate=G.sigmoid), last_norm="",
    ),
}  # fmt: skip
