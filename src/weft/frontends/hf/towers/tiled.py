"""Encoders in folders: of images in tiles (Idefics3, SmolVLM, InternVL, LFM2-VL), of images of
Gemma 4, and of sounds (Voxtral, Qwen2-Audio)."""

from __future__ import annotations

import math

import numpy as np

from weft.frontends.hf.config import Config
from weft.frontends.hf.family import Named
from weft.frontends.hf.keys import Pairs
from weft.frontends.hf.towers import conformers
from weft.frontends.hf.towers.family import (
    SIGLIP,
    TowerFamily,
    both,
    colours_first,
    part_of,
    vision_keys,
)
from weft.frontends.hf.values import Values

_IDEFICS3 = {
    "vision_model.embeddings.patch_embedding": "v.patch_embd",
    "vision_model.embeddings.position_embedding": "v.position_embd",
    "vision_model.post_layernorm": "v.post_ln",
    "connector.modality_projection.proj": "mm.model.fc",
    **SIGLIP,
}
_INTERNVL = {
    "vision_tower.embeddings.cls_token": "v.class_embd",
    "vision_tower.embeddings.position_embeddings": "v.position_embd.weight",
    "vision_tower.embeddings.patch_embeddings.projection": "v.patch_embd",
    "attention.q_proj": "attn_q", "attention.k_proj": "attn_k", "attention.v_proj": "attn_v",
    "attention.projection_layer": "attn_out", "attention.q_norm": "attn_q_norm",
    "attention.k_norm": "attn_k_norm", "layernorm_before": "ln1", "layernorm_after": "ln2",
    "lambda_1": "ls1.weight", "lambda_2": "ls2.weight", "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
    "multi_modal_projector.layer_norm": "mm.model.mlp.0",
    "multi_modal_projector.linear_1": "mm.model.mlp.1",
    "multi_modal_projector.linear_2": "mm.model.mlp.3",
}  # fmt: skip


def _idefics3_keys(c: Config) -> Pairs:
    smolvlm = part_of(c, "vision_config").get("model_type") == "smolvlm_vision"
    defaults = {"hidden_size": 1152, "intermediate_size": 3072, "num_attention_heads": 16}
    yield from vision_keys(c, "idefics3", defaults=defaults if smolvlm else {})
    yield "vision.projector.scale_factor", c.get("scale_factor", 2)
    yield "use_gelu", True
    size = c.json("preprocessor_config.json").get("size")
    longest = size.get("longest_edge") if isinstance(size, dict) else None
    if isinstance(longest, int):
        yield "vision.preproc_image_size", longest


def _internvl_keys(c: Config) -> Pairs:
    yield from vision_keys(c, "internvl")
    ratio = c.get("downsample_ratio", 0.5)
    if not isinstance(ratio, float | int) or not 0 < ratio <= 1:
        raise c.bad("downsample_ratio", f"is {ratio!r}, and must be a number up to 1")
    yield "vision.projector.scale_factor", int(1 / ratio)
    act = part_of(c, "vision_config").get("hidden_act", "gelu")
    yield ("use_silu" if act == "silu" else "use_gelu"), True
    for name in ("min", "max"):
        if c.get(f"{name}_dynamic_patch"):
            yield f"vision.preproc_{name}_tiles", c.count(f"{name}_dynamic_patch")


_LFM2 = {
    "embeddings.patch_embedding": "v.patch_embd",
    "embeddings.position_embedding": "v.position_embd",
    "post_layernorm": "v.post_ln",
}
_LFM2_NAMES = {
    **{
        f"vision_tower.{part}{name}": file
        for name, file in _LFM2.items() for part in ("", "vision_model.")
    },
    "multi_modal_projector.layer_norm": "mm.input_norm",
    "multi_modal_projector.linear_1": "mm.1", "multi_modal_projector.linear_2": "mm.2",
    **SIGLIP,
}  # fmt: skip


def _lfm2_keys(c: Config) -> Pairs:
    tower = part_of(c, "vision_config")
    patch = tower.get("patch_size", 16)
    side = round(tower.get("num_patches", 256) ** 0.5)  # of the learned positions
    defaults = {
        "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
        "num_attention_heads": 12, "patch_size": 16,
    }  # fmt: skip
    half = (0.5, 0.5, 0.5)
    yield from vision_keys(
        c, "lfm2", image_size=side * patch, mean=half, std=half, defaults=defaults
    )
    yield "vision.projector.scale_factor", c.get("downsample_factor", 2)
    yield "use_gelu", True


def _lfm2_change(c: Config, name: str, values: Values) -> Named:
    """Colours of a patch are outermost in files."""
    if name == "v.patch_embd.weight":
        values = colours_first(values)
    return ((name, values),)


_SMALL = TowerFamily(
    _idefics3_keys, ("vision_model.", "connector."), {"vision_model.encoder.layers": "v.blk"},
    _IDEFICS3,
)  # fmt: skip


# Gemma 4's tower for images in folders.

_MATRICES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_out", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip
_NAMES = {
    "vision_tower.patch_embedder.input_proj": "v.patch_embd",
    "vision_tower.patch_embedder.position_embedding_table": "v.position_embd.weight",
    "vision_tower.std_bias": "v.std_bias", "vision_tower.std_scale": "v.std_scale",
    "embed_vision.embedding_projection": "mm.input_projection",
    "input_layernorm": "ln1", "pre_feedforward_layernorm": "ln2",
    "post_attention_layernorm": "attn_post_norm", "post_feedforward_layernorm": "ffn_post_norm",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "layer_scalar": "out_scale.weight",
    **{f"{name}.linear": file for name, file in _MATRICES.items()},
    **{f"{name}.{end}": f"{file}.{end}" 
       for name, file in _MATRICES.items() for end in conformers.BOUNDS},
}  # fmt: skip


def _keys(c: Config) -> Pairs:
    # the size is of no use; converters write it
    yield from vision_keys(c, "gemma4v", image_size=224, mean=(0, 0, 0), std=(1, 1, 1))
    merge = c["vision_config"].get("pooling_kernel_size", 3)
    if merge != 3:
        yield "vision.projector.scale_factor", merge


_UNIFIED_NAMES = {
    "vision_embedder.patch_dense": "v.patch_embd", "vision_embedder.patch_ln1": "v.patch_norm.1",
    "vision_embedder.patch_ln2": "v.patch_norm.2", "vision_embedder.pos_norm": "v.patch_norm.3",
    "vision_embedder.pos_embedding": "v.position_embd.weight",
    "embed_vision.embedding_projection": "mm.input_projection",
}  # fmt: skip


def _unified_keys(c: Config) -> Pairs:
    """The 12B model's: it has no layers, for which converters write 0."""
    vision = part_of(c, "vision_config")
    yield "general.file_type", 0
    yield "has_vision_encoder", True
    yield "vision.projection_dim", c.n_embd
    yield "vision.image_size", 224  # of no use; converters write it
    yield "vision.patch_size", vision.get("patch_size", 16)
    yield "vision.embedding_length", vision.get("mm_embed_dim", 3840)
    for key in ("feed_forward_length", "block_count", "attention.head_count"):
        yield f"vision.{key}", 0
    yield "vision.image_mean", np.zeros(3, np.float32)
    yield "vision.image_std", np.ones(3, np.float32)
    yield "vision.projector_type", "gemma4uv"
    yield "vision.attention.layer_norm_epsilon", vision.get("rms_norm_eps", 1e-6)
    merge = vision.get("pooling_kernel_size", 3)
    if merge != 3:
        yield "vision.projector.scale_factor", merge


def _unified_change(c: Config, name: str, values: Values) -> Named:
    """Colours of a square are outermost in files, and so is the side of a position."""
    if name == "v.position_embd.weight":
        n, two, width = values.shape
        values = values.through(lambda x: x.transpose(1, 0, 2), (two, n, width))
    elif name.startswith(("v.patch_embd.weight", "v.patch_norm.1.")):
        n = values.shape[-1]
        p = math.isqrt(n // 3)
        values = values.through(
            lambda x: x.reshape(-1, p, p, 3).transpose(0, 3, 1, 2), values.shape
        )
    yield name, values


def _change(c: Config, name: str, values: Values) -> Named:
    """Numbers are vectors of one, and colours of a patch outermost."""
    if not values.shape:
        values = values.reshaped(1)
    if name == "v.patch_embd.weight":
        values = colours_first(values)
    return ((name, values),)


FAMILIES = {
    "Idefics3ForConditionalGeneration": _SMALL,
    "SmolVLMForConditionalGeneration": _SMALL,
    "InternVLForConditionalGeneration": TowerFamily(
        _internvl_keys, ("vision_tower.", "multi_modal_projector."),
        {"vision_tower.encoder.layer": "v.blk"}, _INTERNVL,
    ),
    "Lfm2VlForConditionalGeneration": TowerFamily(
        _lfm2_keys,
        ("vision_tower.", "multi_modal_projector."),
        dict.fromkeys(
            ("vision_tower.encoder.layers", "vision_tower.vision_model.encoder.layers"), "v.blk"
        ),
        _LFM2_NAMES,
        _lfm2_change,
        ("vision_tower.head.", "vision_tower.vision_model.head."),
    ),
    "Gemma4ForConditionalGeneration": both(TowerFamily(
        _keys, ("vision_tower.", "embed_vision."), {"vision_tower.encoder.layers": "v.blk"}, _NAMES,
        _change,
    ), conformers.GEMMA4),
    "Gemma4UnifiedForConditionalGeneration": both(TowerFamily(
        _unified_keys, ("vision_embedder.", "embed_vision."), {}, _UNIFIED_NAMES, _unified_change,
    ), conformers.GEMMA4_UNIFIED),
}  # fmt: skip
