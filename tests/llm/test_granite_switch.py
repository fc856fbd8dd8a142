"""Granite Switch, which transformers lacks, against its equations in float64 NumPy, as a file and
as a folder."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.llm.made_models import TOKENS, Tensors, configure, context, keys_of, made_up
from tests.llm.plain_llama import Array, rms
from tests.llm.rare_models import RARE
from tests.llm.test_beside_numpy import Layer, attend, rotate, silu
from tests.llm.test_hf_made import halves
from tests.llm.tiny import write_model
from weft.errors import FormatError
from weft.frontends.hf.convert import convert_folder

ARCH, CHANGES = RARE["graniteswitch"]
SLOTS, INSTEAD = {255: 1, 270: 2, 5: 3}, {255: 3, 5: 7}
FUSED = {"attn_q": "qkv 0", "attn_k": "qkv 1", "attn_v": "qkv 2", "ffn_gate": "input 0",
         "ffn_up": "input 1", "attn_output": "o", "ffn_down": "output"}  # fmt: skip
MODULES = {"qkv": "self_attn.qkv_proj", "o": "self_attn.o_proj",
           "input": "shared_mlp.input_linear", "output": "shared_mlp.output_linear"}  # fmt: skip


def model(folder: Path, changes: dict[str, object]) -> tuple[dict[str, object], Tensors]:
    meta = keys_of(ARCH, CHANGES | changes)
    tensors = made_up(configure(folder, meta), lambda row: not row.optional)
    for name, x in tensors.items():
        if "lora" in name:
            x[0] = 0.0  # adapter 0 is none
    return meta, tensors


def equations(tensors: Tensors, tokens: list[int], n_layer: int = 2) -> Array:
    w = {n.removesuffix(".weight"): a.astype(np.float64) for n, a in tensors.items()}
    # the rounded mean of the adapters that are named up to each token
    named = [np.array([SLOTS[t] for t in tokens[: i + 1] if t in SLOTS])
             for i in range(len(tokens))]  # fmt: skip
    slots = [int(np.floor(ids.mean() + 0.5)) if len(ids) else 0 for ids in named]
    x = 2.0 * w["token_embd"][[INSTEAD.get(t, t) for t in tokens]]
    n = len(tokens)

    def linear(x: Array, layer: Layer, name: str, matrix: Array | None = None) -> Array:
        a, b = layer[f"{name}.lora_a"], layer[f"{name}.lora_b"]
        y = x @ (layer[name] if matrix is None else matrix).T
        return y + np.stack([b[s] @ (a[s] @ row) for s, row in zip(slots, x, strict=True)])

    for il in range(n_layer):
        start = f"blk.{il}."
        layer = {k.removeprefix(start): a for k, a in w.items() if k.startswith(start)}
        y = rms(x) * layer["attn_norm"]
        cut = np.split(layer["attn_qkv"], (16, 24))
        q, k, v = (linear(y, layer, f"attn_{part}", m).reshape(n, -1, 4)
                   for part, m in zip("qkv", cut, strict=True))  # fmt: skip
        q, k = rotate(q, 4, False), rotate(k, 4, False)
        x = x + 0.5 * linear(attend(q, k, v, 0.3).reshape(n, -1), layer, "attn_output")
        y = rms(x) * layer["ffn_norm"]
        gate, up = (linear(y, layer, f"ffn_{part}") for part in ("gate", "up"))
        x = x + 0.5 * linear(silu(gate) * up, layer, "ffn_down")
    return rms(x) * w["output_norm"] @ w["token_embd"].T / 3.0


@pytest.mark.parametrize("tokens", [TOKENS, [1, 250, 270, 251, 252], [1, 250, 251]])
def test_against_numpy(tmp_path: Path, tokens: list[int]) -> None:
    meta, tensors = model(tmp_path, {})
    path = write_model(tmp_path / "m.gguf", meta, tensors)
    want = equations(tensors, tokens)
    for batch in (len(tokens), 3):
        got = context(path, n_ubatch=batch).decode(tokens, outputs="all")
        np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max(), rtol=0)
    half = context(path, n_ubatch=3)
    half.decode(tokens[:2])  # the adapter is found again in the cache
    got = half.decode(tokens[2:], outputs="all")
    np.testing.assert_allclose(got, want[2:], atol=1e-4 * np.abs(want).max(), rtol=0)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"adapters.count": 2}, "token_ids_activate"),
        ({"adapters.count": 5000}, "adapters.count"),
        ({"adapters.token_ids_activate": np.array([5, 5, 6], np.int32)}, "different"),
        ({"adapters.token_ids_substitute": np.array([5, 4, 100000], np.int32)}, "below"),
    ],
)
def test_wrong_metadata(tmp_path: Path, changes: dict[str, object], match: str) -> None:
    with pytest.raises(FormatError, match=match):
        configure(tmp_path, keys_of(ARCH, CHANGES | changes))


def in_folder(tensors: Tensors) -> dict[str, Any]:
    """The tensors as folders have them."""
    out: dict[str, Any] = {}
    for name, x in tensors.items():
        found = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(\w+)", name)
        if found is None:
            out[{"token_embd.weight": "model.embed_tokens.weight",
                 "output_norm.weight": "model.norm.weight"}[name]] = x  # fmt: skip
            continue
        at, stem, kind = f"model.layers.{found[1]}.", found[2], found[3]
        if stem in ("attn_norm", "ffn_norm"):
            new = "input" if stem == "attn_norm" else "post_attention"
            out[f"{at}{new}_layernorm.weight"] = x
        elif stem == "attn_qkv":
            q, k, v = np.split(x, (16, 24))
            q, k = halves("attn_q.weight", q), halves("attn_k.weight", k)
            out[f"{at}{MODULES['qkv']}.base_layer.weight"] = np.concatenate([q, k, v])
        else:
            module, _, part = FUSED[stem].partition(" ")
            base = f"{at}{MODULES[module]}"
            if kind == "weight":
                new = f"{base}.base_layer.weight"
                out[new] = np.concatenate([out[new], x]) if new in out else x
                continue
            if kind == "lora_b" and stem in ("attn_q", "attn_k"):
                x = np.stack([halves(f"{stem}.weight", each) for each in x])
            end = f"lora_{kind[-1].upper()}" + (f"_slices.{part}" if part else "")
            out[f"{base}.{end}"] = x[1:, None]
    return {name: np.ascontiguousarray(x, np.float32) for name, x in out.items()}


def test_a_folder(tmp_path: Path) -> None:
    folders = pytest.importorskip("tests.llm.hf_folders")
    safetensors = pytest.importorskip("safetensors.numpy")
    meta, tensors = model(tmp_path, {})
    tensors = dict(sorted(tensors.items(), key=lambda pair: "ffn_up.w" in pair[0]))
    tensors["token_embd.weight"] = np.resize(tensors["token_embd.weight"], (400, 16))
    for key in [key for key in meta if key.startswith("tokenizer.")]:
        del meta[key]
    meta[f"{ARCH}.vocab_size"] = 400
    want = context(write_model(tmp_path / "f.gguf", meta, tensors)).decode(TOKENS, outputs="all")
    state = in_folder(tensors) | {"model.switch.adapter_token_ids": np.array([255.0], np.float32)}
    safetensors.save_file(state, tmp_path / "model.safetensors")
    config = {
        "architectures": ["GraniteSwitchForCausalLM"], "hidden_size": 16, "vocab_size": 400,
        "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 1000.0,
        "intermediate_size": 24, "shared_intermediate_size": 24, "num_local_experts": 0,
        "num_experts_per_tok": 2, "attention_multiplier": 0.3, "embedding_multiplier": 2.0,
        "residual_multiplier": 0.5, "logits_scaling": 3.0, "num_adapters": 3, "max_lora_rank": 2,
        "adapter_token_ids": [255, 270, 5], "adapter_substitute_token_ids": [3, 270, 7],
        "tie_word_embeddings": True,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    folders.save_tokenizer("gpt2", tmp_path)
    convert_folder(tmp_path, tmp_path / "m.gguf", "f32")
    for source in (tmp_path, tmp_path / "m.gguf"):
        got = context(source).decode(TOKENS, outputs="all")
        np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max(), rtol=0)
