"""Mamba (arXiv 2312.00752) and Mamba-2 (arXiv 2405.21060): selective state-space models. A layer is
a norm and a mixer; there is neither attention nor a feed-forward layer.

    x, z = in(u)
    x = silu(conv(x))
    y = scan(x; dt, A, B, C) + D x           state = exp(dt A) state + dt B x,  y = C state
    out(y * silu(z))

In Mamba, A has d_state numbers for each inner dimension, and dt, B and C are computed from x. In
Mamba-2, A is one number per head, dt, B and C are outputs of `in` (B and C pass the convolution
too), and an RMS norm over groups follows the gated y. FalconMamba norms dt, B and C."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from weft import graph as G
from weft.graph import RopeMode
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.config_parts import RecurrentConfig
from weft.llm.models.architecture import Architecture, last
from weft.llm.models.common import linear, norm
from weft.llm.models.experts import Experts
from weft.llm.models.parts import EACH_HEAD, Attention, linear_rows
from weft.llm.models.step import Step, convolve, recurs, require_recurrent, scan
from weft.llm.weights import Row, Weights, maybe, need

_FALCON_EPS = 1e-6
"""Epsilon of FalconMamba's norms without gains; files do not state it."""


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the sizes of Mamba."""
    return _recurrent(c, sizes(keys, (True,) * c.n_layer))


def sizes(keys: Keys, layers: tuple[bool, ...]) -> RecurrentConfig:
    """The sizes of Mamba in these layers; each inner dimension is a head."""
    d_inner = keys.count("ssm.inner_size")
    return RecurrentConfig(
        layers=layers,
        d_conv=keys.count("ssm.conv_kernel", least=2),
        n_channels=d_inner,
        d_state=keys.count("ssm.state_size"),
        n_head=d_inner,
        head_dim=1,
        dt_rank=keys.count("ssm.time_step_rank"),
        norm_dt=keys.flag("ssm.dt_b_c_rms", False),
    )


def configure2(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the sizes of Mamba-2."""
    return _recurrent(c, sizes2(keys, (True,) * c.n_layer))


def sizes2(keys: Keys, layers: tuple[bool, ...]) -> RecurrentConfig:
    """The sizes of Mamba-2 in these layers; `time_step_rank` is the number of heads."""
    d_inner, d_state = keys.count("ssm.inner_size"), keys.count("ssm.state_size")
    n_head, n_group = keys.count("ssm.time_step_rank"), keys.count("ssm.group_count")
    if d_inner % n_head:
        raise keys.bad("ssm.time_step_rank", n_head, f"a divisor of ssm.inner_size {d_inner}")
    if n_head % n_group or d_inner % n_group:
        raise keys.bad("ssm.group_count", n_group, f"a divisor of {n_head} heads")
    return RecurrentConfig(
        layers=layers,
        d_conv=keys.count("ssm.conv_kernel", least=2),
        n_channels=d_inner + 2 * n_group * d_state,
        d_state=d_state,
        n_head=n_head,
        head_dim=d_inner // n_head,
        n_group=n_group,
        time_steps=(
            keys.number("ssm.time_step_min", 0.0),
            keys.number("ssm.time_step_max", 0.0) or math.inf,
        ),
    )


def _recurrent(c: ModelConfig, r: RecurrentConfig) -> ModelConfig:
    none = (0,) * c.n_layer
    return replace(c.without_rope(), heads=none, heads_kv=none, recurrent=r)


def part(x: Tensor, n: int, start: int) -> Tensor:
    """The rows start .. start + n - 1 of x, made contiguous: [n, n_tokens]."""
    return G.cont(G.view_2d(x, n, x.ne[1], x.nb[1], start * x.dtype.bytes))


def convolved(step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
    """Computes silu(conv(x)) for x [n_channels, n_tokens]."""
    x = convolve(step, il, x, w["ssm_conv1d.weight"])
    return G.silu(G.add(x, w["ssm_conv1d.bias"]) if "ssm_conv1d.bias" in w else x)


def mixer(step: Step, w: Weights, il: int, u: Tensor) -> Tensor:
    """Mamba's layer, by the weights `w` of layer `il`."""
    c, r = step.config, require_recurrent(step.config)
    xz = linear(w, "ssm_in", u)
    x, z = part(xz, r.d_inner, 0), part(xz, r.d_inner, r.d_inner)
    x = convolved(step, w, il, x)
    dbc = linear(w, "ssm_x", x)
    normed = r.norm_dt or all(f"ssm_{name}_norm.weight" in w for name in ("dt", "b", "c"))
    parts, at = [], 0
    for name, n in (("dt", r.dt_rank), ("b", r.d_state), ("c", r.d_state)):
        t = part(dbc, n, at)
        at += n
        if normed:
            gain = w.get(f"ssm_{name}_norm.weight")
            t = G.rms_norm(t, _FALCON_EPS if r.norm_dt else c.rms_eps)
            t = t if gain is None else G.mul(t, gain)
        parts.append(t)
    dt, b, cc = parts
    dt = linear(w, "ssm_dt", dt)
    b, cc = (G.reshape(t, r.d_state, 1, t.ne[1]) for t in (b, cc))
    y = scan(step, il, x, dt, w["ssm_a"], b, cc)
    y = G.add(y, G.mul(x, w["ssm_d"]))
    return linear(w, "ssm_out", G.swiglu(z, y))


def mixer2(step: Step, w: Weights, il: int, u: Tensor) -> Tensor:
    """Mamba-2's layer, by the weights `w` of layer `il`."""
    r, n_tokens = require_recurrent(step.config), u.ne[1]
    zxbcdt = linear(w, "ssm_in", u)
    z = part(zxbcdt, r.d_inner, 0)
    xbc = convolved(step, w, il, part(zxbcdt, r.n_channels, r.d_inner))
    dt = G.add(part(zxbcdt, r.n_head, r.d_inner + r.n_channels), w["ssm_dt.bias"])
    if r.time_steps != (0.0, math.inf):  # bounds behind softplus, which the scan computes
        low, high = (t + math.log(-math.expm1(-t)) if t else -math.inf for t in r.time_steps)
        dt = G.clamp(dt, low, high)
    x, n_bc = part(xbc, r.d_inner, 0), r.n_group * r.d_state
    b, c = (
        G.reshape(part(xbc, n_bc, r.d_inner + at), r.d_state, r.n_group, n_tokens)
        for at in (0, n_bc)
    )
    y = scan(step, il, x, dt, w["ssm_a"], b, c)
    heads = (r.head_dim, r.n_head, n_tokens)
    y = G.add(G.reshape(y, *heads), G.mul(G.reshape(x, *heads), w["ssm_d"]))
    y = y.named(f"mamba2_y_add_d-{il}")
    y = G.swiglu(z, G.reshape(y, r.d_inner, n_tokens))
    if "ssm_norm.weight" in w:
        y = G.reshape(y, r.d_inner // r.n_group, r.n_group, n_tokens)
        y = G.reshape(norm(w, "ssm_norm", y, step.config.rms_eps), r.d_inner, n_tokens)
    return linear(w, "ssm_out", y)


class Mixer:
    """The mixer of a block, Mamba's or Mamba-2's."""

    def rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        """The projections, the convolution and the weights of the scan."""
        r = require_recurrent(c)
        b = f"blk.{il}"
        yield need(f"{b}.ssm_conv1d.weight", r.d_conv, r.n_channels)
        yield maybe(f"{b}.ssm_conv1d.bias", r.n_channels)
        yield from linear_rows(f"{b}.ssm_out", r.d_inner, c.n_embd)
        if r.dt_rank:
            yield from linear_rows(f"{b}.ssm_in", c.n_embd, 2 * r.d_inner)
            yield from linear_rows(f"{b}.ssm_x", r.d_inner, r.dt_rank + 2 * r.d_state)
            yield from linear_rows(f"{b}.ssm_dt", r.dt_rank, r.d_inner)
            yield need(f"{b}.ssm_a", r.d_state, r.d_inner)
            yield need(f"{b}.ssm_d", r.d_inner)
            for name, n in (("dt", r.dt_rank), ("b", r.d_state), ("c", r.d_state)):
                yield maybe(f"{b}.ssm_{name}_norm.weight", n)
        else:
            n_in = r.d_inner + r.n_channels + r.n_head
            yield from linear_rows(f"{b}.ssm_in", c.n_embd, n_in)
            yield need(f"{b}.ssm_dt.bias", r.n_head)
            yield need(f"{b}.ssm_a", 1, r.n_head)
            yield need(f"{b}.ssm_d", 1, r.n_head)
            yield maybe(f"{b}.ssm_norm.weight", r.d_inner // r.n_group, r.n_group)

    def __call__(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        """The mixer, from x [n_embd, n_tokens] to the same sizes."""
        mix = mixer if require_recurrent(step.config).dt_rank else mixer2
        return mix(step, w.layer(il), il, x)


class Mamba(Architecture):
    """A block is a norm and a mixer."""

    def block_rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        yield from self.norm.rows(f"blk.{il}.attn_norm", c.n_embd)
        yield from self.attention.rows(c, il)

    def block(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        y = self.attention(step, w, il, self.normed(step, w.layer(il), "attn_norm", x))
        return G.add(*last(step, il, x, y))


# LFM2 (Liquid AI, arXiv 2511.23404): layers without key/value heads are gated short convolutions;
# the others are attention with an RMS norm of each query and key head. A gated feed-forward layer
# follows both, which may be a mixture of experts (lfm2moe).
#
#     b, c, x = in(u)
#     out(c * conv(b * x))


def configure_lfm2(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the layers that are convolutions."""
    r = RecurrentConfig(
        layers=tuple(n == 0 for n in c.heads_kv),
        d_conv=keys.count("shortconv.l_cache", least=2),
        n_channels=c.n_embd,
    )
    return replace(c, recurrent=r)


class ConvolutionOrAttention(Attention):
    """A gated short convolution, or attention if the layer has key/value heads."""

    def rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        if not recurs(c, il):
            yield from super().rows(c, il)
            return
        r = require_recurrent(c)
        yield from linear_rows(f"blk.{il}.shortconv.in_proj", c.n_embd, 3 * c.n_embd)
        yield need(f"blk.{il}.shortconv.conv.weight", r.d_conv, c.n_embd)
        yield maybe(f"blk.{il}.shortconv.conv.bias", c.n_embd)
        yield from linear_rows(f"blk.{il}.shortconv.out_proj", c.n_embd, c.n_embd)

    def __call__(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        if not recurs(step.config, il):
            return super().__call__(step, w, il, x)
        layer, n = w.layer(il), step.config.n_embd
        bcx = linear(layer, "shortconv.in_proj", x)
        b, c, inner = (
            G.cont(G.view_2d(bcx, n, bcx.ne[1], bcx.nb[1], i * n * bcx.dtype.bytes))
            for i in range(3)
        )
        y = convolve(step, il, G.mul(b, inner), layer["shortconv.conv.weight"])
        if "shortconv.conv.bias" in layer:
            y = G.add(y, layer["shortconv.conv.bias"])
        return linear(layer, "shortconv.out_proj", G.mul(c, y))


_LFM2 = Architecture(
    RopeMode.NEOX,
    configure_lfm2,
    attention=ConvolutionOrAttention(EACH_HEAD),
    feed_forward=Experts(balanced=True),
    last_norm="token_embd_norm",  # the last norm has the name of the embedding's
)


ARCHITECTURES = {
    "mamba": Mamba(RopeMode.NEOX, configure, attention=Mixer()),
    "mamba2": Mamba(RopeMode.NEOX, configure2, attention=Mixer()),
    "lfm2": _LFM2,
    "lfm2moe": _LFM2,
}
