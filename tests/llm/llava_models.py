"""Small models of LLaVA and Pixtral: of transformers, with random weights, and as two files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import transformers

from tests.llm import vision_models as models
from tests.llm.made_models import keys_of
from tests.llm.tiny import tokens, write_model

TEXT = models.TEXT | {"hidden_size": 32, "head_dim": 8}
BREAK, END = models.N_VOCAB - 2, models.N_VOCAB - 3
Made = tuple[Any, Path, Path]


def text_file(folder: Path, model: Any) -> Path:
    """Writes the text model; returns its path."""
    keys = keys_of("llama", {
        "context_length": 128, "block_count": 3, "embedding_length": 32,
        "rope.freq_base": 10000.0, "rope.dimension_count": 8,
    })  # fmt: skip
    names, _, types = tokens()
    names[BREAK], names[END] = "[IMG_BREAK]", "[IMG_END]"
    types[[BREAK, END]] = 3
    keys |= {"tokenizer.ggml.tokens": names, "tokenizer.ggml.token_type": types}
    tensors = models.text_tensors(model, models.LAYER)
    for name, array in tensors.items():
        if "attn_q." in name or "attn_k." in name:
            tensors[name] = paired(array, 8)
    return write_model(folder / "text.gguf", keys, tensors)


def paired(array: Any, d: int) -> Any:
    """Rows whose halves are rotated with one another, as neighbours."""
    return np.ascontiguousarray(
        array.reshape(-1, 2, d // 2, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
    )


def make_pixtral(folder: Path, merge: int) -> Made:
    """A Pixtral that joins squares of `merge` patches: the model, and its two files."""
    vision = {
        "model_type": "pixtral", "hidden_size": 16, "intermediate_size": 24,
        "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 48, "patch_size": 8,
        "hidden_act": "silu", "head_dim": 8,
    }  # fmt: skip
    shared: dict[str, Any] = {
        "text_config": transformers.MistralConfig(**TEXT), "vision_config": vision,
        "image_token_index": models.IMAGE, "vision_feature_layer": -1,
        "attn_implementation": "eager",
    }  # fmt: skip
    if merge > 1:
        config = transformers.Mistral3Config(**shared, spatial_merge_size=merge)
        model = transformers.Mistral3ForConditionalGeneration(config)
    else:
        config = transformers.LlavaConfig(**shared, vision_feature_select_strategy="full")
        model = transformers.LlavaForConditionalGeneration(config)
    model = models.randomised(model)
    rows: models.Tensors = {}
    for name, array in models.tower_tensors(model, 2, plain=True).items():
        turned = ".attn_q." in name or ".attn_k." in name
        rows[name] = paired(array, 8) if turned else array
    tower = models.write_tower(
        folder / "mmproj.gguf", "pixtral", rows,
        **{"clip.use_silu": True, "clip.vision.image_size": 48, "clip.vision.patch_size": 8,
           "clip.vision.embedding_length": 16, "clip.vision.feed_forward_length": 24,
           "clip.vision.block_count": 2, "clip.vision.attention.head_count": 2,
           "clip.vision.projection_dim": 32, "clip.vision.attention.layer_norm_epsilon": 1e-5}
        | ({"clip.vision.spatial_merge_size": merge} if merge > 1 else {}),
    )  # fmt: skip
    return model, text_file(folder, model), tower


def make_llava(folder: Path, *, swapped: bool, layers: list[int]) -> Made:
    """A LLaVA that reads these layers of its tower: the model, and its two files."""
    vision = transformers.CLIPVisionConfig(
        hidden_size=16, intermediate_size=24, num_hidden_layers=3, num_attention_heads=2,
        image_size=32, patch_size=8, projection_dim=20,
    )  # fmt: skip
    config = transformers.LlavaConfig(
        text_config=transformers.LlamaConfig(**TEXT), vision_config=vision,
        image_token_index=models.IMAGE, vision_feature_layer=[*layers] if layers else -2,
        attn_implementation="eager",
    )  # fmt: skip
    model = models.randomised(transformers.LlavaForConditionalGeneration(config))
    n_layer = max(layers or [2])
    rows: models.Tensors = {}
    for name, array in models.tower_tensors(model, 3).items():
        if name.startswith((f"v.blk.{n_layer}.", "v.post_ln")):
            continue  # not used
        name = name.replace("mm.1.", "mm.0.")
        if swapped and ".ffn_" in name:
            up = "ffn_up" in name
            name = name.replace(*("ffn_up", "ffn_down") if up else ("ffn_down", "ffn_up"))
        rows[name] = array
    keys: dict[str, Any] = {
        "clip.use_gelu": False, "clip.vision.image_size": 32, "clip.vision.patch_size": 8,
        "clip.vision.embedding_length": 16, "clip.vision.feed_forward_length": 24,
        "clip.vision.block_count": n_layer, "clip.vision.attention.head_count": 2,
        "clip.vision.projection_dim": 20, "clip.vision.attention.layer_norm_epsilon": 1e-5,
    }  # fmt: skip
    if layers:
        keys["clip.vision.feature_layer"] = np.array(layers, np.int32)
    tower = models.write_tower(folder / "mmproj.gguf", "mlp", rows, **keys)
    return model, text_file(folder, model), tower
