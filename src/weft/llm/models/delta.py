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
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.config_parts import RecurrentConfig
from weft.llm.models import common
from weft.llm.models.architecture import Architecture, last
from weft.llm.models.common import linear
from weft.llm.models.deepseek import LatentAttention, configure_latent, latent
from weft.llm.models.experts import Experts, LimitedHalves, halves, halves_limits
from weft.llm.models.parts import EACH_HEAD, RMS, Attention, Gated, gate_heads, linear_rows
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
            yield from self.through_rows(c, il, part)
        yield from linear_rows(f"{b}.ssm_beta", c.n_embd, r.n_head)
        yield need(f"{b}.ssm_dt.bias", n)
        yield self.decay_row(il, r.n_head)
        yield need(f"{b}.ssm_norm.weight", d)
        yield from linear_rows(f"{b}.attn_output", n, c.n_embd)

    def through_rows(self, c: ModelConfig, il: int, part: str) -> Iterator[Row]:
        """The matrices of decays ("f") or gates ("g")."""
        r, b = require_recurrent(c), f"blk.{il}.ssm_{part}"
        d, n = r.head_dim, r.d_inner
        yield from linear_rows(f"{b}_a", c.n_embd, d if self.narrow else n)
        if self.narrow:
            yield from linear_rows(f"{b}_b", d, n)

    def decay_row(self, il: int, n_head: int) -> Row:
        """The factors of decays."""
        return need(f"blk.{il}.ssm_a", 1, n_head)

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
        qkv = qkv.named(f"conv_output_silu-{il}")
        size = qkv.dtype.bytes
        q, k, v = (
            G.cont(G.view_3d(qkv, d, n_head, n_tokens, d * size, qkv.nb[1], i * n * size))
            for i in range(3)
        )
        rate = G.add(self.through(layer, "f", x), layer["ssm_dt.bias"])
        g = self.decays(step, layer, G.reshape(rate, d, n_head, n_tokens)).named(f"kda_g1-{il}")
        beta = G.sigmoid(linear(layer, "ssm_beta", x)).named(f"kda_beta-{il}")
        q, k = (unit(t).named(f"kda_{part}-{il}") for part, t in (("q", q), ("k", k)))
        y = delta_rule(step, il, q, k, v, g, beta)  # [d, n_head, n_tokens]
        y = G.reshape(RMS(step.config, layer, "ssm_norm", y), n, n_tokens)
        return linear(layer, "attn_output", G.mul(y, G.sigmoid(self.through(layer, "g", x))))

    def decays(self, step: Step, w: Weights, rate: Tensor) -> Tensor:
        """The logarithms of decays, from their rates [d, n_head, n_tokens]."""
        return G.mul(G.softplus(rate), w["ssm_a"])

    def through(self, w: Weights, part: str, x: Tensor) -> Tensor:
        """The inputs of decays ("f") or gates ("g"), [d_inner, n_tokens]."""
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


# Kimi K3 (Moonshot, 2026): Kimi Linear with a gate of every element behind latent attention, decays
# as in Ling 3.0, experts whose input is a projection, and another activation:
#
#     act(gate, up) = b tanh(gate / b) sigmoid(gate) c tanh(up / c)
#
# Every `residual_span` layers the residual stream is kept as it is, and starts anew with the
# output of attention. What halves of blocks read is a mean of the streams that were kept and
# the current one, with weights that a score of each normed stream gives through a softmax.


def configure_k3(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the sizes of both kinds of layers, residual streams, experts and the activation."""
    c = configure_kimi(c, keys)
    bound = keys.number("kda.gate_lower_bound", 0.0)
    if bound > 0.0:
        raise keys.bad("kda.gate_lower_bound", bound, "below 0")
    beta = keys.number("activation.situ_beta", 0.0)
    if beta <= 0.0:
        raise keys.bad("activation.situ_beta", beta, "above 0")
    limits = beta, keys.number("activation.situ_linear_beta", 0.0)
    width = keys.count("expert_latent_length", 0, least=0)
    return replace(
        c,
        recurrent=replace(require_recurrent(c), least_decay=bound),
        residual_span=keys.count("attn_res.block_size", 0, least=0),
        activation=(limits,) * c.n_layer,
        moe=c.moe and replace(c.moe, n_latent=width, latent_eps=c.rms_eps),
    )


class GatedDeltaOrLatent(DeltaOrLatent):
    """A delta net whose gates are computed by one matrix, or latent attention with such gates."""

    def rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        yield from super().rows(c, il)
        if not recurs(c, il):
            width = c.n_head(il) * latent(c).head_dim_v
            yield maybe(f"blk.{il}.attn_gate.weight", c.n_embd, width)

    def through_rows(self, c: ModelConfig, il: int, part: str) -> Iterator[Row]:
        if part == "f":
            yield from super().through_rows(c, il, part)
        else:
            yield from linear_rows(f"blk.{il}.ssm_g", c.n_embd, require_recurrent(c).d_inner)

    def decay_row(self, il: int, n_head: int) -> Row:
        return need(f"blk.{il}.ssm_a", n_head)

    def through(self, w: Weights, part: str, x: Tensor) -> Tensor:
        return linear(w, "ssm_g", x) if part == "g" else super().through(w, part, x)

    def decays(self, step: Step, w: Weights, rate: Tensor) -> Tensor:
        bound, n_head = require_recurrent(step.config).least_decay, rate.ne[1]
        factors = G.reshape(w["ssm_a"], 1, n_head)
        if not bound:
            return G.mul(G.softplus(rate), factors)
        return G.scale(G.sigmoid(G.neg(G.mul(rate, factors))), bound)

    def gated(self, w: Weights, x: Tensor, y: Tensor) -> Tensor:
        if "attn_gate.weight" not in w:
            return y
        return G.mul(y, G.sigmoid(linear(w, "attn_gate", x)))


def bent(limits: tuple[float, ...], il: int) -> Callable[..., Tensor]:
    """Kimi K3's activation of gate and up, with a second limit of 0 without the one of up."""

    def soft(x: Tensor, limit: float, name: str) -> Tensor:
        x = G.tanh(G.scale(x, 1.0 / limit).named(f"ffn_{name}_scaled-{il}"))
        return G.scale(x.named(f"ffn_{name}_tanh-{il}"), limit).named(f"ffn_{name}_soft-{il}")

    def act(gate: Tensor, up: Tensor | None = None) -> Tensor:
        gate, up = halves(gate, up)
        y = G.mul(soft(gate, limits[0], "gate"), G.sigmoid(gate)).named(f"ffn_situ_gate-{il}")
        if limits[1] > 0.0:
            up = soft(up, limits[1], "up")
        return G.mul(y, up).named(f"ffn_situ-{il}")

    return act


class BentExperts(Experts):
    """Experts and dense layers with Kimi K3's activation."""

    def __call__(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        act = bent(step.config.activation[il], il)
        same = Experts(Gated(act), self.shared, balanced=self.balanced, act=act, shared_act=act,
                       latent=self.latent)  # fmt: skip
        return same(step, w, il, x)


class KeptStreams(Architecture):
    """Blocks with residual streams that are kept."""

    def outer_rows(self, c: ModelConfig) -> Iterator[Row]:
        yield from super().outer_rows(c)
        if c.residual_span:
            yield need("output_res_score.weight", c.n_embd)

    def block_rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        yield from super().block_rows(c, il)
        for part in ("attn", "ffn") if c.residual_span else ():
            yield need(f"blk.{il}.{part}_res_score.weight", c.n_embd)

    def forward(self, step: Step, w: Weights) -> Tensor:
        c, x, kept = step.config, self.embed(step, w), None
        for il in range(c.n_layer):
            layer = w.layer(il)
            y = self.normed(step, layer, "attn_norm", mixed(step, layer, f"attn-{il}", x, kept))
            starts = c.residual_span > 0 and il % c.residual_span == 0
            if starts:
                kept = _with_stream(kept, x)
            y = self.attention(step, w, il, y)
            x, y = last(step, il, x, y)
            if kept is not None:
                kept = _last_streams(step, il, kept)
            x = (y if starts else G.add(x, y)).named(f"ffn_inp-{il}")
            y = self.normed(step, layer, "ffn_norm", mixed(step, layer, f"ffn-{il}", x, kept))
            x = common.steered(step, il, G.add(x, self.feed_forward(step, w, il, y)))
        return self.logits(step, w, mixed(step, w, "output", x, kept))


def _with_stream(kept: Tensor | None, x: Tensor) -> Tensor:
    """The streams that were kept [n_embd, n_streams, n_tokens], and x [n_embd, n_tokens]."""
    x = G.reshape(x, x.ne[0], 1, x.ne[1])
    return x if kept is None else G.concat(kept, x, 1)


def _last_streams(step: Step, il: int, kept: Tensor) -> Tensor:
    """The streams of the tokens that are computed on behind attention."""
    n_embd, n, n_tokens, _ = kept.ne
    (flat,) = last(step, il, G.reshape(kept, n_embd * n, n_tokens))
    return G.reshape(flat, n_embd, n, flat.ne[1])


def mixed(step: Step, w: Weights, name: str, x: Tensor, kept: Tensor | None) -> Tensor:
    """The mean of the streams `kept` [n_embd, n_streams, n_tokens] and x [n_embd, n_tokens] that
    the scores of `name` weigh, a part of a layer such as "attn-3"; x itself if there are none."""
    if kept is None:
        return x
    n, n_tokens = kept.ne[1:3]
    part, layer, il = name.partition("-")
    end, eps = layer + il, step.config.rms_eps
    gains = w[f"{part}_res_score.weight"]
    scores = [
        G.sum_rows(G.mul(G.rms_norm(t, eps), gains)).named(f"{part}_res_scores{end}")
        for t in (kept, x)
    ]
    both = G.concat(G.reshape(scores[0], n, n_tokens), scores[1], 0)
    shares = G.soft_max(both.named(f"{part}_res_both{end}")).named(f"res_probs{end}")
    assert isinstance(n, int)
    row, size = shares.nb[1], shares.dtype.bytes
    of_kept = G.cont(G.view_2d(shares, n, n_tokens, row, 0))
    of_x = G.cont(G.view_2d(shares, 1, n_tokens, row, n * size))
    y = G.dsv4_hc_pre(kept, of_kept).named(f"{part}_res_kept{end}")
    own = G.mul(x, of_x).named(f"{part}_res_own{end}")
    return G.add(y, own).named(f"{part}_res{end}")


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
    "kimi-k3": KeptStreams(
        RopeMode.NORMAL,
        configure_k3,
        attention=GatedDeltaOrLatent(),
        feed_forward=BentExperts(
            shared="added",
            balanced=True,
            latent=("ffn_routed_down", "ffn_routed_up", "ffn_routed_norm"),
        ),
    ),
}
