"""Architectures that transformers lacks, against their equations in float64 NumPy: tiny models made
up from their weight tables."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.llm.made_models import EXPERTS, TOKENS, configure, context, keys_of, made_up
from tests.llm.other_models import PLAIN_MLA
from tests.llm.plain_llama import Array, rms, softmax
from tests.llm.rare_models import RARE
from tests.llm.tiny import write_model
from weft.llm.model import Model
from weft.llm.weights import Row

BASE = 1000.0
N_HEAD, N_KV = 4, 2

Layer = dict[str, Array]


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def linear(x: Array, layer: Layer, name: str) -> Array:
    return x @ layer[name].T + layer.get(f"{name}.bias", 0.0)


def layer_norm(x: Array, layer: Layer, name: str) -> Array:
    x = x - x.mean(axis=-1, keepdims=True)
    return rms(x) * layer[name] + layer.get(f"{name}.bias", 0.0)


def gated(x: Array, layer: Layer, act: Callable[[Array], Array] = silu, end: str = "") -> Array:
    inside = act(linear(x, layer, f"ffn_gate{end}")) * linear(x, layer, f"ffn_up{end}")
    return linear(inside, layer, f"ffn_down{end}")


def mixture(
    x: Array,
    layer: Layer,
    scores: Array,
    inside: Callable[[Array, Array], Array] = lambda g, u: silu(g) * u,
) -> Array:
    """The best two experts of each token by their scores, whose weights sum to 1."""
    out = np.zeros_like(x)
    for t, row in enumerate(scores):
        best = np.argsort(-(row + layer.get("exp_probs_b.bias", 0.0)))[:2]
        for e in best:
            y = inside(layer["ffn_gate_exps"][e] @ x[t], layer["ffn_up_exps"][e] @ x[t])
            out[t] += row[e] / row[best].sum() * (layer["ffn_down_exps"][e] @ y)
    return out


def rotate(x: Array, n_rot: int, halves: bool, base: float = BASE) -> Array:
    """The first n_rot elements of each head of x [n, heads, d], adjacent pairs or halves."""
    angle = np.arange(len(x))[:, None] * base ** (-np.arange(0, n_rot, 2) / n_rot)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    half = n_rot // 2
    first, second = (
        (slice(0, half), slice(half, n_rot)) if halves else (slice(0, n_rot, 2), slice(1, n_rot, 2))
    )
    out, a, b = x.copy(), x[..., first], x[..., second]
    out[..., first], out[..., second] = a * cos - b * sin, a * sin + b * cos
    return out


def attend(
    q: Array, k: Array, v: Array, scale: float = 0.0, *, window: int = 0, cap: float = 0.0,
    slopes: Array | None = None, causal: bool = True,
) -> Array:  # fmt: skip
    """Attention of q [n, heads, d] to k and v [n, kv heads, d]: [n, heads, d]."""
    n, heads, d = q.shape
    back = np.arange(n)[:, None] - np.arange(n)
    hidden = ((back < 0) & causal) | (back >= window if window else False)
    out = []
    for h in range(heads):
        g = h * k.shape[1] // heads
        s = q[:, h] @ k[:, g].T * (scale or 1 / math.sqrt(d))
        s = cap * np.tanh(s / cap) if cap else s
        s = s - slopes[h] * back if slopes is not None else s
        out.append(softmax(np.where(hidden, -np.inf, s)) @ v[:, g])
    return np.stack(out, axis=1)


def heads(x: Array, layer: Layer, n_head: int = N_HEAD, n_kv: int = N_KV) -> list[Array]:
    """Queries, keys and values of x."""
    sizes = zip("qkv", (n_head, n_kv, n_kv), strict=True)
    return [linear(x, layer, f"attn_{p}").reshape(len(x), n, -1) for p, n in sizes]


def turned(x: Array, layer: Layer, *, halves: bool = False, **options: Any) -> Array:
    """Rotary attention with its output projection."""
    q, k, v = heads(x, layer)
    q, k = (rotate(y, y.shape[-1], halves) for y in (q, k))
    return linear(attend(q, k, v, **options).reshape(len(x), -1), layer, "attn_output")


Block = Callable[[Array, Layer, int], Array]


def jais(x: Array, layer: Layer, il: int) -> Array:
    q, k, v = heads(layer_norm(x, layer, "attn_norm"), layer)
    slopes = 2.0 ** (-8.0 * np.arange(1, N_HEAD + 1) / N_HEAD)
    y = attend(q, k, v, 1 / q.shape[-1], slopes=slopes).reshape(len(x), -1)
    x = x + linear(y, layer, "attn_output")
    return x + gated(layer_norm(x, layer, "ffn_norm"), layer)


def arctic(x: Array, layer: Layer, il: int) -> Array:
    h = x + turned(rms(x) * layer["attn_norm"], layer)
    y = rms(x) * layer["ffn_norm_exps"]
    moe = mixture(y, layer, softmax(linear(y, layer, "ffn_gate_inp")))
    return h + gated(rms(h) * layer["ffn_norm"], layer) + moe


def grove(x: Array, layer: Layer, il: int) -> Array:
    """Two of six experts, and the small one of each pair, weighed alike."""
    q, k, v = heads(rms(x) * layer["attn_norm"], layer)
    q, k = rms(q) * layer["attn_q_norm"], rms(k) * layer["attn_k_norm"]
    q, k = (rotate(h, 4, True) for h in (q, k))
    x = x + linear(attend(q, k, v).reshape(len(x), -1), layer, "attn_output")
    y = rms(x) * layer["ffn_norm"]
    probabilities, out = softmax(linear(y, layer, "ffn_gate_inp")), np.zeros_like(x)
    for t, row in enumerate(probabilities):
        best = np.argsort(-row)[:2]
        for e in best:
            small = {f"ffn_{n}": layer[f"ffn_{n}_chexps"][e // 2] for n in ("gate", "up", "down")}
            large = {f"ffn_{n}": layer[f"ffn_{n}_exps"][e] for n in ("gate", "up", "down")}
            both = gated(y[t], large) + 0.4 * gated(y[t], small)
            out[t] += row[e] / row[best].sum() * both
    return x + out


def plamo3(x: Array, layer: Layer, il: int) -> Array:
    """The first of two layers sees 6 tokens and has a base of its own."""
    n, local = len(x), il == 0
    both = linear(rms(x) * layer["attn_norm"], layer, "attn_qkv")
    q, k, v = (part.reshape(n, -1, 4) for part in np.split(both, (16, 24), axis=1))
    q, k = rms(q) * layer["attn_q_norm"], rms(k) * layer["attn_k_norm"]
    q, k = (rotate(h, 4, True, 50.0 if local else BASE) for h in (q, k))
    y = attend(q, k, v, window=6 if local else 0).reshape(n, -1)
    x = x + rms(linear(y, layer, "attn_output")) * layer["post_attention_norm"]
    gate, up = np.split(linear(rms(x) * layer["ffn_norm"], layer, "ffn_up"), 2, axis=1)
    return x + rms(linear(silu(gate) * up, layer, "ffn_down")) * layer["post_ffw_norm"]


def llama(x: Array, layer: Layer, il: int) -> Array:
    x = x + turned(rms(x) * layer["attn_norm"], layer)
    return x + gated(rms(x) * layer["ffn_norm"], layer)


def dream(x: Array, layer: Layer, il: int, *, halves: bool = True) -> Array:
    """Tokens see those on both sides."""
    x = x + turned(rms(x) * layer["attn_norm"], layer, halves=halves, causal=False)
    return x + gated(rms(x) * layer["ffn_norm"], layer)


def rnd1(x: Array, layer: Layer, il: int, *, whole: bool = True) -> Array:
    """The same with normed heads and two of five experts, whose weights have the sum 1, if
    `whole`."""
    q, k, v = heads(rms(x) * layer["attn_norm"], layer)
    q, k = rms(q) * layer["attn_q_norm"], rms(k) * layer["attn_k_norm"]
    q, k = (rotate(y, y.shape[-1], True) for y in (q, k))
    x = x + linear(attend(q, k, v, causal=False).reshape(len(x), -1), layer, "attn_output")
    y = rms(x) * layer["ffn_norm"]
    scores = softmax(linear(y, layer, "ffn_gate_inp"))
    moe = mixture(y, layer, scores)
    return x + (moe if whole else moe * np.sort(scores)[:, -2:].sum(axis=1, keepdims=True))


def plamo(x: Array, layer: Layer, il: int) -> Array:
    y = rms(x) * layer["attn_norm"]
    return x + turned(y, layer, halves=True) + gated(y, layer)


def plm(x: Array, layer: Layer, il: int) -> Array:
    """4 heads of 3 elements and 4 that rotate; values of 3; latents of 6."""
    n, y = len(x), rms(x) * layer["attn_norm"]
    q = linear(y, layer, "attn_q").reshape(n, 4, 7)
    kv = linear(y, layer, "attn_kv_a_mqa")
    each = linear(rms(kv[:, :6]) * layer["attn_kv_a_norm"], layer, "attn_kv_b").reshape(n, 4, 6)
    q_pe = rotate(q[..., 3:], 4, False)
    k_pe = np.repeat(rotate(kv[:, None, 6:], 4, False), 4, axis=1)
    q, k = np.concatenate([q[..., :3], q_pe], -1), np.concatenate([each[..., :3], k_pe], -1)
    x = x + linear(attend(q, k, each[..., 3:]).reshape(n, -1), layer, "attn_output")
    y = linear(rms(x) * layer["ffn_norm"], layer, "ffn_up")
    return x + linear(np.maximum(y, 0) ** 2, layer, "ffn_down")


def smallthinker(x: Array, layer: Layer, il: int) -> Array:
    """The first of four layers sees everything and does not rotate, the others see 6 tokens."""
    scores = sigmoid(linear(x, layer, "ffn_gate_inp"))
    q, k, v = heads(rms(x) * layer["attn_norm"], layer)
    if il % 4:
        q, k = rotate(q, 4, True, 50.0), rotate(k, 4, True, 50.0)
    y = attend(q, k, v, window=6 if il % 4 else 0).reshape(len(x), -1)
    x = x + linear(y, layer, "attn_output")
    inside = lambda g, u: np.maximum(g, 0) * u  # noqa: E731
    return x + mixture(rms(x) * layer["ffn_norm"], layer, scores, inside)


def grok(x: Array, layer: Layer, il: int) -> Array:
    y = turned(rms(x) * layer["attn_norm"], layer, halves=True, scale=128**-0.5, cap=0.5)
    x = x + rms(y) * layer["attn_output_norm"]
    y = rms(x) * layer["ffn_norm"]
    moe = mixture(y, layer, softmax(linear(y, layer, "ffn_gate_inp")), lambda g, u: gelu(g) * u)
    if "ffn_up" in layer:
        moe = (moe + gated(y, layer, gelu)) / math.sqrt(2)
    return x + rms(moe) * layer["layer_output_norm" if "ffn_up" in layer else "post_ffw_norm"]


def step35(x: Array, layer: Layer, il: int) -> Array:
    """Two of four layers see 6 tokens, have half as many heads, and rotate whole heads of 8."""
    y, local = rms(x) * layer["attn_norm"], il % 2 == 1
    q, k, v = heads(y, layer, *((2, 1) if local else (4, 2)))
    q, k = rms(q) * layer["attn_q_norm"], rms(k) * layer["attn_k_norm"]
    q, k = (rotate(h, 8, True, 50.0) if local else rotate(h, 4, True) for h in (q, k))
    out = (
        attend(q, k, v, window=6 if local else 0)
        * sigmoid(linear(y, layer, "attn_gate"))[..., None]
    )
    x = x + linear(out.reshape(len(x), -1), layer, "attn_output")
    y = rms(x) * layer["ffn_norm"]
    if "ffn_up" in layer:
        return x + gated(y, layer)
    routed, always = ((0.3, 0.0), (0.3, 0.2))[il - 2]
    scores = sigmoid(linear(y, layer, "ffn_gate_inp"))
    moe = mixture(y, layer, scores, lambda g, u: limited(g, u, routed))
    g, u = linear(y, layer, "ffn_gate_shexp"), linear(y, layer, "ffn_up_shexp")
    return x + 1.5 * moe + linear(limited(g, u, always), layer, "ffn_down_shexp")


def spark(x: Array, layer: Layer, il: int) -> Array:
    """The second of two layers sees 6 tokens and rotates whole heads, the first one half."""
    y, local = rms(x) * layer["attn_norm"], il == 1
    q, k, v = heads(y, layer)
    q, k = (rotate(h, 4, True, 50.0) if local else rotate(h, 2, True) for h in (q, k))
    out = (
        attend(q, k, v, window=6 if local else 0)
        * sigmoid(linear(y, layer, "attn_gate"))[..., None]
    )
    x = x + linear(out.reshape(len(x), -1), layer, "attn_output")
    return x + gated(rms(x) * layer["ffn_norm"], layer, gelu)


def maple(x: Array, layer: Layer, il: int) -> Array:
    """The second of two layers sees 6 tokens and rotates, the first one has a limit of 0.3."""
    q, k, v = heads(rms(x) * layer["attn_norm"], layer)
    q, k = rms(q) * layer["attn_q_norm"], rms(k) * layer["attn_k_norm"]
    q, k = (rotate(h, 4, True, 50.0) if il == 1 else h for h in (q, k))
    y = attend(q, k, v, window=6 if il == 1 else 0).reshape(len(x), -1)
    x, limit = x + linear(y, layer, "attn_output"), 0.3 if il == 0 else np.inf
    y = rms(x) * layer["ffn_norm"]

    def inside(g: Array, u: Array) -> Array:
        return silu(np.minimum(g, limit)) * np.clip(u, -limit, limit)

    return x + mixture(y, layer, softmax(linear(y, layer, "ffn_gate_inp")), inside)


def muse(x: Array, layer: Layer, il: int) -> Array:
    """The last of four layers sees everything and does not rotate, the others see 6 tokens."""
    x = rms(x) if il == 0 else x
    y = rms(x) * layer["attn_norm"]
    q, k, v = heads(y, layer)
    q, k = rms(q) * layer["attn_q_norm"], rms(k) * layer["attn_k_norm"]
    q, k = (rotate(h, 4, False, 50.0) if il % 4 < 3 else h for h in (q, k))
    out = attend(q, k, v, window=6 if il % 4 < 3 else 0).reshape(len(x), -1)
    out = linear(out * sigmoid(linear(y, layer, "attn_gate")), layer, "attn_output")
    x = x + small_rms(out) * layer["post_attention_norm"]
    y = gated(rms(x) * layer["ffn_norm"], layer)
    return x + small_rms(y) * layer["post_ffw_norm"]


def small_rms(x: Array) -> Array:
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-8)


def limited(gate: Array, up: Array, limit: float) -> Array:
    limit = limit or np.inf
    return np.minimum(silu(gate), limit) * np.clip(up, -limit, limit)


def gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


STEP: dict[str, object] = EXPERTS | {
    "block_count": 4,
    "attention.head_count": np.array([4, 2, 4, 2], np.int32),
    "attention.head_count_kv": np.array([2, 1, 2, 1], np.int32),
    "attention.key_length": 8,
    "attention.value_length": 8,
    "attention.sliding_window": 6,
    "attention.sliding_window_pattern": np.array([False, True] * 2),
    "rope.freq_base_swa": 50.0,
    "expert_shared_feed_forward_length": 12,
    "expert_weights_norm": True,
    "expert_weights_scale": 1.5,
    "leading_dense_block_count": 2,
    "swiglu_clamp_exp": np.array([0, 0, 0.3, 0.3], np.float32),
    "swiglu_clamp_shexp": np.array([0, 0, 0, 0.2], np.float32),
}
THINKER: dict[str, object] = EXPERTS | {
    "block_count": 5,
    "attention.sliding_window": 6,
    "rope.freq_base_swa": 50.0,
    "expert_gating_func": 2,
}
SECOND: dict[str, object] = {
    "attention.sliding_window": 6,
    "attention.sliding_window_pattern": np.array([False, True]),
    "rope.freq_base_swa": 50.0,
}
MUSE: dict[str, object] = {
    "block_count": 5,
    "attention.sliding_window": 6,
    "rope.freq_base_swa": 50.0,
    "final_logit_softcapping": 3.0,
    "logit_scale": 0.5,
}
GROK: dict[str, object] = EXPERTS | {
    "attn_logit_softcapping": 0.5,
    "final_logit_softcapping": 3.0,
    "embedding_scale": 2.0,
    "logit_scale": 0.5,
}

# name: the block in NumPy, its architecture and metadata besides that of a tiny llama
MODELS: dict[str, tuple[Block, str, dict[str, object]]] = {
    "dream": (dream, "dream", {"attention.causal": False}),
    "llada": (partial(dream, halves=False), "llada", {}),
    "llada-moe": (partial(rnd1, whole=False), "llada-moe", EXPERTS),
    "rnd1": (rnd1, "rnd1", EXPERTS),
    "jais": (jais, "jais", {"attention.max_alibi_bias": 8.0}),
    "arctic": (arctic, "arctic", EXPERTS | {"expert_feed_forward_length": 0}),
    "nanbeige": (llama, "nanbeige", {"num_loops": 3}),
    "nanbeige, no norm": (llama, "nanbeige", {"num_loops": 2, "skip_loop_final_norm": True}),
    "nanbeige, one run": (llama, "nanbeige", {}),
    "plamo": (plamo, "plamo", {}),
    "plm": (plm, "plm", PLAIN_MLA),
    "plamo3": (plamo3, "plamo3", RARE["plamo3"][1]),
    "grovemoe": (grove, "grovemoe", RARE["grovemoe"][1]),
    "smallthinker": (smallthinker, "smallthinker", THINKER),
    "grok": (grok, "grok", GROK),
    "grok dense": (grok, "grok", GROK),
    "step35": (step35, "step35", STEP),
    "spark2_5": (
        spark,
        "spark2_5",
        SECOND | {"rope.dimension_count": 2, "rope.dimension_count_swa": 4},
    ),
    "muse-glimmer": (muse, "muse-glimmer", MUSE),
    "maple": (
        maple,
        "maple",
        EXPERTS | SECOND | {"swiglu_clamp_exp": np.array([0.3, 0], np.float32)},
    ),
}
OPTIONAL = {
    "jais": (".bias",),
    "grok dense": (
        "ffn_gate.weight",
        "ffn_up.weight",
        "ffn_down.weight",
        "layer_output_norm.weight",
    ),
    "step35": ("norm.weight", "exp_probs_b.bias"),
}

"""Ends of the names of optional tensors that a model is made with, besides the output's."""


def equations(name: str, meta: dict[str, Any], tensors: dict[str, Any]) -> Array:
    """Logits [n, n_vocab] of TOKENS."""
    block, arch, _ = MODELS[name]
    w = {n.removesuffix(".weight"): a.astype(np.float64) for n, a in tensors.items()}
    runs, normed = meta.get(f"{arch}.num_loops", 1), "no norm" not in name
    norm = layer_norm if arch == "jais" else lambda x, w, n: rms(x) * w[n]
    x = w["token_embd"][TOKENS] * meta.get(f"{arch}.embedding_scale", 1.0)
    for run in range(runs):
        for il in range(meta[f"{arch}.block_count"]):
            start = f"blk.{il}."
            layer = {n.removeprefix(start): a for n, a in w.items() if n.startswith(start)}
            x = block(x, layer, il)
        x = norm(x, w, "output_norm") if normed or run == runs - 1 else x
    logits = linear(x, w, "output") * meta.get(f"{arch}.logit_scale", 1.0)
    cap = meta.get(f"{arch}.final_logit_softcapping", 0.0)
    return cap * np.tanh(logits / cap) if cap else logits


def wanted(name: str, row: Row) -> bool:
    """True for the tensors that a model is made with."""
    ends = ("output.weight", *OPTIONAL.get(name, ()))
    if name == "plamo3" and ("qkv.weight" in row.name or "attn_qkv" in row.unless):
        return not row.unless
    if row.unless.endswith(ends):
        return False
    return not row.optional or ("qkv" not in row.name and row.name.endswith(ends))


def test_talkie(tmp_path: Path) -> None:
    """Its layers read the embeddings, too."""
    meta = keys_of("talkie", {"logit_scale": 0.5})
    tensors = made_up(configure(tmp_path, meta), lambda row: wanted("talkie", row))
    w = {n.removesuffix(".weight"): a.astype(np.float64) for n, a in tensors.items()}
    x = first = rms(w["token_embd"][TOKENS])
    for il in range(2):
        start = f"blk.{il}."
        layer = {n.removeprefix(start): a for n, a in w.items() if n.startswith(start)}
        q, k, v = heads(rms(x), layer)
        q, k = (rms(rotate(h, 4, True)) for h in (q, k))
        y = attend(q * layer["attn_q_norm"], k, v).reshape(len(x), -1)
        x = x + linear(y, layer, "attn_output")
        x = x + gated(rms(x), layer) + first * layer["layer_output_scale"]
    same(tmp_path, meta, tensors, 0.5 * linear(rms(x), w, "output"))


def same(tmp_path: Path, meta: dict[str, Any], tensors: dict[str, Any], want: Array) -> None:
    """Holds weft's logits of TOKENS to those that are wanted, at once and, where tokens see those
    before them alone, one by one."""
    assert want.std() > 0.1
    path = write_model(tmp_path / "m.gguf", meta, tensors)
    second = {"n_ubatch": 1} if Model.open(path).config.causal else {}
    for options in ({}, {"flash": False, **second}):
        got = context(path, **options).decode(TOKENS, outputs="all")
        np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max(), rtol=0)


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_the_equations(tmp_path: Path, name: str) -> None:
    _, arch, changes = MODELS[name]
    meta = keys_of(arch, changes)
    tensors = made_up(configure(tmp_path, meta), lambda row: wanted(name, row))
    same(tmp_path, meta, tensors, equations(name, meta, tensors))
