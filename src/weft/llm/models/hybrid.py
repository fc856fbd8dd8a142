"""Mamba beside attention.

Granite 4 (IBM, 2025): layers are Mamba-2 or attention, mostly without rotation; Granite's factors
and experts. Jamba (arXiv 2403.19887): Mamba or attention without rotation, experts in every second
layer. Falcon-H1 (arXiv 2507.22448): both in every layer, side by side. Nemotron-H (arXiv
2504.03624): a layer is one of Mamba-2, attention without rotation, and a feed-forward layer, which
may be a mixture of experts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from weft import graph as G
from weft.graph import RopeMode
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.config_parts import RecurrentConfig
from weft.llm.models import common
from weft.llm.models.architecture import Architecture, last
from weft.llm.models.common import linear
from weft.llm.models.experts import Experts
from weft.llm.models.llama import Granite, configure_granite
from weft.llm.models.mamba import Mixer, part, sizes, sizes2
from weft.llm.models.parts import (
    EACH_HEAD,
    LAYER,
    Attention,
    FusedGated,
    HeadNorm,
    Mlp,
    Part,
    linear_rows,
    squared_relu,
)
from weft.llm.models.step import Step, convolve, recurs, require_recurrent, scan
from weft.llm.weights import Row, Weights, need


def _layers(c: ModelConfig) -> tuple[bool, ...]:
    """Layers without key/value heads are recurrent."""
    return tuple(n == 0 for n in c.heads_kv)


def configure_granite_hybrid(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the layers that are recurrent, and whether the others rotate."""
    return replace(configure_granite(c, keys), recurrent=sizes2(keys, _layers(c)))


def configure_jamba(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the layers that are recurrent."""
    return replace(c.without_rope(), recurrent=sizes(keys, _layers(c)))


def configure_falcon(c: ModelConfig, keys: Keys) -> ModelConfig:
    """All layers are recurrent and attend."""
    return replace(c, recurrent=sizes2(keys, (True,) * c.n_layer))


class MambaOrAttention(Attention):
    """A mixer of Mamba, or attention if the layer is not recurrent."""

    def rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        return _MIXER.rows(c, il) if recurs(c, il) else super().rows(c, il)

    def __call__(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        if recurs(step.config, il):
            return _MIXER(step, w, il, x)
        return super().__call__(step, w, il, x)


class MambaAndAttention(Attention):
    """The sum of a mixer of Mamba and attention, which read the same input."""

    def rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        yield from super().rows(c, il)
        yield from _MIXER.rows(c, il)

    def __call__(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        return G.add(super().__call__(step, w, il, x), _MIXER(step, w, il, x))


_MIXER = Mixer()


# PLaMo 2 (Preferred Networks, 2025): layers are Mamba or attention, with norms in front and behind.
# A mixer computes B, C and time steps from x, norms them, and has one B and C for all heads:
#
#     z[h], x[h] = in(u)             b, c, dt = norm(bcdt(silu(conv(x))))
#     out(silu(z) (scan(x; dt_proj(dt), A, b, c) + D x))
#
# PLaMo 3 (2025) has attention alone, most of it with a sliding window and a base of its own.

_PLAMO_NORMS = ("post_attention_norm", "post_ffw_norm")


def configure_plamo2(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the layers that are recurrent, and their sizes."""
    n_head, d_inner = keys.count("ssm.time_step_rank"), keys.count("ssm.inner_size")
    if d_inner % n_head:
        raise keys.bad("ssm.time_step_rank", n_head, f"a divisor of ssm.inner_size {d_inner}")
    recurrent = RecurrentConfig(
        layers=_layers(c),
        d_conv=keys.count("ssm.conv_kernel", least=2),
        n_channels=d_inner,
        d_state=keys.count("ssm.state_size"),
        n_head=n_head,
        head_dim=d_inner // n_head,
        dt_rank=max(64, c.n_embd // 16),
    )
    return replace(c, recurrent=recurrent)


def configure_plamo3(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the layers with a window, and the base of their rotation."""
    if not c.sliding_window:
        return c
    windowed = keys.windowed(8, c.n_layer)
    local = replace(c.rope, freq_base=keys.local_rope(c).freq_base)
    return replace(c, windowed=windowed, ropes=tuple(local if w else c.rope for w in windowed))


class PlamoMixer(Attention):
    """PLaMo 2's mixer, or attention if the layer is not recurrent."""

    def rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        if not recurs(c, il):
            yield from super().rows(c, il)
            return
        r, b = require_recurrent(c), f"blk.{il}"
        yield from linear_rows(f"{b}.ssm_in", c.n_embd, 2 * r.d_inner)
        yield need(f"{b}.ssm_conv1d.weight", r.d_conv, r.d_inner)
        yield need(f"{b}.ssm_x.weight", r.d_inner, r.dt_rank + 2 * r.d_state)
        yield from linear_rows(f"{b}.ssm_dt", r.dt_rank, r.n_head)
        for name in ("ssm_a", "ssm_d"):
            yield need(f"{b}.{name}", r.n_head)
        for name, n in (("b", r.d_state), ("c", r.d_state), ("dt", r.dt_rank)):
            yield need(f"{b}.ssm_{name}_norm", n)
        yield from linear_rows(f"{b}.ssm_out", r.d_inner, c.n_embd)

    def __call__(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        if not recurs(step.config, il):
            return super().__call__(step, w, il, x)
        c, r, layer = step.config, require_recurrent(step.config), w.layer(il)
        n_tokens, d = x.ne[1], r.head_dim
        both = linear(layer, "ssm_in", x)
        z, x = (common.heads(both, d, r.n_head, 2 * d, start) for start in (0, d))
        x = convolve(step, il, G.reshape(x, r.d_inner, n_tokens), layer["ssm_conv1d.weight"])
        x = G.silu(x)
        bcdt = G.mul_mat(layer["ssm_x.weight"], x)
        parts, start = [], 0
        for name, n in (("b", r.d_state), ("c", r.d_state), ("dt", r.dt_rank)):
            y = G.rms_norm(part(bcdt, n, start), c.rms_eps)
            parts.append(G.mul(y, layer[f"ssm_{name}_norm"]))
            start += n
        b, cc = (G.reshape(t, r.d_state, 1, n_tokens) for t in parts[:2])
        a = G.reshape(layer["ssm_a"], 1, r.n_head)
        y = scan(step, il, x, linear(layer, "ssm_dt", parts[2]), a, b, cc)
        heads = (d, r.n_head, n_tokens)
        skip = G.mul(G.reshape(x, *heads), G.reshape(layer["ssm_d"], 1, r.n_head))
        y = G.swiglu(z, G.add(G.reshape(y, *heads), skip))
        return linear(layer, "ssm_out", G.reshape(y, r.d_inner, n_tokens))


_PLAMO = Architecture(
    RopeMode.NEOX, after=_PLAMO_NORMS, bare=_PLAMO_NORMS, feed_forward=FusedGated(),
)  # fmt: skip


# Nemotron: dense models, and hybrids of Mamba-2 and attention.
#
# In Nemotron-H (arXiv 2504.03624) a layer is one of Mamba-2, attention without rotation, and a
# feed-forward layer, which may be a mixture of experts.


def configure_nemotron(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Layers without heads and without a width are recurrent."""
    # converters do not write the width of dense layers of models that may have experts
    ups = [keys.file.tensors.get(f"blk.{il}.ffn_up.weight") for il in range(c.n_layer)]
    widths = tuple(n or (up.ne[1] if up else 0) for n, up in zip(c.widths, ups, strict=True))
    layers = tuple(kv == 0 and n == 0 for kv, n in zip(c.heads_kv, widths, strict=True))
    c = replace(
        c.without_rope(),
        widths=widths,
        recurrent=sizes2(keys, layers),
        rms_eps=keys.number("attention.layer_norm_rms_epsilon", c.norm_eps),
    )
    if c.moe is not None:
        n_latent = keys.count("moe_latent_size", 0, least=0)
        c = replace(c, moe=replace(c.moe, sigmoid=True, n_latent=n_latent))
    return c


class OneOfThree(Architecture):
    """A layer is a norm and one part: a mixer, attention, or the feed-forward layer."""

    def block_rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        yield from self.norm.rows(f"blk.{il}.attn_norm", c.n_embd)
        yield from self._part(c, il).rows(c, il)

    def block(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        part = self._part(step.config, il)
        y = part(step, w, il, self.normed(step, w.layer(il), "attn_norm", x))
        return G.add(*last(step, il, x, y))

    def of_next_layer(self) -> Architecture:
        """The layer that drafts attends and has experts, each behind a norm."""
        return Architecture(
            self.rope_mode,
            self.configure,
            attention=self.attention,
            feed_forward=self.feed_forward,
            before=("attn_norm", "post_attention_norm"),
        )

    def _part(self, c: ModelConfig, il: int) -> Part:
        return self.feed_forward if c.n_ff(il) and not c.n_head_kv(il) else self.attention


_NEMOTRON = OneOfThree(
    RopeMode.NEOX,
    configure_nemotron,
    attention=MambaOrAttention(),
    feed_forward=Experts(Mlp(squared_relu), shared="added", balanced=True, plain=squared_relu),
)


ARCHITECTURES = {
    "granitehybrid": Granite(
        RopeMode.NORMAL, configure_granite_hybrid, attention=MambaOrAttention(),
        feed_forward=Experts(shared="added"),
    ),
    "jamba": Architecture(
        RopeMode.NEOX, configure_jamba, attention=MambaOrAttention(),
        feed_forward=Experts(renormalise=False),
    ),
    "falcon-h1": Architecture(
        RopeMode.NEOX, configure_falcon, attention=MambaAndAttention(), bare=("ffn_norm",),
    ),
    # Nemotron-4 (arXiv 2402.16819, Minitron: 2407.14679): LayerNorm, rotation of a part of each
    # head, grouped-query attention, and squared ReLU (arXiv 2109.08668) in the feed-forward layer.
    "nemotron": Architecture(RopeMode.NEOX, norm=LAYER, feed_forward=Mlp(squared_relu)),
    "plamo2": replace(
        _PLAMO, configure=configure_plamo2, attention=PlamoMixer(HeadNorm(own_gains=True)),
    ),
    "plamo3": replace(_PLAMO, configure=configure_plamo3, attention=Attention(EACH_HEAD)),
    "nemotron_h": _NEMOTRON,
    "nemotron_h_moe": _NEMOTRON,
}  # fmt: skip
