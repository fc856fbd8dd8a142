"""Towers for images with one size of picture or Qwen's windows, in folders.

CLIP (LLaVA), SigLIP (Gemma 3), Pixtral's, and the towers of Qwen2-VL, Qwen2.5-VL and Qwen3-VL. The
`Config` of a tower has the values of `vision_config`, and some of the projector's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from weft.errors import FormatError
from weft.frontends.hf.config import Config
from weft.frontends.hf.family import Named, in_order
from weft.frontends.hf.keys import Pairs
from weft.frontends.hf.towers.family import TowerFamily, image_processor, part_of, pixel_keys
from weft.frontends.hf.values import Values
from weft.records import dataclass

CLIP = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
HALF = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}

_NAMES = {
    "embeddings.patch_embedding": "v.patch_embd", "patch_conv": "v.patch_embd",
    "patch_embed.proj": "v.patch_embd", "embeddings.class_embedding": "v.class_embd",
    "embeddings.position_embedding": "v.position_embd", "pos_embed": "v.position_embd",
    "pre_layrnorm": "v.pre_ln", "ln_pre": "v.pre_ln", "post_layernorm": "v.post_ln",
    "mm_input_projection": "mm.input_projection", "mm_soft_emb_norm": "mm.soft_emb_norm",
    "norm": "mm.input_norm", "patch_merger.merging_layer": "mm.patch_merger",
    "merger.ln_q": "v.post_ln", "merger.norm": "v.post_ln", "merger.mlp.0": "mm.0",
    "merger.mlp.2": "mm.2", "merger.linear_fc1": "mm.0", "merger.linear_fc2": "mm.2",
    "linear_1": "mm.1", "linear_2": "mm.2",
}  # fmt: skip
"""Names in a file of tensors outside the layers, without `.weight` and `.bias`."""
_LAYER_NAMES = {
    "layer_norm1": "ln1", "layer_norm2": "ln2", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.out_proj": "attn_out",
    "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down",
    "attention_norm": "ln1", "ffn_norm": "ln2", "attention.q_proj": "attn_q",
    "attention.k_proj": "attn_k", "attention.v_proj": "attn_v", "attention.o_proj": "attn_out",
    "feed_forward.gate_proj": "ffn_gate", "feed_forward.up_proj": "ffn_up",
    "feed_forward.down_proj": "ffn_down",
    "norm1": "ln1", "norm2": "ln2", "attn.qkv": "attn_qkv", "attn.proj": "attn_out",
    "attn.q": "attn_q", "attn.k": "attn_k", "attn.v": "attn_v",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "mlp.linear_fc1": "ffn_up", "mlp.linear_fc2": "ffn_down",
}  # fmt: skip
"""Names of a layer's tensors, without `v.blk.N.` in front."""
_STARTS = re.compile(
    r"(?:model\.)?(?:vision_tower|visual|multi_modal_projector|vision_encoder|vision_projection)\.(?:vision_model\.)?"
    r"(?:encoder\.|transformer\.)?(.+)"
)
_LAYER = re.compile(r"(?:layers|blocks)\.(\d+)\.(.+)")
_DEEP = re.compile(r"deepstack_merger_list\.(\d+)\.(?:linear_)?(.+)")
_PROJECTOR = ("vision_feature_layer", "vision_feature_select_strategy", "image_grid_pinpoints",
              "mm_tokens_per_image", "spatial_merge_size", "projector_hidden_act")  # fmt: skip
"""Values outside `vision_config` that belong to the tower."""
_UNUSED = ("head.", "embeddings.position_ids", "rotary_pos_emb.")


def _own(c: Config) -> tuple[_Kind, Config]:
    """The kind and the configuration of the tower of a folder. Raises FormatError for a kind that
    is not known."""
    vision = dict(part_of(c, "vision_config"))
    name = str(vision.get("model_type") or _USUAL[c.cls])
    name = _OTHER_NAMES.get(name, name)
    kind = (_LLAVA_KINDS if c.cls.startswith("Llava") else _KINDS).get(name)
    if kind is None:
        raise c.bad(
            "vision_config.model_type", f"is {name!r}; known towers are {', '.join(_KINDS)}"
        )
    own = {key: c[key] for key in _PROJECTOR if key in c} | vision
    own["projection_dim"] = c.n_embd
    if c.cls.startswith("LlavaNext"):
        own["image_grid_pinpoints"] = c.get("image_grid_pinpoints") or _SHAPES
    elif c.cls.startswith("Llava") and c.get("image_grid_pinpoints"):
        raise c.bad(
            "image_grid_pinpoints", "means tiles, which LlavaNextForConditionalGeneration has"
        )
    if c.cls.startswith("LightOn"):
        own = {"spatial_merge_size": 2, **own, "projector": "lightonocr"}
    if "depth" in vision:
        own["num_hidden_layers"] = vision["depth"]
    return kind, Config(c.folder, own, kind.defaults)


def _file_keys(c: Config) -> Pairs:
    """All keys of a file, without `clip.` in front."""
    kind, own = _own(c)
    yield from _common(own)
    yield from kind.keys(own)


class _Square(TowerFamily):
    """Towers whose tensors depend on `vision_config`."""

    def tensors(self, c: Config, stored: Mapping[str, Values]) -> Iterator[tuple[str, Values]]:
        kind, own = _own(c)
        for full, values in stored.items():
            if full.removeprefix("model.") == "image_newline":
                yield "v.image_newline", values
            found = _STARTS.fullmatch(full)
            if found is not None and not found[1].startswith(_UNUSED):
                yield from kind.change(own, found[1], values)


# --- keys -------------------------------------------------------------------------------------


def _common(c: Config) -> Pairs:
    """Sizes and colours, in the order in which converters write them."""
    yield "general.file_type", None
    yield "has_vision_encoder", True
    yield "vision.projection_dim", c["projection_dim"]
    yield "vision.image_size", _image_size(c)
    yield "vision.patch_size", _patch_size(c)
    old = "embed_dim" in c  # Qwen2-VL calls its widths otherwise
    n_embd = c.count("embed_dim" if old else "hidden_size")
    yield "vision.embedding_length", n_embd
    yield "vision.feed_forward_length", c.count("hidden_size" if old else "intermediate_size")
    yield "vision.block_count", max(_layers(c))
    yield "vision.attention.head_count", c.count("num_attention_heads", "num_heads")
    seen = image_processor(c)
    for name in ("image_mean", "image_std"):
        values = seen.get(name, c[name])
        if not isinstance(values, list) or not all(isinstance(v, int | float) for v in values):
            raise c.bad(name, f"of the image processor is {values!r}; it must be three numbers")
        yield f"vision.{name}", [float(value) for value in values]


def _image_size(c: Config) -> int:
    if "num_position_embeddings" in c and "image_size" not in c:
        return math.isqrt(c.count("num_position_embeddings")) * _patch_size(c)
    return c.count("image_size")


def _layers(c: Config) -> list[int]:
    """The numbers of layers behind which rows go to the projector."""
    given = c.get("vision_feature_layer", -1)
    layers = given if isinstance(given, list) else [given]
    if not layers or not all(type(n) is int and -c.n_layer - 1 <= n <= c.n_layer for n in layers):
        raise c.bad("vision_feature_layer", f"is {given!r}, of {c.n_layer} layers")
    return [n if n >= 0 else n + c.n_layer + 1 for n in layers]


def _patch_size(c: Config) -> int:
    size = c.count("patch_size")
    if not size:
        raise c.bad("patch_size", "of the tower is 0")
    return size


def _eps(c: Config) -> float:
    value = c["layer_norm_eps"]
    if not isinstance(value, int | float):
        raise c.bad("layer_norm_eps", f"of the tower is {value!r}; it must be a number")
    return float(value)


def _numbers(c: Config, key: str) -> list[int]:
    """A list of numbers of layers; empty if there is none."""
    given = c.get(key) or []
    if not isinstance(given, list) or not all(type(n) is int and n >= 0 for n in given):
        raise c.bad(key, f"is {given!r}; it must be a list of numbers of layers")
    return given


def _llava_keys(c: Config) -> Pairs:
    siglip = c["model_type"] == "siglip_vision_model"  # without a row of the class
    strategy, all_rows = "vision_feature_select_strategy", "full" if siglip else "default"
    if c.get(strategy, "default") != all_rows:
        raise c.bad(
            strategy, f"must be {all_rows!r} for a tower of {'SigLIP' if siglip else 'CLIP'}"
        )
    if c.get("projector_hidden_act", "gelu") != "gelu":
        raise c.bad("projector_hidden_act", "must be 'gelu'")
    yield "projector_type", "mlp"
    yield "vision.attention.layer_norm_epsilon", _eps(c)
    yield "use_gelu", _act(c, {"quick_gelu": False, "gelu_pytorch_tanh": True})
    layers = _layers(c)
    if isinstance(c.get("vision_feature_layer"), list):
        yield "vision.feature_layer", layers
    if c.get("image_grid_pinpoints"):
        yield "vision.image_grid_pinpoints", grid_pinpoints(c)
        yield "vision.mm_patch_merge_type", "spatial_unpad"


def grid_pinpoints(c: Config) -> list[int]:
    """The sizes that tiles may have together, as widths and heights in turns. Raises FormatError
    for an image processor that makes tiles of another size than the tower takes."""
    given, side, seen = c["image_grid_pinpoints"], c.count("image_size"), image_processor(c)
    for key in ("crop_size", "size"):
        size = seen.get(key)
        sides = set(size.values() if isinstance(size, dict) else [size]) - {None, side}
        if sides:
            raise c.bad(key, f"of the image processor is {size}, but the tower takes {side} pixels")
    if not isinstance(given, list) or not all(
        isinstance(pair, list) and len(pair) == 2 and all(type(n) is int for n in pair)
        for pair in given
    ):
        raise c.bad("image_grid_pinpoints", "must be a list of pairs of a height and a width")
    return [n for high, wide in given for n in (wide, high)]


def _gemma3_keys(c: Config) -> Pairs:
    yield "projector_type", "gemma3"
    yield "vision.attention.layer_norm_epsilon", _eps(c)
    yield "use_gelu", _act(c, {"gelu_pytorch_tanh": True})
    rows = max(math.isqrt(c.count("mm_tokens_per_image")), 1)
    factor = c.count("image_size") // _patch_size(c) // rows
    if factor not in (0, 4):
        yield "vision.projector.scale_factor", factor


def _pixtral_keys(c: Config) -> Pairs:
    if max(_layers(c)) != c.n_layer:
        raise c.bad("vision_feature_layer", "must be -1 for a tower of Pixtral")
    yield "projector_type", c.get("projector", "pixtral")
    yield "vision.attention.layer_norm_epsilon", _eps(c)
    known = _act(c, {"silu": True, "gelu": True})
    yield f"use_{c['hidden_act']}", known
    if "spatial_merge_size" in c:
        yield "vision.spatial_merge_size", c.count("spatial_merge_size")


def _qwen_keys(c: Config) -> Pairs:
    windows = _numbers(c, "fullatt_block_indexes")
    yield "projector_type", "qwen2.5vl_merger" if windows else "qwen2vl_merger"
    if windows:
        every = windows[0] + 1
        if windows != list(range(every - 1, c.n_layer, every)):
            raise c.bad("fullatt_block_indexes", f"is {windows}; weft knows one in so many layers")
        yield "use_silu", _act(c, {"silu": True})
        yield "vision.n_wa_pattern", every
    else:
        _act(c, {"quick_gelu": True})
    yield "vision.attention.layer_norm_epsilon", 1e-6


def _exaone_keys(c: Config) -> Pairs:
    windows = dict(_qwen_keys(c)) if c.get("fullatt_block_indexes") else {}
    if c.get("window_size", 112) != 112:
        raise c.bad("window_size", f"is {c['window_size']}; windows have 112 pixels each side")
    yield "projector_type", "exaone4_5"
    yield "use_silu", _act(c, {"silu": True})
    yield from pixel_keys(c, 56 * 56, 1280 * 28 * 28)
    yield "vision.attention.head_count_kv", c.count("num_key_value_heads")
    yield "vision.attention.layer_norm_epsilon", 1e-6
    yield "vision.window_size", 112
    if windows:
        yield "vision.n_wa_pattern", windows["vision.n_wa_pattern"]


def _qwen3_keys(c: Config) -> Pairs:
    yield "projector_type", "qwen3vl_merger"
    yield "use_gelu", _act(c, {"gelu_pytorch_tanh": True})
    yield "vision.spatial_merge_size", c.count("spatial_merge_size")
    yield "vision.attention.layer_norm_epsilon", 1e-6
    deep = _numbers(c, "deepstack_visual_indexes")
    yield "vision.is_deepstack_layers", [il in deep for il in range(c.n_layer)]


def _act(c: Config, known: Mapping[str, bool]) -> bool:
    """The flag of the activation. Raises FormatError for another one."""
    act = c["hidden_act"]
    if not isinstance(act, str) or act not in known:
        raise c.bad("hidden_act", f"of the tower is {act!r}; known here are {', '.join(known)}")
    return known[act]


# --- tensors ----------------------------------------------------------------------------------


def _named(c: Config, name: str, values: Values) -> Iterator[tuple[str, Values]]:
    """A tensor by its name in a file. Raises FormatError if it has none."""
    layer = _LAYER.fullmatch(name)
    stem, dot, kind = (layer[2] if layer else name).rpartition(".")
    if kind not in ("weight", "bias"):
        stem, dot, kind = layer[2] if layer else name, "", ""
    new = (_LAYER_NAMES if layer else _NAMES).get(stem)
    if new is None:
        raise FormatError(f"{c.folder}: tensor {name} has no place in a tower of this kind")
    yield f"{f'v.blk.{layer[1]}.' if layer else ''}{new}{dot}{kind}", values


def _llava(c: Config, name: str, values: Values) -> Named:
    layer = _LAYER.fullmatch(name)
    if name.startswith("post_layernorm.") or (layer and int(layer[1]) >= max(_layers(c))):
        return  # not seen by the projector
    for new, changed in _named(c, name, values):
        yield new.replace("mm.1.", "mm.0."), changed


def _gemma3(c: Config, name: str, values: Values) -> Named:
    if name.startswith("mm_soft_emb_norm."):
        values = values.through(lambda x: x + 1)
    return _named(c, name.replace("projection_weight", "projection.weight"), values)


def _pixtral(c: Config, name: str, values: Values) -> Named:
    for new, changed in _named(c, name, values):
        yield new, in_order(c, name, changed, c.head_dim)


def _qwen(c: Config, name: str, values: Values) -> Named:
    if name == "patch_embed.proj.weight":
        yield from frames(c, values)
    elif ".qkv." in name:
        third = values.shape[0] // 3
        for part, new in zip(values.split(third, third, third), "qkv", strict=True):
            for whole, same in _named(c, name, part):
                yield whole.replace("attn_qkv", f"attn_{new}"), same
    else:
        yield from _named(c, name, values)


def _exaone(c: Config, name: str, values: Values) -> Named:
    return frames(c, values) if name == "patch_embed.proj.weight" else _named(c, name, values)


def _qwen3(c: Config, name: str, values: Values) -> Named:
    deep = _DEEP.fullmatch(name)
    if name == "patch_embed.proj.weight":
        yield from frames(c, values)
    elif deep is not None:
        indexes = _numbers(c, "deepstack_visual_indexes")
        if int(deep[1]) >= len(indexes):
            raise c.bad("deepstack_visual_indexes", f"has no number for {name}")
        yield f"v.deepstack.{indexes[int(deep[1])]}.{deep[2]}", values
    else:
        yield from _named(c, name, values)


def frames(c: Config, values: Values) -> Iterator[tuple[str, Values]]:
    """The kernel of patches for each of two frames."""
    if len(values.shape) != 5 or values.shape[2] != 2:
        raise FormatError(f"{c.folder}: the patches of the tower must have two frames")
    shape = (*values.shape[:2], *values.shape[3:])
    for i, end in enumerate(("weight", "weight.1")):
        yield f"v.patch_embd.{end}", values.taken(slice(None), slice(None), i, shape=shape)


@dataclass(frozen=True)
class _Kind:
    """A tower by `model_type` of `vision_config`."""

    keys: Callable[[Config], Pairs]
    """Metadata beside the common."""
    change: Callable[[Config, str, Values], Named]
    """Maps a tensor's name, without the name of tower or projector, to its names in a file."""
    defaults: Mapping[str, Any]
    """Values that config.json and the image processor may leave out."""


def _kind(
    keys: Callable[[Config], Pairs],
    change: Callable[[Config, str, Values], Named],
    colours: Mapping[str, object],
    **more: object,
) -> _Kind:
    return _Kind(keys, change, {**colours, **more})


_QWEN2 = {"hidden_act": "quick_gelu", "patch_size": 14, "image_size": 560}
_SHAPES = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
"""The heights and widths of LLaVA-NeXT's tiles together, if config.json does not say."""
_KINDS = {
    "clip_vision_model": _kind(
        _llava_keys, _llava, CLIP, model_type="clip_vision_model", layer_norm_eps=1e-5,
        hidden_act="quick_gelu", vision_feature_layer=-2),
    "siglip_vision_model": _kind(
        _gemma3_keys, _gemma3, HALF, layer_norm_eps=1e-6, hidden_act="gelu_pytorch_tanh",
        mm_tokens_per_image=256),
    "pixtral": _kind(_pixtral_keys, _pixtral, CLIP, layer_norm_eps=1e-5, hidden_act="gelu"),
    "qwen2_vl": _kind(_qwen_keys, _qwen, CLIP, **_QWEN2),
    "qwen2_5_vl": _kind(_qwen_keys, _qwen, CLIP, **_QWEN2 | {"hidden_act": "silu"}),
    "exaone4_5": _kind(
        _exaone_keys, _exaone, CLIP, num_key_value_heads=8, **_QWEN2 | {"hidden_act": "silu"}),
    "qwen3_vl": _kind(
        _qwen3_keys, _qwen3, CLIP, patch_size=16, hidden_act="gelu_pytorch_tanh",
        spatial_merge_size=2, deepstack_visual_indexes=[]),
}  # fmt: skip
"""By `model_type` of `vision_config`."""
_LLAVA_KINDS = _KINDS | {
    "siglip_vision_model": _kind(
        _llava_keys,
        _llava,
        HALF,
        layer_norm_eps=1e-6,
        hidden_act="gelu_pytorch_tanh",
        vision_feature_layer=-2,
    ),
}
"""The same towers in front of LLaVA's projector."""
_OTHER_NAMES = {
    "qwen2_vl_vision": "qwen2_vl", "qwen2_5_vl_vision": "qwen2_5_vl", "qwen3_vl_vision": "qwen3_vl",
    "exaone4_5_vision": "exaone4_5",
    "qwen3_vl_moe": "qwen3_vl", "qwen3_vl_moe_vision": "qwen3_vl",
    "qwen3_omni_moe_vision_encoder": "qwen3_vl", "qwen2_5_omni_vision_encoder": "qwen2_5_vl",
}  # fmt: skip
_USUAL = {
    "Exaone4_5_ForConditionalGeneration": "exaone4_5",
    "LlavaForConditionalGeneration": "clip_vision_model",
    "LlavaNextForConditionalGeneration": "clip_vision_model",
    "Gemma3ForConditionalGeneration": "siglip_vision_model",
    "Mistral3ForConditionalGeneration": "pixtral",
    "LightOnOcrForConditionalGeneration": "pixtral",
    "LightOnOCRForConditionalGeneration": "pixtral",
    "Qwen2VLForConditionalGeneration": "qwen2_vl",
    "Qwen2_5_VLForConditionalGeneration": "qwen2_5_vl",
    "Qwen3VLForConditionalGeneration": "qwen3_vl",
    "Qwen3VLMoeForConditionalGeneration": "qwen3_vl",
}
"""The towers of classes, if `vision_config` does not say."""
FAMILIES = {
    name: _Square(_file_keys, (), {}, {}, kernels=("mm.input_projection",)) for name in _USUAL
}
"""By class; the matrix of Gemma 3's projector is turned, which blocks of 32 do not allow."""
