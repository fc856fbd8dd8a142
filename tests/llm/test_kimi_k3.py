"""Kimi K3, which transformers lacks, against its equations in float64 NumPy, as a file and as a
folder."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.llm.made_models import TOKENS, Tensors, configure, context, keys_of, made_up
from tests.llm.other_models import OTHERS
from tests.llm.plain_llama import Array, rms, softmax
from tests.llm.test_beside_numpy import Layer, linear, mixture, sigmoid, silu
from tests.llm.tiny import write_model
from weft.errors import FormatError
from weft.frontends.hf.convert import convert_folder
from weft.frontends.models import open_model
from weft.llm.weights import Row

ARCH, CHANGES = OTHERS["kimi k3"]
LAYERS = {"block_count": 5, "attention.head_count_kv": np.array([0, 1, 0, 1, 0], np.int32)}
N_HEAD, D, RANK, N_ROT, D_NOPE, D_V = 4, 5, 6, 4, 3, 3
BOUND, BETA, LINEAR = -0.2, 0.9, 0.7
WHOLE = {"ffn_routed_norm.weight", "exp_probs_b.bias", "attn_gate.weight", "output.weight"}


def wanted(row: Row) -> bool:
    return not row.optional or row.name.endswith(tuple(WHOLE))


def model(folder: Path, changes: dict[str, object]) -> tuple[dict[str, object], Tensors]:
    meta = keys_of(ARCH, CHANGES | LAYERS | changes)
    tensors = made_up(configure(folder, meta), wanted)
    for name, x in tensors.items():
        if name.endswith("ssm_a"):
            tensors[name] = -np.exp(x)
    return meta, tensors


def bent(gate: Array, up: Array, last: float) -> Array:
    up = last * np.tanh(up / last) if last else up
    return BETA * np.tanh(gate / BETA) * sigmoid(gate) * up


def delta(x: Array, layer: Layer, bound: float) -> Array:
    """A gated delta net with a state [d, d] for each head."""
    n = len(x)

    def turned(part: str) -> Array:
        y = np.concatenate([np.zeros((2, N_HEAD * D)), linear(x, layer, f"attn_{part}")])
        kernel = layer[f"ssm_conv1d_{part}"].reshape(-1, 3)
        return silu(sum(kernel[:, i] * y[i : i + n] for i in range(3))).reshape(n, N_HEAD, D)

    q, k, v = (turned(part) for part in "qkv")
    q, k = (y / np.sqrt((y * y).sum(-1, keepdims=True) + 1e-6) for y in (q, k))
    rate = linear(linear(x, layer, "ssm_f_a"), layer, "ssm_f_b") + layer["ssm_dt.bias"]
    rate = rate.reshape(n, N_HEAD, D)
    factors = layer["ssm_a"][:, None]
    g = bound * sigmoid(-factors * rate) if bound else factors * np.log1p(np.exp(rate))
    beta, state = sigmoid(linear(x, layer, "ssm_beta")), np.zeros((N_HEAD, D, D))
    out = np.empty((n, N_HEAD, D))
    for t in range(n):
        state = state * np.exp(g[t])[..., None]
        seen = np.einsum("hkv,hk->hv", state, k[t])
        state += np.einsum("hk,hv->hkv", k[t], beta[t][:, None] * (v[t] - seen))
        out[t] = np.einsum("hkv,hk->hv", state, q[t]) / math.sqrt(D)
    y = rms(out) * layer["ssm_norm"]
    y = y.reshape(n, -1) * sigmoid(linear(x, layer, "ssm_g"))
    return linear(y, layer, "attn_output")


def attention(x: Array, layer: Layer) -> Array:
    """Latent attention without positions, and a gate of each element."""
    n = len(x)
    name = "attn_q_b" if "attn_q_b" in layer else "attn_q"
    short = x if name == "attn_q" else rms(linear(x, layer, "attn_q_a")) * layer["attn_q_a_norm"]
    q = linear(short, layer, name).reshape(n, N_HEAD, D_NOPE + N_ROT)
    kv = linear(x, layer, "attn_kv_a_mqa")
    latent = rms(kv[:, :RANK]) * layer["attn_kv_a_norm"]
    k = np.einsum("hrd,nr->nhd", layer["attn_k_b"], latent)
    k = np.concatenate([k, np.repeat(kv[:, None, RANK:], N_HEAD, axis=1)], axis=-1)
    v = np.einsum("hdr,nr->nhd", layer["attn_v_b"], latent)
    scores = np.einsum("qhd,khd->hqk", q, k) / math.sqrt(D_NOPE + N_ROT)
    scores = np.where(np.tril(np.ones((n, n), bool)), scores, -np.inf)
    y = np.einsum("hqk,khd->qhd", softmax(scores), v).reshape(n, -1)
    return linear(y * sigmoid(linear(x, layer, "attn_gate")), layer, "attn_output")


def feed_forward(x: Array, layer: Layer, last: float) -> Array:
    def gated(end: str) -> Array:
        gate, up = (linear(x, layer, f"ffn_{part}{end}") for part in ("gate", "up"))
        return linear(bent(gate, up, last), layer, f"ffn_down{end}")

    if "ffn_gate_inp" not in layer:
        return gated("")
    small = linear(x, layer, "ffn_routed_down")
    scores = sigmoid(linear(x, layer, "ffn_gate_inp"))
    y = mixture(small, layer, scores, lambda g, u: bent(g, u, last))
    y = rms(y) * layer["ffn_routed_norm"]
    return linear(y, layer, "ffn_routed_up") + gated("_shexp")


def mixed(x: Array, kept: list[Array], score: Array) -> Array:
    if not kept:
        return x
    streams = np.stack([*kept, x])
    shares = softmax((rms(streams) * score).sum(-1).T)  # [n, streams]
    return np.einsum("ns,snd->nd", shares, streams)


def equations(meta: dict[str, Any], tensors: Tensors) -> Array:
    w = {n.removesuffix(".weight"): a.astype(np.float64) for n, a in tensors.items()}
    span, last = (meta[f"{ARCH}.{key}"] for key in
                  ("attn_res.block_size", "activation.situ_linear_beta"))  # fmt: skip
    bound = meta.get(f"{ARCH}.kda.gate_lower_bound", 0.0)
    x, kept = w["token_embd"][TOKENS], []
    for il in range(meta[f"{ARCH}.block_count"]):
        start = f"blk.{il}."
        layer = {n.removeprefix(start): a for n, a in w.items() if n.startswith(start)}
        y = mixed(x, kept, layer.get("attn_res_score", np.ones(1)))
        starts = span > 0 and il % span == 0
        if starts:
            kept.append(x)
        y = rms(y) * layer["attn_norm"]
        y = attention(y, layer) if "attn_k_b" in layer else delta(y, layer, bound)
        x = y if starts else x + y
        y = mixed(x, kept, layer.get("ffn_res_score", np.ones(1)))
        x = x + feed_forward(rms(y) * layer["ffn_norm"], layer, last)
    x = mixed(x, kept, w.get("output_res_score", np.ones(1)))
    return linear(rms(x) * w["output_norm"], w, "output")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"attn_res.block_size": 0, "activation.situ_linear_beta": 0.0},
        {"kda.gate_lower_bound": 0.0, "attn_res.block_size": 3},
    ],
    ids=["usual", "one stream", "no bound"],
)
def test_against_numpy(tmp_path: Path, changes: dict[str, object]) -> None:
    meta, tensors = model(tmp_path, changes)
    got = context(write_model(tmp_path / "m.gguf", meta, tensors)).decode(TOKENS, outputs="all")
    want = equations(meta, tensors)
    assert want.std() > 0.05
    np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max(), rtol=0)


NAMES = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    **{f"attn_{part}": f"self_attn.{part}_proj" for part in "qkv"},
    **{f"ssm_conv1d_{part}": f"self_attn.{part}_conv1d" for part in "qkv"},
    "attn_output": "self_attn.o_proj", "attn_gate": "self_attn.g_proj",
    "attn_q_a": "self_attn.q_a_proj", "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj", "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm", "ssm_beta": "self_attn.b_proj",
    "ssm_f_a": "self_attn.f_a_proj", "ssm_f_b": "self_attn.f_b_proj", "ssm_g": "self_attn.g_proj",
    "ssm_norm": "self_attn.o_norm", "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.*.w1", "ffn_up_exps":
    "block_sparse_moe.experts.*.w3", "ffn_down_exps": "block_sparse_moe.experts.*.w2",
    **{f"ffn_{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")},
    **{f"ffn_{part}_shexp": f"block_sparse_moe.shared_experts.{part}_proj"
       for part in ("gate", "up", "down")},
    "ffn_routed_down": "block_sparse_moe.routed_expert_down_proj",
    "ffn_routed_up": "block_sparse_moe.routed_expert_up_proj",
    "ffn_routed_norm": "block_sparse_moe.routed_expert_norm",
}  # fmt: skip
OWN = {"ssm_a": "self_attn.A_log", "ssm_dt.bias": "self_attn.dt_bias",
       "exp_probs_b.bias": "block_sparse_moe.gate.e_score_correction_bias"}  # fmt: skip
SCORES = {"attn_res_score": "self_attention_res", "ffn_res_score": "mlp_res",
          "output_res_score": "output_attn_res"}  # fmt: skip
OUTER = {"token_embd": "embed_tokens", "output_norm": "norm"}


def in_folder(tensors: Tensors) -> dict[str, Any]:
    """The tensors as folders have them."""
    out: dict[str, Any] = {}
    for name, x in tensors.items():
        found = re.fullmatch(r"(?:blk\.(\d+)\.)?(.+)", name)
        assert found is not None
        stem = found[2].removesuffix(".weight")
        at = "language_model.model." + (f"layers.{found[1]}." if found[1] else "")
        if stem in SCORES:
            out[f"{at}{SCORES[stem]}_norm.weight"] = np.full_like(x, 2.0)
            out[f"{at}{SCORES[stem]}_proj.weight"] = x[None] / 2
        elif stem == "attn_k_b":
            values = tensors[name.replace("attn_k_b", "attn_v_b")]
            both = np.concatenate([x.swapaxes(1, 2), values], axis=1)
            out[f"{at}self_attn.kv_b_proj.weight"] = both.reshape(-1, RANK)
        elif stem in OWN:
            out[at + OWN[stem]] = np.log(-x) if stem == "ssm_a" else x
        elif stem == "output":
            out["language_model.lm_head.weight"] = x
        elif stem.endswith("_exps"):
            for i, e in enumerate(x):
                out[f"{at}{NAMES[stem]}.weight".replace("*", str(i))] = e
        elif stem != "attn_v_b":
            shape = (-1, 1, 3) if "conv1d" in stem else x.shape
            out[f"{at}{NAMES.get(stem) or OUTER[stem]}.weight"] = x.reshape(shape)
    return {name: np.ascontiguousarray(x, np.float32) for name, x in out.items()}


def test_a_folder(tmp_path: Path) -> None:
    folders = pytest.importorskip("tests.llm.hf_folders")
    safetensors = pytest.importorskip("safetensors.numpy")
    meta, tensors = model(tmp_path, {})
    for name in ("token_embd.weight", "output.weight"):
        tensors[name] = np.resize(tensors[name], (400, tensors[name].shape[1]))
    for key in [key for key in meta if key.startswith("tokenizer.")]:
        del meta[key]
    meta[f"{ARCH}.vocab_size"] = 400
    want = context(write_model(tmp_path / "f.gguf", meta, tensors)).decode(TOKENS, outputs="all")
    safetensors.save_file(in_folder(tensors), tmp_path / "model.safetensors")
    text = {
        "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "vocab_size": 400,
        "num_key_value_heads": 4, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
        "num_hidden_layers": 5, "num_experts": 5, "num_experts_per_token": 2, "kv_lora_rank": 6,
        "q_lora_rank": meta.get(f"{ARCH}.attention.q_lora_rank"), "qk_nope_head_dim": 3,
        "qk_rope_head_dim": 4, "v_head_dim": 3, "moe_intermediate_size": 10, "mla_use_nope": True,
        "moe_renormalize": True, "routed_scaling_factor": 1.0, "num_shared_experts": 1,
        "moe_router_activation_func": "sigmoid", "first_k_dense_replace": 1, "eos_token_id": 7,
        "hidden_act": "situ", "activation_situ_beta": BETA, "activation_situ_linear_beta": LINEAR,
        "routed_expert_hidden_size": 6, "attn_res_block_size": 2, "linear_attn_config": {
            "short_conv_kernel_size": 3, "head_dim": 5, "gate_lower_bound": BOUND,
            "full_attn_layers": [2, 4], "kda_layers": [1, 3, 5], "num_heads": 4},
        "architectures": ["KimiLinearForCausalLM"],
    }  # fmt: skip
    path = tmp_path / "config.json"
    whole = {"architectures": ["KimiK3ForConditionalGeneration"], "text_config": text}
    path.write_text(json.dumps(whole))
    folders.save_tokenizer("gpt2", tmp_path)
    convert_folder(tmp_path, tmp_path / "m.gguf", "f32")
    for source in (tmp_path, tmp_path / "m.gguf"):
        file = open_model(source)
        assert file.architecture == ARCH and file.get_int("tokenizer.ggml.eos_token_id") == 7
        got = context(source).decode(TOKENS, outputs="all")
        np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max(), rtol=0)
    for key, value in (("mla_use_nope", False), ("hidden_act", "silu")):
        path.write_text(json.dumps(whole | {"text_config": text | {key: value}}))
        with pytest.raises(FormatError, match=key):
            open_model(tmp_path)
