"""RWKV 6 and 7 beside the equations of their papers, token by token in NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.llm.made_models import TOKENS, Tensors, configure, context, keys_of, made_up
from tests.llm.other_models import OTHERS
from tests.llm.tiny import write_model

Array = NDArray[np.float64]
HEAD = 4


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def squared_relu(x: Array) -> Array:
    return np.asarray(np.maximum(x, 0) ** 2)


class Plain:
    """The weights of a file; matrices are [n_out, n_in]."""

    def __init__(self, tensors: Tensors, n_layer: int, seven: bool, qwen: bool) -> None:
        self.all = {name: array.astype(np.float64) for name, array in tensors.items()}
        self.n_layer, self.seven, self.qwen = n_layer, seven, qwen
        self.first_v = np.zeros(0)

    def w(self, il: int, name: str, kind: str = "weight") -> Array:
        return self.all[f"blk.{il}.{name}.{kind}"]

    def linear(self, il: int, name: str, x: Array) -> Array:
        bias = self.all.get(f"blk.{il}.{name}.bias", 0)
        return np.asarray(self.w(il, name) @ x + bias)

    def norm(self, name: str, x: Array) -> Array:
        gain = self.all[f"{name}.weight"]
        if self.qwen:
            return np.asarray(x / np.sqrt((x**2).mean() + 1e-5) * gain)
        x = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
        return np.asarray(x * gain + self.all[f"{name}.bias"])

    def out(self, il: int, y: Array, gate: Array | float) -> Array:
        ln = f"blk.{il}.time_mix_ln"
        y = (y - y.mean(1, keepdims=True)) / np.sqrt(y.var(1, keepdims=True) + 64e-5)
        return np.asarray((y.ravel() * self.all[f"{ln}.weight"] + self.all[f"{ln}.bias"]) * gate)

    def time6(self, il: int, x: Array, before: Array, state: Array) -> Array:
        """Data-dependent mixing, then the recurrence; changes `state` [head, value, key]."""
        t, sx = "time_mix_", before - x
        low = np.tanh(self.w(il, t + "w1") @ (x + sx * self.w(il, t + "lerp_x"))).reshape(5, -1)
        parts = {}
        for i, name in enumerate("wkvrg"):
            fused = self.all.get(f"blk.{il}.{t}lerp_fused.weight")
            own = self.w(il, f"{t}lerp_{name}") if fused is None else fused[i].ravel()
            parts[name] = x + sx * (own + self.w(il, t + "w2")[i] @ low[i])
        rate = self.w(il, t + "decay_w2") @ np.tanh(self.w(il, t + "decay_w1") @ parts["w"])
        w = np.exp(-np.exp(rate + self.w(il, t + "decay"))).reshape(-1, HEAD)
        r = self.linear(il, t + "receptance", parts["r"]).reshape(-1, HEAD)
        k, v = (
            np.repeat(y.reshape(-1, HEAD), len(r) * HEAD // len(y), axis=0)
            for y in (self.linear(il, t + name, parts[name[0]]) for name in ("key", "value"))
        )
        gate = self.linear(il, t + "gate", parts["g"])
        if self.qwen:
            state[:] = state * w[:, None, :] + v[:, :, None] * (k * (1 - w))[:, None, :]
            y = np.einsum("hvk,hk->hv", state, r) / np.sqrt(HEAD)
            return self.linear(il, t + "output", y.ravel() * sigmoid(gate))
        kv = v[:, :, None] * k[:, None, :]
        y = np.einsum("hvk,hk->hv", state + kv * self.w(il, t + "first")[:, None, :], r)
        state[:] = state * w[:, None, :] + kv
        return self.linear(il, t + "output", self.out(il, y, gate * sigmoid(gate)))

    def time7(self, il: int, x: Array, before: Array, state: Array) -> Array:
        """The delta rule with a decay and a rate for each element."""
        t, fused = "time_mix_", self.w(il, "time_mix_lerp_fused")
        xr, xw, xk, xv, xa, *xg = (x + (before - x) * row.ravel() for row in fused)
        low = {
            name: self.w(il, f"{t}{name}0")
            + self.w(il, f"{t}{name}2") @ inner(self.w(il, f"{t}{name}1") @ y)
            for name, y, inner in (("w", xw, np.tanh), ("a", xa, np.array), ("v", xv, np.array))
            if name != "v" or il
        }
        w = np.exp(-np.exp(-0.5) * sigmoid(low["w"])).reshape(-1, HEAD)
        a = sigmoid(low["a"])
        r = self.linear(il, t + "receptance", xr).reshape(-1, HEAD)
        k, v = self.linear(il, t + "key", xk), self.linear(il, t + "value", xv)
        if il == 0:
            self.first_v = v
        else:
            v = v + (self.first_v - v) * sigmoid(low["v"])
        v = v.reshape(-1, HEAD)
        kk = (k * self.w(il, t + "k_k")).reshape(-1, HEAD)
        kk /= np.linalg.norm(kk, axis=1, keepdims=True)
        k = (k * (1 + (a - 1) * self.w(il, t + "k_a"))).reshape(-1, HEAD)
        a = a.reshape(-1, HEAD)
        erased = np.einsum("hvk,hk->hv", state, kk)[:, :, None] * (kk * a)[:, None, :]
        state[:] = state * w[:, None, :] - erased + v[:, :, None] * k[:, None, :]
        y = np.einsum("hvk,hk->hv", state, r)
        y = self.out(il, y, 1.0).reshape(-1, HEAD)
        own = (r * k * self.w(il, t + "r_k").reshape(-1, HEAD)).sum(1, keepdims=True) * v
        y = (y + own).ravel()
        if xg:
            y = y * (self.w(il, t + "g2") @ sigmoid(self.w(il, t + "g1") @ xg[0]))
        return self.linear(il, t + "output", y)

    def channels(self, il: int, x: Array, before: Array) -> Array:
        c, sx = "channel_mix_", before - x
        inside = self.linear(il, c + "key", x + sx * self.w(il, c + "lerp_k"))
        y = self.linear(il, c + "value", squared_relu(inside))
        if self.seven:
            return y
        gate = self.linear(il, c + "receptance", x + sx * self.w(il, c + "lerp_r"))
        return np.asarray(y * sigmoid(gate))

    def gated(self, il: int, x: Array) -> Array:
        gate = self.linear(il, "ffn_gate", x)
        return self.linear(il, "ffn_down", gate * sigmoid(gate) * self.linear(il, "ffn_up", x))

    def logits(self, tokens: list[int]) -> Array:
        n_embd = self.all["token_embd.weight"].shape[1]
        states = np.zeros((self.n_layer, n_embd // HEAD, HEAD, HEAD))
        shifts = np.zeros((self.n_layer, 2, n_embd))
        rows = []
        for token in tokens:
            x = self.all["token_embd.weight"][token]
            x = x if self.qwen else self.norm("token_embd_norm", x)
            for il in range(self.n_layer):
                y = self.norm(f"blk.{il}.attn_norm", x)
                mix = self.time7 if self.seven else self.time6
                x = x + mix(il, y, shifts[il, 0], states[il])
                shifts[il, 0] = y
                y = self.norm(f"blk.{il}.{'ffn_norm' if self.qwen else 'attn_norm_2'}", x)
                x = x + (self.gated(il, y) if self.qwen else self.channels(il, y, shifts[il, 1]))
                shifts[il, 1] = y
            rows.append(self.all["output.weight"] @ self.norm("output_norm", x))
        return np.stack(rows)


@pytest.mark.parametrize("name", ["rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"])
def test_the_papers_equations(tmp_path: Path, name: str) -> None:
    arch, changes = OTHERS[name]
    meta = keys_of(arch, changes)
    tensors = made_up(configure(tmp_path, meta))
    got = context(write_model(tmp_path / "m.gguf", meta, tensors)).decode(TOKENS, outputs="all")
    plain = Plain(tensors, 3, "7" in name, name in ("rwkv6qwen2", "arwkv7"))
    want = plain.logits(TOKENS) + tensors.get("output.bias", np.float32(0))
    np.testing.assert_allclose(got, want, atol=2e-5 * np.abs(want).max(), rtol=0)


def test_results_are_halved(tmp_path: Path) -> None:
    """Norms do not see a factor: after halving, the same as before with what later layers add
    halved."""
    arch, changes = OTHERS["rwkv6 halved"]
    meta = keys_of(arch, changes | {"rescale_every_n_layers": 2})
    tensors = made_up(configure(tmp_path, meta))
    added = ("blk.2.time_mix_output", "blk.2.channel_mix_value")
    less = {n: a / np.float32(2) if n.startswith(added) else a for n, a in tensors.items()}
    free = meta | {"rwkv6.rescale_every_n_layers": 0}
    got, want, other = (
        context(write_model(tmp_path / "m.gguf", m, t)).decode(TOKENS)
        for m, t in ((meta, less), (free, tensors), (free, less))
    )
    np.testing.assert_allclose(got, want, atol=1e-3)
    assert np.abs(other - want).max() > 0.1
