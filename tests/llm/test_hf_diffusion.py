"""Folders of models that write by diffusion: transformers has none of their classes, so they are
its Qwen2, LLaMA and Qwen3 with every token visible, under the names of their makers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.llm import hf_folders as folders
from tests.llm.hf_folders import IDS, MOE, SHAPE, made_model, save_tokenizer
from weft.errors import FormatError
from weft.frontends.gguf import open_gguf
from weft.frontends.hf.convert import convert_folder
from weft.llm.model import Model

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

LLADA = {
    "model.embed_tokens": "model.transformer.wte", "model.norm": "model.transformer.ln_f",
    "lm_head": "model.transformer.ff_out", "model.layers": "model.transformer.blocks",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ff_norm",
    "self_attn.o_proj": "attn_out", "self_attn.": "", "mlp.gate_proj": "ff_proj",
    "mlp.down_proj": "ff_out", "mlp.": "",
}  # fmt: skip
LLADA_KEYS = {
    "d_model": 32, "n_heads": 4, "n_kv_heads": 2, "n_layers": 2, "mlp_hidden_size": 48,
    "max_sequence_length": 64, "vocab_size": 400, "rms_norm_eps": 1e-5, "rope_theta": 500.0,
    "block_type": "llama", "activation_type": "silu", "layer_norm_type": "rms", "alibi": False,
}  # fmt: skip
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}
# class: the class of transformers with the same blocks, its options, other keys of config.json, and
# whether a token is predicted in its own row
KINDS: dict[str, tuple[str, dict[str, Any], dict[str, Any], bool]] = {
    "DreamModel": ("Qwen2", SHAPE | ROPE, {"rope_theta": 500.0}, False),
    "LLaDAModelLM": ("Llama", SHAPE | ROPE, LLADA_KEYS, True),
    "LLaDAMoEModelLM": ("Qwen3Moe", SHAPE | MOE | ROPE | {"norm_topk_prob": False, "head_dim": 8},
                        {"rope_theta": 500.0, "expert_intermediate_size": 16}, True),
    "RND1": ("Qwen3Moe", SHAPE | MOE | ROPE | {"norm_topk_prob": True, "head_dim": 16},
             {"rope_theta": 500.0}, False),
}  # fmt: skip


def save(folder: Path, name: str, **changes: object) -> Any:
    """Saves a folder of the class `name`; returns the model of transformers."""
    kind, options, keys, _ = KINDS[name]
    model = made_model(kind, "ForCausalLM", options)
    tensors = dict(model.state_dict())
    config = json.loads(model.config.to_json_string())
    if name == "LLaDAModelLM":
        for old, new in LLADA.items():
            tensors = {key.replace(old, new): t for key, t in tensors.items()}
        config = {}
    for key in [key for key in tensors if ".experts." in key]:  # the makers have a tensor for each
        base, both = key.rpartition(".")[0], tensors.pop(key)
        for i, matrix in enumerate(both):
            names = ["gate_proj", "up_proj"] if key.endswith("gate_up_proj") else ["down_proj"]
            parts = zip(names, matrix.chunk(len(names)), strict=True)
            tensors |= {f"{base}.{i}.{part}.weight": t for part, t in parts}
    for key in ("rope_parameters", "layer_types"):
        config.pop(key, None)
    config |= keys | {"architectures": [name], "mask_token_id": 398} | changes
    safetensors.save_file({k: t.contiguous() for k, t in tensors.items()},
                          folder / "model.safetensors")  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    save_tokenizer("gpt2", folder)
    return model


@pytest.mark.parametrize("name", KINDS)
def test_folders_and_their_files_have_the_logits_of_transformers(tmp_path: Path, name: str) -> None:
    model = save(tmp_path, name)
    with torch.no_grad():
        seen = torch.zeros(1, 1, len(IDS), len(IDS))
        want = model(torch.tensor([IDS]), attention_mask=seen).logits[0].numpy()
    path = tmp_path / "m.gguf"
    convert_folder(tmp_path, path, "f32")
    for source in (tmp_path, path):
        got = folders.logits(source)
        np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max(), rtol=0)
        diffusion = Model.open(source).config.diffusion
        assert diffusion is not None and diffusion.shifts != KINDS[name][3]
    meta = open_gguf(path).metadata
    assert meta["tokenizer.ggml.mask_token_id"] == 398
    assert ("diffusion.shift_logits" in meta) == KINDS[name][3]


def test_settings_without_a_key_are_refused(tmp_path: Path) -> None:
    save(tmp_path, "LLaDAModelLM", alibi=True)
    with pytest.raises(FormatError, match="'alibi' is True, which must be False"):
        Model.open(tmp_path)
