"""Encoders of images of DeepSeek-OCR, DeepSeek-OCR 2 and Unlimited-OCR in folders.

`vision_config` has the sizes of both encoders, in published folders as `width` under the names of
the encoders, in the folders of transformers as `sam_config` and `encoder_config`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.frontends.hf.config import Config
from weft.frontends.hf.family import Named
from weft.frontends.hf.keys import Pairs
from weft.frontends.hf.towers.family import SIGLIP, TowerFamily, image_processor, part_of
from weft.frontends.hf.values import Values

_SAM_NAMES = {
    "sam_model.pos_embed": "v.sam.pos_embd.weight", "sam_model.patch_embed.proj":
    "v.sam.patch_embd", "norm1": "pre_ln", "norm2": "post_ln", "attn.qkv": "attn.qkv",
    "attn.proj": "attn.out", "attn.rel_pos_h": "attn.pos_h.weight",
    "attn.rel_pos_w": "attn.pos_w.weight", "mlp.lin1": "mlp.lin1", "mlp.lin2": "mlp.lin2",
    **{f"sam_model.neck.{i}": f"v.sam.neck.{i}" for i in range(4)},
    "sam_model.net_2": "v.sam.net_2", "sam_model.net_3": "v.sam.net_3",
    "projector.layers": "mm.model.fc", "image_newline": "v.image_newline",
    "view_seperator": "v.view_seperator",
}  # fmt: skip
_CLIP_NAMES = {
    "vision_model.embeddings.class_embedding": "v.class_embd",
    "vision_model.embeddings.patch_embedding": "v.patch_embd",
    "vision_model.embeddings.position_embedding": "v.position_embd",
    "vision_model.pre_layrnorm": "v.pre_ln", "self_attn.qkv_proj": "attn_qkv",
    **SIGLIP, **_SAM_NAMES,
}  # fmt: skip
_QWEN2_NAMES = {
    "qwen2_model.model.model.norm": "v.post_ln",
    **{f"qwen2_model.query_{n}": f"v.resample_query_{n}" for n in (768, 1024)},
    "input_layernorm": "ln1", "post_attention_layernorm": "ln2", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_out",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    **_SAM_NAMES,
}  # fmt: skip
_QUERIES = 256
"""Number of rows of the whole of an image that converters assume."""
_THETA = 1e6


def _object(c: Config, part: Mapping[str, Any], *keys: str) -> Mapping[str, Any] | None:
    """The first object of `keys` in a part of vision_config."""
    return next((part[key] for key in keys if isinstance(part.get(key), dict)), None)


def _count(c: Config, part: Mapping[str, Any], what: str, *keys: str, default: int = 0) -> int:
    """The first of `keys` as a count of 1 or more. Raises FormatError for another value."""
    value = next((part[key] for key in keys if part.get(key) is not None), default)
    if type(value) is not int or not 1 <= value < 1 << 31:
        raise c.bad(f"vision_config.{what}.{keys[0]}", f"is {value!r}, and must be 1 or more")
    return value


def _sam(c: Config) -> Mapping[str, Any]:
    """The sizes of SAM's encoder. Raises FormatError for layers that weft does not compute."""
    vision = part_of(c, "vision_config")
    width = vision.get("width")
    part = width if isinstance(width, dict) else vision
    sam = _object(c, part, "sam_vit_b", "sam_config")
    if sam is None:
        raise c.bad("vision_config", "has neither width.sam_vit_b nor sam_config")
    n = _count(c, sam, "sam_config", "num_hidden_layers", "layers")
    given = sam.get("global_attn_indexes", [2, 5, 8, 11])
    if not isinstance(given, list) or [il for il in given if il < n] != list(range(2, n, 3)):
        raise c.bad(
            "vision_config.global_attn_indexes", f"is {given!r}; weft computes every third layer"
        )
    for name in ("use_abs_pos", "use_rel_pos", "qkv_bias"):
        if not sam.get(name, True):
            raise c.bad(f"vision_config.sam_config.{name}", "must be true for this kind of tower")
    return sam


def _clip(c: Config) -> dict[str, int]:
    """Sizes of CLIP. Converters write the wrong width of feed-forward layers for published
    folders; the tensors tell the right one."""
    vision = part_of(c, "vision_config")
    width = vision.get("width")
    part = _object(c, width if isinstance(width, dict) else vision, "clip-l-14-224")
    own = part or _object(c, vision, "encoder_config")
    if own is None:
        raise c.bad("vision_config", "has neither width.clip-l-14-224 nor encoder_config")
    if own.get("hidden_act", "quick_gelu") != "quick_gelu":
        raise c.bad("vision_config.hidden_act", f"is {own['hidden_act']!r}, not 'quick_gelu'")
    heads = _count(c, own, "encoder_config", "num_attention_heads", "heads")
    wide = 4 * heads if part else _count(c, own, "encoder_config", "intermediate_size")
    return {
        "image_size": _count(c, own, "encoder_config", "image_size"),
        "patch_size": _count(c, own, "encoder_config", "patch_size"),
        "embedding_length": _count(c, own, "encoder_config", "hidden_size", "width"),
        "feed_forward_length": wide,
        "block_count": _count(c, own, "encoder_config", "num_hidden_layers", "layers"),
        "attention.head_count": heads,
    }


def _qwen2(c: Config) -> dict[str, int]:
    """Sizes of Qwen2; published folders name its width only."""
    vision = part_of(c, "vision_config")
    width = vision.get("width")
    part = _object(c, width if isinstance(width, dict) else vision, "qwen2-0-5b")
    own = _object(c, vision, "encoder_config")
    sam = _sam(c)
    if own is not None:
        rope = own.get("rope_parameters") or {}
        if rope.get("rope_theta", _THETA) != _THETA or rope.get("rope_type", "default") != (
            "default"
        ):
            raise c.bad(
                "vision_config.encoder_config.rope_parameters", f"is {rope!r}; weft computes the "
                f"rope_theta {_THETA:.0f}, which files do not say"
            )  # fmt: skip
        if own.get("hidden_act", "silu") != "silu":
            raise c.bad("vision_config.encoder_config.hidden_act", "must be 'silu'")
    elif part is None:
        raise c.bad("vision_config", "has neither width.qwen2-0-5b nor encoder_config")
    sizes = own if own is not None else vision

    def count(*keys: str, default: int) -> int:
        return _count(c, sizes, "encoder_config", *keys, default=0 if own else default)

    return {
        "image_size": _count(c, sam if own else vision, "sam_config", "image_size"),
        "patch_size": _count(c, sam if own else vision, "sam_config", "patch_size", default=16),
        "embedding_length": (
            _count(c, part, "qwen2-0-5b", "dim") if part else count("hidden_size", default=0)
        ),
        "feed_forward_length": count("intermediate_size", default=4864),
        "block_count": count("num_hidden_layers", "layers", default=24),
        "attention.head_count": count("num_attention_heads", default=14),
        "attention.head_count_kv": 2 if own is None else count("num_key_value_heads", default=0),
    }


def _keys(c: Config, projector: str, sizes: Mapping[str, int], most: int) -> Pairs:
    seen, sam = image_processor(c), _sam(c)
    yield "general.file_type", 0
    yield "has_vision_encoder", True
    yield "vision.projection_dim", c.n_embd
    for name, size in sizes.items():
        if not name.endswith("_kv"):
            yield f"vision.{name}", size
    for name in ("image_mean", "image_std"):
        values = seen.get(name, [0.5, 0.5, 0.5])
        if not isinstance(values, list) or len(values) != 3:
            raise c.bad(name, f"of the image processor is {values!r}; it must be three numbers")
        yield f"vision.{name}", np.array(values, np.float32)
    if not seen.get("crop_to_patches", True):
        raise c.bad("crop_to_patches", "of the image processor must be true; files do not say it")
    yield "projector_type", projector
    yield "vision.attention.layer_norm_epsilon", 1e-6
    yield "use_gelu", True
    scale = sizes["image_size"] // sizes["patch_size"] // round(_QUERIES**0.5)
    if scale not in (0, 4):
        yield "vision.projector.scale_factor", scale
    window = part_of(c, "vision_config").get("window_size", sam.get("window_size", 14))
    yield "vision.window_size", window
    yield "vision.preproc_min_tiles", seen.get("min_patches", 2)
    yield "vision.preproc_max_tiles", seen.get("max_patches", most)
    yield "vision.sam.block_count", _count(c, sam, "sam_config", "num_hidden_layers", "layers")
    yield "vision.sam.embedding_length", _count(c, sam, "sam_config", "hidden_size", "width")
    yield "vision.sam.head_count", _count(c, sam, "sam_config", "num_attention_heads", "heads")
    if "attention.head_count_kv" in sizes:
        yield "vision.attention.head_count_kv", sizes["attention.head_count_kv"]


def _change(c: Config, name: str, values: Values) -> Named:
    """The row that ends an image is a matrix of one."""
    if name == "v.view_seperator":
        values = values.reshaped(1, values.size)
    return ((name, values),)


_F32 = ("v.patch_embd", "v.sam.pos_embd", ".attn.pos_", ".neck.", ".net_")


def _with_clip(most: int) -> TowerFamily:
    return TowerFamily(
        lambda c: _keys(c, "deepseekocr", _clip(c), most),
        ("sam_model.", "vision_model.", "projector.", "image_newline", "view_seperator"),
        {"sam_model.blocks": "v.sam.blk", "vision_model.transformer.layers": "v.blk"},
        _CLIP_NAMES, _change, ("vision_model.embeddings.position_ids",), f32=_F32,
    )  # fmt: skip


_WITH_QWEN2 = TowerFamily(
    lambda c: _keys(c, "deepseekocr2", _qwen2(c), 6),
    ("sam_model.", "qwen2_model.", "projector.", "view_seperator"),
    {"sam_model.blocks": "v.sam.blk", "qwen2_model.model.model.layers": "v.blk"},
    _QWEN2_NAMES, _change, f32=_F32,
)  # fmt: skip
FAMILIES = {
    "DeepseekOCRForCausalLM": _with_clip(9),
    "UnlimitedOCRForCausalLM": _with_clip(32),
    "UnlimitedOcrForConditionalGeneration": _with_clip(32),
    "DeepseekOCR2ForCausalLM": _WITH_QWEN2,
    "DeepseekOcr2ForConditionalGeneration": _WITH_QWEN2,
}
