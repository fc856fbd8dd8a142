"""Qwen3-Next (2025) and Qwen3.5 (2026): three of four layers are gated delta nets (arXiv
2412.06464), the others attention whose output is gated by a part of the query projection.

    q, k, v = silu(conv(qkv u))                     z = gate u
    state = exp(g) state + beta (v - state k) k^T   y = state q / sqrt(d)
    out(norm(y) silu(z))          g = A softplus(alpha u + dt),  beta = sigmoid(beta u)

Queries and keys have unit length. In Qwen3-Next value heads that share a key head are neighbours;
the files of Qwen3.5 have them in turns, as the op takes them. The feed-forward layer is a mixture
with an expert that every token uses, or dense."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from weft import graph as G
from weft.graph import RopeMode
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig, RecurrentConfig
from weft.llm.config_keys import Keys
from weft.llm.models import common
from weft.llm.models.architecture import Architecture
from weft.llm.models.common import linear
from weft.llm.models.deepseek import LatentAttention, configure_latent
from weft.llm.models.experts import Experts, LimitedHalves, halves_limits
from weft.llm.models.parts import EACH_HEAD, RMS, Attention, gate_heads, linear_rows
from weft.llm.models.step import Step, beside, convolve, delta_rule, recurs, require_recurrent, unit
from weft.llm.weights import Row, Weights, maybe, need
from weft.records import dataclass


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the sizes of delta nets, and which layers are such."""
    d, n_k = keys.count("ssm.state_size"), keys.count("ssm.group_count")
    n_v, d_inner = keys.count("ssm.time_step_rank"), keys.count("ssm.inner_size")
    if d_inner != d * n_v:
        raise keys.bad("ssm.inner_size", d_inner, f"ssm.state_size x ssm.time_step_rank, {d * n_v}")
    if n_v % n_k:
        raise keys.bad("ssm.group_count", n_k, f"a divisor of {n_v} value heads")
    r = RecurrentConfig(
        layers=_layers(c, keys),
        d_conv=keys.count("ssm.conv_kernel", least=2),
        n_channels=2 * d * n_k + d_inner,
        d_state=d,
        n_head=n_v,
        head_dim=d,
        n_group=n_k,
    )
    heads_kv = tuple(0 if it else n for it, n in zip(r.layers, c.heads_kv, strict=True))
    return replace(c, recurrent=r, heads_kv=heads_kv)


def _layers(c: ModelConfig, keys: Keys) -> tuple[bool, ...]:
    full = f"{c.arch}.attention.recurrent_layers"
    if full in keys.file.metadata:
        flags = np.asarray(keys.file.get_array(full))
        if len(flags) >= c.n_layer:
            return tuple(bool(flag) for flag in flags[: c.n_layer])
    every = keys.count("full_attention_interval", 4)
    return tuple((il + 1) % every != 0 for il in range(c.n_layer))


class GatedAttention(Attention):
    """Attention whose query projection has, for each head, the query and a gate of the output."""

    def rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        d, n_head = c.head_dim_k, c.n_head(il)
        yield from linear_rows(f"blk.{il}.attn_q", c.n_embd, 2 * d * n_head)
        yield from linear_rows(f"blk.{il}.attn_k", c.n_embd, c.n_embd_k(il))
        yield from linear_rows(f"blk.{il}.attn_v", c.n_embd, c.n_embd_v(il))
        yield from linear_rows(f"blk.{il}.attn_output", c.head_dim_v * n_head, c.n_embd)
        yield from EACH_HEAD.rows(c, il)

    def __call__(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        c, layer, n_tokens = step.config, w.layer(il), x.ne[1]
        d, n_head, n_kv = c.head_dim_k, c.n_head(il), c.n_head_kv(il)
        both = linear(layer, "attn_q", x)  # [2 d n_head, n_tokens]
        q, gate = (common.heads(both, d, n_head, 2 * d, at) for at in (0, d))
        k = G.reshape(linear(layer, "attn_k", x), d, n_kv, n_tokens)
        v = G.reshape(linear(layer, "attn_v", x), c.head_dim_v, n_kv, n_tokens)
        q, k, v = self.norm_heads(c, layer, q, k, v)
        q, k = common.rope(step, w, q, il), common.rope(step, w, k, il)
        y = common.attention(step, il, q, k, v, mask=self.mask(step, w, il, x))
        y = G.mul(y, G.sigmoid(G.reshape(gate, d * n_head, n_tokens)))
        return linear(layer, "attn_output", y)

    def mask(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor | None:
        """The mask of attention, from its input x; None: the mask of all positions."""
        return None


@dataclass(frozen=True)
class DeltaOrAttention(GatedAttention):
    """A gated delta net, or attention if the layer is not recurrent."""

    grouped: bool = False
    """True if value heads that share a key head are neighbours."""
    act: Callable[[Tensor], Tensor] = G.silu
    """The activation of the gate of a delta net's results."""

    def rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        if not recurs(c, il):
            yield from super().rows(c, il)
            return
        r, b = require_recurrent(c), f"blk.{il}"
        fused = f"{b}.ssm_in.weight" if self.grouped else ""
        if fused:
            yield maybe(fused, c.n_embd, r.n_channels + r.d_inner)
        yield from linear_rows(f"{b}.attn_qkv", c.n_embd, r.n_channels, unless=fused)
        yield from linear_rows(f"{b}.attn_gate", c.n_embd, r.d_inner, unless=fused)
        yield need(f"{b}.ssm_conv1d.weight", r.d_conv, r.n_channels)
        yield need(f"{b}.ssm_dt.bias", r.n_head)
        yield need(f"{b}.ssm_a", r.n_head)
        if self.grouped:
            yield need(f"{b}.ssm_ba.weight", c.n_embd, 2 * r.n_head)
        else:
            yield need(f"{b}.ssm_beta.weight", c.n_embd, r.n_head)
            yield need(f"{b}.ssm_alpha.weight", c.n_embd, r.n_head)
        yield need(f"{b}.ssm_norm.weight", r.head_dim)
        yield from linear_rows(f"{b}.ssm_out", r.d_inner, c.n_embd)

    def __call__(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        """The delta net or attention, from x [n_embd, n_tokens] to the same sizes."""
        if not recurs(step.config, il):
            return super().__call__(step, w, il, x)
        r = require_recurrent(step.config)
        layer, n_tokens, d = w.layer(il), x.ne[1], r.head_dim
        qkv, z = self._inputs(step, layer, x)
        qkv = G.silu(convolve(step, il, qkv, layer["ssm_conv1d.weight"]))
        n_k, stride = r.n_group, d
        q, k = (unit(common.heads(qkv, d, n_k, stride, at)) for at in (0, d * n_k))
        v = common.heads(qkv, d, r.n_head, stride, 2 * d * n_k)
        if self.grouped:
            q, k = (beside(t, r.n_head // n_k) for t in (q, k))
        beta, alpha = self._rates(step, layer, x)
        g = G.mul(G.softplus(G.add(alpha, layer["ssm_dt.bias"])), layer["ssm_a"])
        g = G.reshape(g, 1, r.n_head, n_tokens)
        y = delta_rule(step, il, q, k, v, g, G.sigmoid(beta))  # [d, n_head, n_tokens]
        z = G.reshape(z, d, r.n_head, n_tokens)
        y = G.mul(RMS(step.config, layer, "ssm_norm", y), self.act(z))
        return linear(layer, "ssm_out", G.reshape(y, r.d_inner, n_tokens))

    def _inputs(self, step: Step, w: Weights, x: Tensor) -> tuple[Tensor, Tensor]:
        """Queries, keys and values, [n_channels, n_tokens], and the gate [d_inner, n_tokens]."""
        if "ssm_in.weight" not in w:
            return linear(w, "attn_qkv", x), linear(w, "attn_gate", x)
        # older files: for each key head, its query, its key, and values and gates that share it
        r, n_tokens, together = require_recurrent(step.config), x.ne[1], linear(w, "ssm_in", x)
        d, n_k, n = r.head_dim, r.n_group, r.head_dim * (r.n_head // r.n_group)
        parts = []
        for size, start in ((d, 0), (d, d), (n, 2 * d), (n, 2 * d + n)):
            part = common.heads(together, size, n_k, 2 * (d + n), start)
            parts.append(G.reshape(part, size * n_k, n_tokens))
        q, k, v, z = parts
        return G.concat(G.concat(q, k, 0), v, 0), z

    def _rates(self, step: Step, w: Weights, x: Tensor) -> tuple[Tensor, Tensor]:
        """The inputs of beta and of the decay, [n_head, n_tokens] each."""
        r = require_recurrent(step.config)
        if not self.grouped:
            return linear(w, "ssm_beta", x), linear(w, "ssm_alpha", x)
        n = r.n_head // r.n_group  # for each key head, so many of one and then of the other
        both = linear(w, "ssm_ba", x)
        beta, alpha = (
            G.reshape(common.heads(both, n, r.n_group, 2 * n, at), r.n_head, x.ne[1])
            for at in (0, n)
        )
        return beta, alpha


def _architecture(feed_forward: Experts, grouped: bool = False) -> Architecture:
    return Architecture(
        RopeMode.NEOX,
        configure,
        attention=DeltaOrAttention(EACH_HEAD, grouped=grouped),
        feed_forward=feed_forward,
        before=("attn_norm", "post_attention_norm"),
    )


_MIXTURE = Experts(shared="gated")


# Kimi Linear (arXiv 2510.26692): three of four layers are gated delta nets that forget each
# channel at a rate of its own, the others latent attention without rotation.
#
#     q, k, v = silu(conv(q u)), silu(conv(k u)), silu(conv(v u))
#     state = exp(g) state + beta (v - state k) k^T          y = state q / sqrt(d)
#     out(norm(y) sigmoid(g_b g_a u))      g = A softplus(f_b f_a u + dt),  beta = sigmoid(b u)
#
# Queries and keys have unit length. The feed-forward layer is DeepSeek's mixture.


def configure_kimi(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the sizes of both kinds of layers, and that none rotates."""
    none = replace(c.rope, n_dims=0)
    return replace(delta_or_latent(c, keys), ropes=(none,) * c.n_layer)


def delta_or_latent(c: ModelConfig, keys: Keys, *, rotates: bool = True) -> ModelConfig:
    """Sets the sizes of both kinds of layers; those without key/value heads are recurrent.
    Keys of latent attention rotate in part, if it `rotates`."""
    layers = tuple(kv == 0 for kv in c.heads_kv)
    whole = replace(c, heads_kv=(max(c.heads_kv),) * c.n_layer)
    if keys.count("attention.value_length_mla", 0, least=0):
        # files do not say that the values that are cached are the latents
        whole = replace(whole, head_dim_v=keys.count("attention.kv_lora_rank"))
    d, n_head = keys.count("kda.head_dim"), c.heads[0]
    recurrent = RecurrentConfig(
        layers=layers,
        d_conv=keys.count("ssm.conv_kernel", least=2),
        n_channels=3 * d * n_head,
        d_state=d,
        n_head=n_head,
        head_dim=d,
        n_group=n_head,
    )
    latent = configure_latent(whole, keys, rotates=rotates)
    return replace(latent, heads_kv=c.heads_kv, recurrent=recurrent)


@dataclass(frozen=True)
class DeltaOrLatent(LatentAttention):
    """A gated delta net, or latent attention if the layer is not recurrent."""

    narrow: bool = True
    """True if decays and gates are computed through a narrow matrix and another one."""

    def rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        if not recurs(c, il):
            yield from super().rows(c, il)
            return
        r = require_recurrent(c)
        b, d, n = f"blk.{il}", r.head_dim, r.d_inner
        for part in "qkv":
            yield from linear_rows(f"{b}.attn_{part}", c.n_embd, n)
            yield need(f"{b}.ssm_conv1d_{part}.weight", r.d_conv, 1, n)
        for part in "fg":
            if self.narrow:
                yield from linear_rows(f"{b}.ssm_{part}_a", c.n_embd, d)
                yield from linear_rows(f"{b}.ssm_{part}_b", d, n)
            else:
                yield from linear_rows(f"{b}.ssm_{part}_a", c.n_embd, n)
        yield from linear_rows(f"{b}.ssm_beta", c.n_embd, r.n_head)
        yield need(f"{b}.ssm_dt.bias", n)
        yield need(f"{b}.ssm_a", 1, r.n_head)
        yield need(f"{b}.ssm_norm.weight", d)
        yield from linear_rows(f"{b}.attn_output", n, c.n_embd)

    def __call__(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        if not recurs(step.config, il):
            return super().__call__(step, w, il, x)
        r = require_recurrent(step.config)
        layer, n_tokens, d, n_head, n = w.layer(il), x.ne[1], r.head_dim, r.n_head, r.d_inner
        kernels = [G.reshape(layer[f"ssm_conv1d_{part}.weight"], r.d_conv, n) for part in "qkv"]
        inputs = [linear(layer, f"attn_{part}", x) for part in "qkv"]
        kernel, together = (G.concat(G.concat(a, b, dim), c, dim) for dim, (a, b, c) in
                            ((1, kernels), (0, inputs)))  # fmt: skip
        qkv = G.silu(convolve(step, il, together, kernel))  # [3 n, n_tokens]
        size = qkv.dtype.bytes
        q, k, v = (
            G.cont(G.view_3d(qkv, d, n_head, n_tokens, d * size, qkv.nb[1], i * n * size))
            for i in range(3)
        )
        rate = G.add(self._through(layer, "f", x), layer["ssm_dt.bias"])
        g = self.decays(step, layer, G.reshape(rate, d, n_head, n_tokens))
        beta = G.sigmoid(linear(layer, "ssm_beta", x))
        y = delta_rule(step, il, unit(q), unit(k), v, g, beta)  # [d, n_head, n_tokens]
        y = G.reshape(RMS(step.config, layer, "ssm_norm", y), n, n_tokens)
        return linear(layer, "attn_output", G.mul(y, G.sigmoid(self._through(layer, "g", x))))

    def decays(self, step: Step, w: Weights, rate: Tensor) -> Tensor:
        """The logarithms of decays, from their rates [d, n_head, n_tokens]."""
        return G.mul(G.softplus(rate), w["ssm_a"])

    def _through(self, w: Weights, part: str, x: Tensor) -> Tensor:
        y = linear(w, f"ssm_{part}_a", x)
        return linear(w, f"ssm_{part}_b", y) if self.narrow else y


# Ling 3.0 (bailingmoe3, Ant Group, 2026): Kimi Linear whose latent attention rotates and has a gate
# of one number for each head. Decays and gates of delta nets are computed by one matrix, and the
# logarithms of decays have a lower bound:  g = bound sigmoid(A (f u + dt)).  Experts are chosen
# from the best groups, and the halves of their gated products may be limited.


def configure_ling(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the sizes of both kinds of layers, the bound of decays and the limits of experts."""
    c = delta_or_latent(c, keys)
    bound = keys.number("kda.gate_lower_bound", 0.0)
    if not keys.flag("kda.safe_gate", True) or bound >= 0.0:
        raise keys.bad("kda.gate_lower_bound", bound, "below 0, and kda.safe_gate true")
    recurrent = replace(require_recurrent(c), least_decay=bound)
    return replace(c, recurrent=recurrent, activation=halves_limits(c, keys))


class BoundedDelta(DeltaOrLatent):
    """A delta net with a lower bound of decays, or latent attention with a gate of each head."""

    def rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        yield from super().rows(c, il)
        if not recurs(c, il):
            yield from linear_rows(f"blk.{il}.attn_gate", c.n_embd, c.n_head(il))

    def decays(self, step: Step, w: Weights, rate: Tensor) -> Tensor:
        bound = require_recurrent(step.config).least_decay
        return G.scale(G.sigmoid(G.mul(rate, w["ssm_a"])), bound)

    def gated(self, w: Weights, x: Tensor, y: Tensor) -> Tensor:
        return gate_heads(y, G.sigmoid(linear(w, "attn_gate", x)))


ARCHITECTURES = {
    "qwen3next": _architecture(_MIXTURE, grouped=True),
    "qwen35": _architecture(Experts()),
    "qwen35moe": _architecture(_MIXTURE),
    "kimi-linear": Architecture(
        RopeMode.NORMAL,
        configure_kimi,
        attention=DeltaOrLatent(),
        feed_forward=Experts(shared="added", balanced=True),
    ),
    "bailingmoe3": Architecture(
        RopeMode.NORMAL,
        configure_ling,
        attention=BoundedDelta(narrow=False),
        feed_forward=LimitedHalves(shared="added", renormalise=False, balanced=True),
    ),
}
