"""LLaMA in plain float64 NumPy, straight from the papers: no cache, no ubatches, no graph.

It shares no code with weft; the tests compare the two."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def forward(meta: dict[str, Any], w: dict[str, Any], tokens: list[int]) -> Array:
    """Logits [n, n_vocab] of a text."""
    get = meta.get
    n_head, n_kv = get("llama.attention.head_count"), get("llama.attention.head_count_kv")
    d = get("llama.attention.key_length", get("llama.embedding_length") // n_head)
    w = {k: v.astype(np.float64) for k, v in w.items()}
    n = len(tokens)
    x = w["token_embd.weight"][tokens]
    mask = np.where(np.tril(np.ones((n, n), bool)), 0.0, -np.inf)
    distance = np.abs(np.arange(n)[:, None] - np.arange(n))
    alibi = get("llama.attention.max_alibi_bias", 0.0)  # for a power of two heads
    cos_sin = angles(meta, w, n, get("llama.rope.dimension_count", d))
    for il in range(get("llama.block_count")):
        layer = {
            k.removeprefix(f"blk.{il}.").removesuffix(".weight"): v
            for k, v in w.items()
            if k.startswith(f"blk.{il}.")
        }
        y = rms(x) * layer["attn_norm"]
        q = rotate((y @ layer["attn_q"].T).reshape(n, n_head, d), cos_sin)
        k = rotate((y @ layer["attn_k"].T).reshape(n, n_kv, d), cos_sin)
        v = (y @ layer["attn_v"].T).reshape(n, n_kv, d)
        heads = []
        for h in range(n_head):
            g = h // (n_head // n_kv)
            slope = 2 ** (-alibi * (h + 1) / n_head) if alibi else 0.0
            p = softmax(q[:, h] @ k[:, g].T / math.sqrt(d) + mask - slope * distance)
            heads.append(p @ v[:, g])
        x = x + np.concatenate(heads, axis=1) @ layer["attn_output"].T
        y = rms(x) * layer["ffn_norm"]
        if "ffn_gate_inp" in layer:
            x = x + experts(y, layer, get("llama.expert_used_count"))
        else:
            x = x + swiglu(y, layer["ffn_gate"], layer["ffn_up"], layer["ffn_down"])
    out = w.get("output.weight", w["token_embd.weight"])
    return (rms(x) * w["output_norm.weight"]) @ out.T


def rms(x: Array) -> Array:
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(1e-5))


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def swiglu(x: Array, gate: Array, up: Array, down: Array) -> Array:
    g = x @ gate.T
    return (g / (1 + np.exp(-g)) * (x @ up.T)) @ down.T


def experts(x: Array, layer: dict[str, Array], n_used: int) -> Array:
    probs = softmax(x @ layer["ffn_gate_inp"].T)
    out = np.zeros_like(x)
    for t, p in enumerate(probs):
        best = np.argsort(-p)[:n_used]
        for e in best:
            y = swiglu(
                x[t], layer["ffn_gate_exps"][e], layer["ffn_up_exps"][e], layer["ffn_down_exps"][e]
            )
            out[t] += p[e] / p[best].sum() * y
    return out


def angles(meta: dict[str, Any], w: dict[str, Any], n: int, n_rot: int) -> tuple[Array, Array]:
    """cos and sin [n, n_rot / 2], scaled as the metadata says."""
    base = meta.get("llama.rope.freq_base", 10000.0)
    kind = meta.get("llama.rope.scaling.type", "none")
    factor = meta.get("llama.rope.scaling.factor", 1.0)
    pair = np.arange(0, n_rot, 2)
    freq = base ** (-pair / n_rot)
    magnitude = 1.0
    if "rope_freqs.weight" in w:
        freq = freq / w["rope_freqs.weight"]
    if kind == "linear":
        freq = freq / factor
    elif kind == "yarn":
        n_orig = meta["llama.rope.scaling.original_context_length"]

        def turns_at(beta: float) -> float:  # the dimension that turns beta times in n_orig
            return n_rot * math.log(n_orig / (beta * 2 * math.pi)) / (2 * math.log(base))

        low = max(0, math.floor(turns_at(32.0)))
        high = min(n_rot - 1, math.ceil(turns_at(1.0)))
        ramp = np.clip((pair / 2 - low) / max(0.001, high - low), 0, 1)
        freq = freq / factor * ramp + freq * (1 - ramp)
        magnitude = 1 + 0.1 * math.log(factor)
    theta = np.arange(n)[:, None] * freq
    return np.cos(theta) * magnitude, np.sin(theta) * magnitude


def rotate(x: Array, cos_sin: tuple[Array, Array]) -> Array:
    """Adjacent pairs of x [n, heads, d], the first n_rot of them."""
    cos, sin = (c[:, None, :] for c in cos_sin)
    n_rot = 2 * cos.shape[-1]
    a, b = x[..., 0:n_rot:2], x[..., 1:n_rot:2]
    out = x.copy()
    out[..., 0:n_rot:2], out[..., 1:n_rot:2] = a * cos - b * sin, a * sin + b * cos
    return out
