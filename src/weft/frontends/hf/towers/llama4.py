"""Encoders of images in folders of Llama 4 and MiniMax-M3."""

from __future__ import annotations

import numpy as np

from weft.frontends.hf.config import Config
from weft.frontends.hf.family import Named
from weft.frontends.hf.keys import Pairs
from weft.frontends.hf.towers.family import (
    SIGLIP,
    TowerFamily,
    count_of,
    image_processor,
    part_of,
    pixel_keys,
    vision_keys,
)
from weft.frontends.hf.towers.square import CLIP, HALF, frames
from weft.frontends.hf.values import Values

_LLAMA4 = {
    "vision_model.patch_embedding.linear": "v.patch_embd",
    "vision_model.class_embedding": "v.class_embd",
    "vision_model.positional_embedding_vlm": "v.position_embd.weight",
    "vision_model.layernorm_pre": "v.pre_ln", "vision_model.layernorm_post": "v.post_ln",
    "vision_model.vision_adapter.mlp.fc1": "mm.model.mlp.1",
    "vision_model.vision_adapter.mlp.fc2": "mm.model.mlp.2",
    "multi_modal_projector.linear_1": "mm.model.fc",
    **SIGLIP, "self_attn.o_proj": "attn_out", "input_layernorm": "ln1",
    "post_attention_layernorm": "ln2",
}  # fmt: skip


def _llama4_keys(c: Config) -> Pairs:
    vision = part_of(c, "vision_config")
    if vision.get("pixel_shuffle_ratio", 0.5) != 0.5:
        raise c.bad("vision_config.pixel_shuffle_ratio", "must be 0.5 for this kind of tower")
    if vision.get("hidden_act", "gelu") != "gelu":
        raise c.bad("vision_config.hidden_act", "must be 'gelu' for this kind of tower")
    theta = (vision.get("rope_parameters") or {}).get("rope_theta", vision.get("rope_theta", 10000))
    if theta != 10000:
        raise c.bad("vision_config.rope_theta", "must be 10000 for this kind of tower")
    seen = image_processor(c)
    if seen.get("resize_to_max_canvas"):
        raise c.bad("resize_to_max_canvas", "of the image processor must be false")
    colours = {name: seen.get(f"image_{name}", HALF[f"image_{name}"]) for name in ("mean", "std")}
    eps = vision.get("norm_eps", 1e-5)
    given = Config(c.folder, {**c, "vision_config": {**vision, "layer_norm_eps": eps}})
    yield from vision_keys(given, "llama4", alone=True, **colours)
    yield "vision.projector.scale_factor", 2
    yield "use_gelu", True
    if seen.get("max_patches", 16) != 16:
        yield "vision.preproc_max_tiles", seen["max_patches"]


_MINIMAX = {
    "vision_tower.vision_model.embeddings.patch_embedding": "v.patch_embd",
    "vision_tower.vision_model.pre_layrnorm": "v.pre_ln",
    "multi_modal_projector.linear_1": "mm.1", "multi_modal_projector.linear_2": "mm.2",
    "patch_merge_mlp.linear_1": "mm.merger.fc1", "patch_merge_mlp.linear_2": "mm.merger.fc2",
    **SIGLIP,
}  # fmt: skip


def _minimax_keys(c: Config) -> Pairs:
    vision = part_of(c, "vision_config")
    if vision.get("hidden_act", "gelu") != "gelu":
        raise c.bad("vision_config.hidden_act", "must be 'gelu' for this kind of tower")
    theta = (vision.get("rope_parameters") or {}).get("rope_theta", vision.get("rope_theta", 10000))
    if theta != 10000:
        raise c.bad("vision_config.rope_theta", "must be 10000 for this kind of tower")
    seen = image_processor(c)
    colours = {name: seen.get(f"image_{name}", CLIP[f"image_{name}"]) for name in ("mean", "std")}
    given = Config(c.folder, {**c, "vision_config": {"layer_norm_eps": 1e-5, **vision}})
    sizes = {"hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32,
             "num_attention_heads": 16, "image_size": 2016, "patch_size": 14}  # fmt: skip
    yield from vision_keys(given, "minimax_m3", defaults=sizes, alone=True, **colours)
    yield "use_gelu", True
    old = vision.get("img_token_compression_config") or {}
    merge = vision.get("spatial_merge_size", old.get("spatial_merge_size", 2))
    yield "vision.spatial_merge_size", merge
    square = (int(vision.get("patch_size", 14)) * int(merge)) ** 2
    for key, value in pixel_keys(c, 4 * square, 576 * square):
        if value != {"min": 4, "max": 576}[key.split("_")[1]] * square:
            yield key, value


def _minimax_change(c: Config, name: str, values: Values) -> Named:
    """Both halves of the part of a head that turns by time, height or width stand together."""
    if name == "v.patch_embd.weight":
        yield from frames(c, values)
        return
    if ".attn_q." in name or ".attn_k." in name:
        n_head = count_of(c, "vision_config", "num_attention_heads", default=16)
        d = values.shape[0] // n_head
        third = d // 3 // 2
        turned = np.arange(6 * third).reshape(2, 3, third).swapaxes(0, 1).reshape(-1)
        order = np.concatenate([turned, np.arange(6 * third, d)])
        rows = (np.arange(n_head)[:, None] * d + order).reshape(-1)
        values = values.taken(rows, shape=values.shape)
    yield name, values


FAMILIES = {
    **dict.fromkeys(
        ("MiniMaxM3VLForConditionalGeneration", "MiniMaxM3SparseForConditionalGeneration"),
        TowerFamily(
            _minimax_keys,
            ("vision_tower.", "multi_modal_projector.", "patch_merge_mlp."),
            {"vision_tower.vision_model.encoder.layers": "v.blk"},
            _MINIMAX,
            _minimax_change,
        ),
    ),
    "Llama4ForConditionalGeneration": TowerFamily(
        _llama4_keys,
        ("vision_model.", "multi_modal_projector."),
        {"vision_model.model.layers": "v.blk"},
        _LLAMA4,
    ),
}
