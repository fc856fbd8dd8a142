"""Folders of models with towers for images: of transformers, with random weights."""

from __future__ import annotations

import ast
import json
import math
from collections import defaultdict
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.llm import hf_folders, vision_models
from tests.llm.vision_models import MEAN, STD

IMAGE = 399
"""The token that stands for a row of an image in transformers."""
TEXT = hf_folders.SHAPE | {"max_position_embeddings": 256}
SIZES = {
    "small": {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
              "num_attention_heads": 2, "patch_size": 4},
    "large": {"hidden_size": 48, "intermediate_size": 56, "num_hidden_layers": 3,
              "num_attention_heads": 3, "patch_size": 6},
}  # fmt: skip


def saved(model: Any, folder: Path, tokenizer: str, **processor: object) -> Any:
    """The model with other weights, saved with a tokenizer and the image processor's settings."""
    model = vision_models.randomised(model)
    model.save_pretrained(folder)
    hf_folders.save_tokenizer(tokenizer, folder)
    seen = {"image_mean": MEAN, "image_std": STD} | processor
    (folder / "preprocessor_config.json").write_text(json.dumps(seen))
    return model


def function_of(module: str, *names: str) -> Any:
    """The last of these functions and methods of an image processor of transformers, whose module
    needs a package that is not there."""
    spec = find_spec(f"transformers.models.{module}")
    assert spec is not None and spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text())
    found = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name in names]
    tree.body = list(found)
    space: dict[str, Any] = {
        "math": math, "torch": torch, "defaultdict": defaultdict, "lru_cache": lru_cache,
        "SizeDict": SimpleNamespace,
    }  # fmt: skip
    exec(compile(tree, spec.origin, "exec"), space)
    return space[names[-1]]


def kimi(size: str, folder: Path) -> Any:
    """Kimi K2.5, before DeepSeek-V3's text."""
    tower = {**SIZES[size], "pos_emb_height": 6, "pos_emb_width": 6}
    text = TEXT | hf_folders.LATENT | {"model_type": "deepseek_v3", "q_lora_rank": 24, "n_group": 1}
    config = transformers.Kimi_K25Config(
        text_config=text, vision_config=tower, projection_hidden_size=tower["hidden_size"],
        image_token_id=IMAGE, tie_word_embeddings=False, attn_implementation="eager",
    )  # fmt: skip
    model = transformers.Kimi_K25ForConditionalGeneration(config)
    return saved(model, folder, "qwen2", max_patches=400)


def step3(size: str, folder: Path) -> Any:
    """Step 3.7, whose images have 8 patches each side, and windows 4."""
    tower = {**SIZES[size], "image_size": 8 * SIZES[size]["patch_size"], "mlp_ratio": 1.5}
    config = transformers.Step3p7Config(
        text_config=hf_folders.MODELS["step3p7"][1] | {"max_position_embeddings": 256},
        vision_config=tower, image_token_id=IMAGE, attn_implementation="eager",
    )  # fmt: skip
    model = transformers.Step3p7ForConditionalGeneration(config)
    patch = SIZES[size]["patch_size"]
    return saved(model, folder, "qwen2", patch_size=4 * patch, max_image_size=30 * patch)


def nemotron(size: str, folder: Path) -> Any:
    """Nemotron's omni model without sound, whose largest image has 12 patches each side."""
    side, patch = SIZES[size]["hidden_size"], SIZES[size]["patch_size"]
    tower = {k: v for k, v in SIZES[size].items() if k != "intermediate_size"} | {
        "mlp_ratio": 1.5,
        "max_img_size": 12 * patch,
        "video_temporal_patch_size": 2,
    }
    config = transformers.NemotronH_Omni_Reasoning_V3_Config(
        text_config=hf_folders.NEMOTRON | {"model_type": "nemotron_h"}, vision_config=tower,
        vision_hidden_size=side, projector_hidden_size=40, audio_config=None, image_token_id=IMAGE,
        force_image_size=8 * patch, attn_implementation="eager",
    )  # fmt: skip
    model = transformers.NemotronH_Omni_Reasoning_V3(config)
    return saved(model, folder, "gpt2", min_num_patches=24, max_num_patches=200)


def llama4(size: str, folder: Path) -> Any:
    """Llama 4, whose tiles have 4 patches each side."""
    side, patch = SIZES[size]["hidden_size"], SIZES[size]["patch_size"]
    tower = {**SIZES[size], "image_size": 4 * patch, "intermediate_size": 4 * side,
             "projector_input_dim": 40, "projector_output_dim": 40,
             "vision_output_dim": 40}  # fmt: skip
    config = transformers.Llama4Config(
        text_config=hf_folders.MODELS["llama4"][1] | {"max_position_embeddings": 256},
        vision_config=tower, image_token_index=IMAGE, attn_implementation="eager",
    )  # fmt: skip
    model = transformers.Llama4ForConditionalGeneration(config)
    return saved(model, folder, "llama3", max_patches=6)


def minimax(size: str, folder: Path) -> Any:
    """MiniMax-M3."""
    config = transformers.MiniMaxM3VLConfig(
        text_config=hf_folders.MODELS["minimax m3"][1] | {
            "max_position_embeddings": 256, "bos_token_id": 0, "eos_token_id": 1},
        vision_config=SIZES[size] | {"image_size": 96}, projector_hidden_size=40,
        image_token_index=IMAGE, video_token_index=IMAGE - 1, attn_implementation="eager",
    )  # fmt: skip
    model = transformers.MiniMaxM3SparseForConditionalGeneration(config)
    return saved(model, folder, "gpt2", min_pixels=600, max_pixels=9000)


def exaone(size: str, folder: Path) -> Any:
    """EXAONE 4.5, whose windows have 4 or 8 patches each side; every second layer has none."""
    tower = {k: v for k, v in SIZES[size].items() if "num" not in k} | {
        "depth": 4,
        "num_heads": 4,
        "num_key_value_heads": 2,
        "out_hidden_size": 32,
        "patch_size": 28 if size == "small" else 14,
        "fullatt_block_indexes": [1, 3],
    }
    config = transformers.Exaone4_5_Config(
        text_config=hf_folders.MODELS["exaone4.5"][1] | {"max_position_embeddings": 256},
        vision_config=tower, image_token_id=IMAGE, attn_implementation="eager",
    )  # fmt: skip
    model = transformers.Exaone4_5_ForConditionalGeneration(config)
    return saved(model, folder, "gpt2", min_pixels=600, max_pixels=200000)


def as_kimi_vl(folder: Path) -> None:
    """Makes the folder of Kimi K2.5 a folder of Kimi-VL, whose names differ; images without
    frames have the same equations."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    vision = config["vision_config"]
    for name in ("height", "width"):
        vision[f"init_pos_emb_{name}"] = vision.pop(f"pos_emb_{name}")
    vision["model_type"] = "moonvit"
    config |= {"architectures": ["KimiVLForConditionalGeneration"], "model_type": "kimi_vl"}
    path.write_text(json.dumps(config))
    tensors: dict[str, torch.Tensor] = {}
    for name, values in load_file(folder / "model.safetensors").items():
        for old, new in (
            ("model.mm_projector", "mm_projector"), ("encoder.patch_embed", "patch_embed"),
            ("mm_projector.proj.0", "multi_modal_projector.linear_1"),
            ("mm_projector.proj.2", "multi_modal_projector.linear_2"),
            ("mm_projector.pre_norm", "multi_modal_projector.pre_norm"),
            ("pos_emb.position_embeddings", "pos_emb.weight"),
        ):  # fmt: skip
            name = name.replace(old, new)
        tensors[name] = values
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    path = folder / "preprocessor_config.json"
    seen = json.loads(path.read_text())
    seen["in_token_limit"] = seen.pop("max_patches")
    path.write_text(json.dumps(seen | {"pad_input": True}))
