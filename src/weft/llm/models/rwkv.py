"""RWKV 6 (arXiv 2404.05892) and 7 (arXiv 2503.14456): no attention; a state for each head, and
inputs that are mixed with the inputs of the token before.

    6:  state = diag(w) state + v k^T                      y = (state + u v k^T) r
    7:  state = state (diag(w) - kk (a kk)^T) + v k^T      y = state r

w, and in 7 the rates a, are computed from the input through a narrow matrix. The feed-forward layer
mixes in the token before, too. Models that were Qwen before (RWKV6Qwen2 and ARWKV-7) have Qwen's
feed-forward layer and RMS norms instead."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from weft import graph as G
from weft.graph import RopeMode
from weft.graph.size import Size
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.config_parts import RecurrentConfig
from weft.llm.models.architecture import Architecture, Configure, last
from weft.llm.models.common import linear
from weft.llm.models.parts import LAYER, linear_rows, squared_relu
from weft.llm.models.step import Step, beside, kept_state, require_recurrent
from weft.llm.weights import Row, Weights, maybe, need
from weft.records import dataclass

_SIZE = 4  # bytes of a float32
_GROUP_EPS = 64e-5
_UNIT_EPS = 1e-12
_SLOWEST = -math.exp(-0.5)

Activation = Callable[[Tensor], Tensor]


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the sizes of heads, and how many inputs of the token before a layer keeps."""
    d = keys.count("wkv.head_size")
    if c.n_embd % d:
        raise keys.bad("wkv.head_size", d, f"a divisor of embedding_length {c.n_embd}")
    n_head = c.n_embd // d
    n_group = c.heads_kv[0] or n_head
    if n_head % n_group:
        raise keys.bad("attention.head_count_kv", n_group, f"a divisor of {n_head} heads")
    recurrent = RecurrentConfig(
        layers=(True,) * c.n_layer,
        d_conv=2,
        n_channels=keys.count("token_shift_count", 2) * c.n_embd,
        d_state=d,
        n_head=n_head,
        head_dim=d,
        n_group=n_group,
        rescale_every=keys.count("rescale_every_n_layers", 0, least=0),
    )
    none = (0,) * c.n_layer
    return replace(c.without_rope(), heads=none, heads_kv=none, recurrent=recurrent)


def configure6(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the widths of RWKV 6's narrow matrices."""
    ranks = (keys.count("time_mix_extra_dim"), keys.count("time_decay_extra_dim"))
    return _ranked(configure(c, keys), *ranks)


def configure7(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the widths of RWKV 7's narrow matrices."""
    names = ("decay", "iclr", "value_residual_mix")
    ranks = [keys.count(f"attention.{name}_lora_rank") for name in names]
    gate = keys.count("attention.gate_lora_rank", 0, least=0)
    return _ranked(configure(c, keys), *ranks, gate)


def _ranked(c: ModelConfig, *ranks: int) -> ModelConfig:
    return replace(c, recurrent=replace(require_recurrent(c), ranks=ranks))


# ---- the token before ----------------------------------------------------------------------------


def before(step: Step, il: int, x: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """The inputs of the tokens before those of x [n_embd, n_tokens], the first of which are in
    `kept` [n_embd, n_seqs]; and the inputs to keep now."""
    n_embd, n, n_seqs = x.ne[0], step.n_seq_tokens, step.n_seqs
    x = G.reshape(x, n_embd, n, n_seqs)
    inputs = G.concat(G.reshape(G.cont(kept), n_embd, 1, n_seqs), x, 1)
    nb = inputs.nb
    previous = G.cont(G.view_3d(inputs, n_embd, n, n_seqs, nb[1], nb[2], 0))
    final = G.cont(G.view_3d(inputs, n_embd, 1, n_seqs, nb[1], nb[2], n * nb[1]))
    return G.reshape(previous, n_embd, step.tokens.ne[0]), G.reshape(final, n_embd, n_seqs)


def mixed(x: Tensor, change: Tensor, w: Weights, name: str) -> Tensor:
    """Mixes the input x with the one before, by weights for each element; `change` is their
    difference."""
    return G.add(G.mul(change, G.reshape(w[f"{name}.weight"], x.ne[0])), x)


def _remember(step: Step, il: int, kept: Tensor) -> None:
    assert step.slots is not None and step.cache.states is not None
    step.writes.append(G.set_rows(step.cache.states.conv[il], kept, step.slots[1]))


def _remembered(step: Step, il: int) -> Tensor:
    assert step.slots is not None and step.cache.states is not None
    return G.get_rows(step.cache.states.conv[il], step.slots[0])


def _heads(step: Step, x: Tensor) -> Tensor:
    r = require_recurrent(step.config)
    return G.reshape(x, r.head_dim, r.n_head, x.ne[1])


def _state(step: Step, il: int) -> Tensor:
    assert step.slots is not None and step.cache.states is not None
    return G.get_rows(step.cache.states.state[il], step.slots[0])


def _normed_heads(step: Step, w: Weights, y: Tensor) -> Tensor:
    """Norms each head of y [n_embd, n_tokens]."""
    if "time_mix_ln.weight" not in w:
        return y
    y = G.reshape(G.norm(_heads(step, y), _GROUP_EPS), y.ne[0], y.ne[1])
    return G.add(G.mul(y, w["time_mix_ln.weight"]), w["time_mix_ln.bias"])


# ---- layers --------------------------------------------------------------------------------------


class TimeMix:
    """RWKV's recurrent layer in place of attention."""

    def rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        """The projections."""
        r, b = require_recurrent(c), f"blk.{il}.time_mix"
        n_kv = r.n_group * r.head_dim
        for name, n in (("key", n_kv), ("value", n_kv), ("receptance", c.n_embd)):
            yield from linear_rows(f"{b}_{name}", c.n_embd, n)
        yield from linear_rows(f"{b}_output", c.n_embd, c.n_embd)

    def mix(self, step: Step, w: Weights, il: int, x: Tensor, previous: Tensor) -> Tensor:
        """The layer, from inputs x and those before them [n_embd, n_tokens] to the same sizes."""
        raise NotImplementedError

    def __call__(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        """The layer where it alone keeps the token before, from x [n_embd, n_tokens]."""
        previous, kept = before(step, il, x, _remembered(step, il))
        _remember(step, il, kept)
        return self.mix(step, w, il, x, previous)


@dataclass(frozen=True)
class TimeMix6(TimeMix):
    """RWKV 6's, or with `linear` RWKV6Qwen2's: without a bonus for the token itself and without a
    norm of heads."""

    linear: bool = False

    def rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        yield from super().rows(c, il)
        r, b, n = require_recurrent(c), f"blk.{il}.time_mix", c.n_embd
        n_mix, n_decay = r.ranks
        yield need(f"{b}_w1.weight", n, 5 * n_mix)
        yield need(f"{b}_w2.weight", n_mix, n, 5)
        yield need(f"{b}_lerp_x.weight", n)
        yield maybe(f"{b}_lerp_fused.weight", n, 1, 1, 5)
        for name in "wkvrg":
            yield need(f"{b}_lerp_{name}.weight", n, unless=f"{b}_lerp_fused.weight")
        yield need(f"{b}_decay.weight", n)
        yield need(f"{b}_decay_w1.weight", n, n_decay)
        yield need(f"{b}_decay_w2.weight", n_decay, n)
        yield from linear_rows(f"{b}_gate", n, n)
        if not self.linear:
            yield need(f"{b}_first.weight", r.head_dim, r.n_head)
            yield from LAYER.rows(f"{b}_ln", n)

    def mix(self, step: Step, w: Weights, il: int, x: Tensor, previous: Tensor) -> Tensor:
        r, layer, n_tokens = require_recurrent(step.config), w.layer(il), x.ne[1]
        xw, xk, xv, xr, xg = self._mixtures(layer, x, G.sub(previous, x), r.ranks[0])
        k, v = (
            beside(
                G.reshape(linear(layer, f"time_mix_{name}", t), r.head_dim, r.n_group, n_tokens),
                r.n_head // r.n_group,
            )
            for name, t in (("key", xk), ("value", xv))
        )
        q = _heads(step, linear(layer, "time_mix_receptance", xr))
        gate = linear(layer, "time_mix_gate", xg)
        rate = G.tanh(G.mul_mat(layer["time_mix_decay_w1.weight"], xw))
        rate = G.mul_mat(layer["time_mix_decay_w2.weight"], rate)
        decay = G.exp(G.neg(G.exp(G.add(rate, layer["time_mix_decay.weight"]))))
        decay = _heads(step, decay)
        state = _state(step, il)
        if self.linear:
            k = G.sub(k, G.mul(k, decay))
            both = G.gated_linear_attn(k, v, q, decay, state, scale=r.head_dim**-0.5)
            y = G.mul(kept_state(step, il, both), G.sigmoid(gate))
        else:
            both = G.rwkv_wkv6(k, v, q, layer["time_mix_first.weight"], decay, state)
            y = G.mul(_normed_heads(step, layer, kept_state(step, il, both)), G.silu(gate))
        return linear(layer, "time_mix_output", y)

    def _mixtures(self, w: Weights, x: Tensor, change: Tensor, rank: int) -> list[Tensor]:
        """The inputs of decay, keys, values, receptance and gate, [n_embd, n_tokens] each: mixed
        with those before by weights that depend on the token."""
        n_embd, n_tokens = x.ne[0], x.ne[1]
        low = G.tanh(G.mul_mat(w["time_mix_w1.weight"], mixed(x, change, w, "time_mix_lerp_x")))
        low = G.cont(G.permute(G.reshape(low, rank, 5, n_tokens), 0, 2, 1, 3))
        by = G.mul_mat(w["time_mix_w2.weight"], low)  # [n_embd, n_tokens, 5]
        parts = []
        for i, name in enumerate("wkvrg"):
            own = G.view_2d(by, n_embd, n_tokens, by.nb[1], i * by.nb[2])
            weights = G.add(own, _lerp(w, i, name, n_embd))
            parts.append(G.add(G.mul(weights, change), x))
        return parts


def _lerp(w: Weights, i: int, name: str, n_embd: Size) -> Tensor:
    fused = w.get("time_mix_lerp_fused.weight")
    if fused is None:
        return w[f"time_mix_lerp_{name}.weight"]
    return G.view_1d(fused, n_embd, i * fused.nb[3])


class TimeMix7(TimeMix):
    """RWKV 7's. Values of later layers are mixed with the values of the first layer."""

    def rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        yield from super().rows(c, il)
        r, b, n = require_recurrent(c), f"blk.{il}.time_mix", c.n_embd
        n_decay, n_rate, n_value, n_gate = r.ranks
        yield need(f"{b}_lerp_fused.weight", n, 1, 1, 6 if n_gate else 5)
        for name, rank in (("w", n_decay), ("a", n_rate), ("v", n_value)):
            if name == "v" and il == 0:
                continue  # files may have them, and nobody uses them
            yield need(f"{b}_{name}0.weight", n)
            yield need(f"{b}_{name}1.weight", n, rank)
            yield need(f"{b}_{name}2.weight", rank, n)
        if n_gate:
            yield need(f"{b}_g1.weight", n, n_gate)
            yield need(f"{b}_g2.weight", n_gate, n)
        for name in ("k_k", "k_a", "r_k"):
            yield need(f"{b}_{name}.weight", n)
        for row in LAYER.rows(f"{b}_ln", n):
            yield replace(row, optional=True)

    def mix(self, step: Step, w: Weights, il: int, x: Tensor, previous: Tensor) -> Tensor:
        layer, change = w.layer(il), G.sub(previous, x)
        n_embd, n_tokens = x.ne[0], x.ne[1]

        def part(i: int) -> Tensor:
            return G.add(G.mul(change, _lerp(layer, i, "", n_embd)), x)

        def low(name: str, t: Tensor, inner: Activation = lambda t: t) -> Tensor:
            first = G.mul_mat(layer[f"time_mix_{name}1.weight"], t)
            return G.mul_mat(layer[f"time_mix_{name}2.weight"], inner(first))

        def rate(name: str, t: Tensor, inner: Activation = lambda t: t) -> Tensor:
            return G.sigmoid(G.add(low(name, t, inner), layer[f"time_mix_{name}0.weight"]))

        q = linear(layer, "time_mix_receptance", part(0))
        decay = G.exp(G.scale(rate("w", part(1), G.tanh), _SLOWEST))
        k = linear(layer, "time_mix_key", part(2))
        v = linear(layer, "time_mix_value", part(3))
        if il == 0:
            step.values.append(v)
        else:
            v = G.add(v, G.mul(G.sub(step.values[0], v), rate("v", part(3))))
        a = rate("a", part(4))
        kk = _heads(step, G.mul(k, layer["time_mix_k_k.weight"]))
        kk = G.l2_norm(kk, _UNIT_EPS)
        scaled = G.mul(k, layer["time_mix_k_a.weight"])
        k = G.add(k, G.sub(G.mul(a, scaled), scaled))
        q, decay, k, v, a = (_heads(step, t) for t in (q, decay, k, v, a))
        both = G.rwkv_wkv7(q, decay, k, v, G.neg(kk), G.mul(kk, a), _state(step, il))
        y = _normed_heads(step, layer, kept_state(step, il, both))
        d, n_head, _, _ = q.ne
        own = G.mul(G.mul(k, q), G.reshape(layer["time_mix_r_k.weight"], d, n_head))
        y = G.add(y, G.reshape(G.mul(v, G.sum_rows(own)), n_embd, n_tokens))
        if "time_mix_g1.weight" in layer:
            y = G.mul(y, low("g", part(5), G.sigmoid))
        return linear(layer, "time_mix_output", y)


class Rwkv(Architecture):
    """Two layers that keep the token before, in blocks with LayerNorm."""

    def block_rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        for name in self.before:
            yield from self.norm.rows(f"blk.{il}.{name}", c.n_embd)
        yield from self.attention.rows(c, il)
        b, n, n_ff = f"blk.{il}.channel_mix", c.n_embd, c.n_ff(il)
        yield need(f"{b}_lerp_k.weight", n)
        yield from linear_rows(f"{b}_key", n, n_ff)
        yield from linear_rows(f"{b}_value", n_ff, n)
        if len(require_recurrent(c).ranks) == 2:  # RWKV 6 gates it
            yield need(f"{b}_lerp_r.weight", n)
            yield from linear_rows(f"{b}_receptance", n, n)

    def block(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        layer, r, n = w.layer(il), require_recurrent(step.config), step.config.n_embd
        assert isinstance(self.attention, TimeMix)
        kept = _remembered(step, il)  # [2 n_embd, n_seqs]
        first, second = (G.view_2d(kept, n, step.n_seqs, kept.nb[1], i * n * _SIZE) for i in (0, 1))
        y = self.normed(step, layer, self.before[0], x)
        previous, first = before(step, il, y, first)
        x = G.add(x, self.attention.mix(step, w, il, y, previous)).named(f"ffn_inp-{il}")
        y = self.normed(step, layer, self.before[1], x)
        previous, second = before(step, il, y, second)
        _remember(step, il, G.concat(first, second, 0))
        x, y, previous = last(step, il, x, y, previous)
        x = G.add(x, _channels(layer, y, G.sub(previous, y)))
        return G.scale(x, 0.5) if r.rescale_every and (il + 1) % r.rescale_every == 0 else x


def _channels(w: Weights, x: Tensor, change: Tensor) -> Tensor:
    """The feed-forward layer of x [n_embd, n_tokens]."""
    inside = linear(w, "channel_mix_key", mixed(x, change, w, "channel_mix_lerp_k"))
    y = linear(w, "channel_mix_value", squared_relu(inside))
    if "channel_mix_receptance.weight" not in w:
        return y
    gate = linear(w, "channel_mix_receptance", mixed(x, change, w, "channel_mix_lerp_r"))
    return G.mul(G.sigmoid(gate), y)


def _rwkv(configure: Configure, mix: TimeMix) -> Rwkv:
    return Rwkv(
        RopeMode.NEOX,
        configure,
        attention=mix,
        norm=LAYER,
        before=("attn_norm", "attn_norm_2"),
        embedding_norm="token_embd_norm",
    )


ARCHITECTURES = {
    "rwkv6": _rwkv(configure6, TimeMix6()),
    "rwkv6qwen2": Architecture(RopeMode.NEOX, configure6, attention=TimeMix6(linear=True)),
    "rwkv7": _rwkv(configure7, TimeMix7()),
    "arwkv7": Architecture(RopeMode.NEOX, configure7, attention=TimeMix7()),
}
