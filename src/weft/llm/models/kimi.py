"""Kimi Linear (arXiv 2510.26692): three of four layers are gated delta nets that forget each
channel at a rate of its own, the others latent attention without rotation.

    q, k, v = silu(conv(q u)), silu(conv(k u)), silu(conv(v u))
    state = exp(g) state + beta (v - state k) k^T          y = state q / sqrt(d)
    out(norm(y) sigmoid(g_b g_a u))      g = A softplus(f_b f_a u + dt),  beta = sigmoid(b u)

Queries and keys have unit length. The feed-forward layer is DeepSeek's mixture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from weft import graph as G
from weft.graph import RopeMode
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig, RecurrentConfig
from weft.llm.config_keys import Keys
from weft.llm.models.architecture import Architecture
from weft.llm.models.common import linear
from weft.llm.models.deepseek import LatentAttention, configure_latent
from weft.llm.models.experts import Experts
from weft.llm.models.parts import RMS, linear_rows
from weft.llm.models.recurrence import convolve, delta_rule, require_recurrent, unit
from weft.llm.models.step import Step
from weft.llm.weights import Row, Weights, need

__all__ = ["ARCHITECTURES"]


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the sizes of both kinds of layers; those without key/value heads are recurrent."""
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
    none = replace(c.rope, n_dims=0)
    return replace(
        configure_latent(whole, keys),
        heads_kv=c.heads_kv,
        recurrent=recurrent,
        ropes=(none,) * c.n_layer,
    )


class DeltaOrLatent(LatentAttention):
    """A gated delta net, or latent attention if the layer is not recurrent."""

    def rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        """The weights of the delta net or of attention."""
        r = require_recurrent(c)
        if not r.layers[il]:
            yield from super().rows(c, il)
            return
        b, d, n = f"blk.{il}", r.head_dim, r.d_inner
        for part in "qkv":
            yield from linear_rows(f"{b}.attn_{part}", c.n_embd, n)
            yield need(f"{b}.ssm_conv1d_{part}.weight", r.d_conv, 1, n)
        for part in "fg":
            yield from linear_rows(f"{b}.ssm_{part}_a", c.n_embd, d)
            yield from linear_rows(f"{b}.ssm_{part}_b", d, n)
        yield from linear_rows(f"{b}.ssm_beta", c.n_embd, r.n_head)
        yield need(f"{b}.ssm_dt.bias", n)
        yield need(f"{b}.ssm_a", 1, r.n_head)
        yield need(f"{b}.ssm_norm.weight", d)
        yield from linear_rows(f"{b}.attn_output", n, c.n_embd)

    def __call__(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        """The delta net or attention, from x [n_embd, n_tokens] to the same sizes."""
        r = require_recurrent(step.config)
        if not r.layers[il]:
            return super().__call__(step, w, il, x)
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
        rate = linear(layer, "ssm_f_b", linear(layer, "ssm_f_a", x))
        rate = G.softplus(G.add(rate, layer["ssm_dt.bias"]))
        g = G.mul(G.reshape(rate, d, n_head, n_tokens), layer["ssm_a"])
        beta = G.sigmoid(linear(layer, "ssm_beta", x))
        y = delta_rule(step, il, unit(q), unit(k), v, g, beta)  # [d, n_head, n_tokens]
        gate = linear(layer, "ssm_g_b", linear(layer, "ssm_g_a", x))
        y = G.reshape(RMS(step.config, layer, "ssm_norm", y), n, n_tokens)
        return linear(layer, "attn_output", G.mul(y, G.sigmoid(gate)))


ARCHITECTURES = {
    "kimi-linear": Architecture(
        RopeMode.NORMAL,
        configure,
        attention=DeltaOrLatent(),
        feed_forward=Experts(shared="added", balanced=True),
    )
}
