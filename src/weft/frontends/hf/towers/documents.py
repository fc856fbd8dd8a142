"""Encoders of images of documents in folders: PaddleOCR-VL, HunyuanOCR and dots.ocr."""

from __future__ import annotations

from math import isqrt

from weft.frontends.hf.config import Config
from weft.frontends.hf.family import Named
from weft.frontends.hf.keys import Pairs
from weft.frontends.hf.towers.family import (
    ANY_SIZE,
    SIGLIP,
    TowerFamily,
    count_of,
    keys_and_eps,
    part_of,
    pixel_keys,
    vision_keys,
)
from weft.frontends.hf.values import Values

_PADDLE = {
    "visual.vision_model.embeddings.patch_embedding": "v.patch_embd",
    "visual.vision_model.embeddings.position_embedding": "v.position_embd",
    "visual.vision_model.post_layernorm": "v.post_ln",
    **{
        f"{start}.{name}": file
        for start in ("mlp_AR", "projector")
        for name, file in (
            ("pre_norm", "mm.input_norm"), ("linear_1", "mm.1"), ("linear_2", "mm.2"),
        )
    },
    **SIGLIP,
}  # fmt: skip


def _paddle_keys(c: Config) -> Pairs:
    limits = dict(pixel_keys(c, 384 * 384, 1536 * 1536))
    size = isqrt(limits["vision.image_max_pixels"])
    yield from vision_keys(c, "paddleocr", image_size=size, alone=True)
    yield from limits.items()
    yield "use_gelu", True


_MERGER = {
    "proj.0": "mm.0", "proj_conv": "mm.0", "proj.2": "mm.2", "proj_out": "mm.2",
    "mlp": "mm.model.fc", "image_newline": "v.image_newline", "image_begin": "mm.image_begin",
    "image_end": "mm.image_end", "image_sep": "v.view_seperator", "before_rms": "mm.pre_norm",
    "after_rms": "mm.post_norm",
}  # fmt: skip
_HUNYUAN = {
    **{
        f"{start}.{name}": file
        for start in ("vit.perceive", "vision_tower.patch_merger")
        for name, file in _MERGER.items()
    },
    **{
        f"{start}.embeddings.{name}": file
        for start in ("vit", "vision_tower")
        for name, file in (
            ("patch_embedding", "v.patch_embd"), ("position_embedding", "v.position_embd"),
        )
    },
    **SIGLIP,
    "self_attn.o_proj": "attn_out", "input_layernorm": "ln1", "post_attention_layernorm": "ln2",
    "mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down",
}  # fmt: skip


def _hunyuan_keys(c: Config) -> Pairs:
    vision = part_of(c, "vision_config")
    if vision.get("interpolate_mode", "bilinear") != "bilinear":
        raise c.bad("vision_config.interpolate_mode", "must be 'bilinear' for this kind of tower")
    size = vision.get("image_size") or vision.get("max_image_size") or 2048
    yield from vision_keys(c, "hunyuanvl", image_size=size, alone=True)
    yield "use_gelu", True
    yield "vision.spatial_merge_size", vision.get("spatial_merge_size", 2)
    yield from pixel_keys(c, 512 * 512, 2048 * 2048)


def _hunyuan_change(c: Config, name: str, values: Values) -> Named:
    """The first learned position is of no patch."""
    if name == "v.position_embd.weight":
        values = values.rows(1, values.shape[0])
    return ((name, values),)


_DOTS = {
    "vision_tower.patch_embed.patchifier.proj": "v.patch_embd",
    "vision_tower.patch_embed.patchifier.norm": "v.pre_ln",
    "vision_tower.post_trunk_norm": "mm.post_norm", "vision_tower.merger.ln_q": "mm.input_norm",
    "vision_tower.merger.mlp.0": "mm.0", "vision_tower.merger.mlp.2": "mm.2",
    "norm1": "ln1", "norm2": "ln2", "attn.qkv": "attn_qkv", "attn.proj": "attn_out",
    "mlp.fc1": "ffn_gate", "mlp.fc2": "ffn_down", "mlp.fc3": "ffn_up",
}  # fmt: skip


def _dots_keys(c: Config) -> Pairs:
    vision = part_of(c, "vision_config")
    if vision.get("temporal_patch_size", 1) != 1:
        raise c.bad("vision_config.temporal_patch_size", "must be 1 for this kind of tower")
    keys, eps = keys_and_eps(c, "dots_ocr", image_size=ANY_SIZE, default=1e-5)
    keys["vision.embedding_length"] = count_of(c, "vision_config", "embed_dim", "hidden_size")
    yield from keys.items()
    yield from pixel_keys(c, 56 * 56, 11_289_600)
    yield eps
    yield "vision.projector.scale_factor", count_of(c, "vision_config", "spatial_merge_size")
    yield "use_silu", True


FAMILIES = {
    "PaddleOCRVLForConditionalGeneration": TowerFamily(
        _paddle_keys, ("visual.", "mlp_AR.", "projector."),
        {"visual.vision_model.encoder.layers": "v.blk"}, _PADDLE,
        unused=(
            "visual.vision_model.head.", "visual.vision_model.embeddings.packing_position_embedding"
        ),
    ),
    "HunYuanVLForConditionalGeneration": TowerFamily(
        _hunyuan_keys, ("vit.", "vision_tower."),
        {"vit.layers": "v.blk", "vision_tower.layers": "v.blk"}, _HUNYUAN, _hunyuan_change,
        f32=("mm.0.", "mm.2."),
    ),
    "DotsOCRForCausalLM": TowerFamily(
        _dots_keys, ("vision_tower.",), {"vision_tower.blocks": "v.blk"}, _DOTS,
    ),
}  # fmt: skip
