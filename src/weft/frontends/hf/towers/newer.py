"""Encoders of images in folders of Kimi-VL, Kimi K2.5, Step3-VL, Step 3.7, Nemotron, Llama 4 and
MiniMax-M3."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

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

_KIMI = {
    # transformers saves the first layer's tensors with the encoder's
    **{
        f"vision_tower.{part}patch_embed.{name}": file
        for part in ("", "encoder.")
        for name, file in (
            ("proj", "v.patch_embd"), ("pos_emb", "v.position_embd"),
            ("pos_emb.position_embeddings", "v.position_embd.weight"),
        )
    },
    "vision_tower.encoder.final_layernorm": "v.post_ln",
    "multi_modal_projector.pre_norm": "mm.input_norm", "mm_projector.pre_norm": "mm.input_norm",
    "multi_modal_projector.linear_1": "mm.1", "mm_projector.proj.0": "mm.1",
    "multi_modal_projector.linear_2": "mm.2", "mm_projector.proj.2": "mm.2",
    "norm0": "ln1", "norm1": "ln2", "wqkv": "attn_qkv", "wo": "attn_out",
    "mlp.fc0": "ffn_up", "mlp.fc1": "ffn_down",
}  # fmt: skip


def _kimi_vision(c: Config) -> Mapping[str, Any]:
    """The sizes of Kimi's tower by their usual names, with the number of learned positions of a
    side as `positions`. Raises FormatError for a tower of another kind."""
    given = part_of(c, "vision_config")
    out = {key.removeprefix("vt_").removeprefix("init_"): v for key, v in given.items()}
    sides = {out.get("pos_emb_height", 64), out.get("pos_emb_width", 64)}
    if len(sides) > 1:
        raise c.bad("vision_config.init_pos_emb_width", "must be as init_pos_emb_height")
    merge = out.get("merge_kernel_size", [2, 2])
    if merge != [2, 2] and merge != 2:
        raise c.bad("vision_config.merge_kernel_size", f"is {merge!r}, and must be [2, 2]")
    for key, known in (
        ("hidden_act", ("gelu_pytorch_tanh",)), ("projector_hidden_act", ("gelu",)),
        ("pos_emb_type", ("divided_fixed",)), ("mm_projector_type", ("patchmerger",)),
    ):  # fmt: skip
        if out.get(key, known[0]) not in known:
            raise c.bad(f"vision_config.{key}", f"is {out[key]!r}, and must be {known[0]!r}")
    return out | {"positions": sides.pop()}


def _kimi_keys(c: Config, projector: str) -> Pairs:
    vision = _kimi_vision(c)
    seen = image_processor(c)
    own = Config(c.folder, {**c, "vision_config": vision})
    patch = vision.get("patch_size", 14)
    if seen.get("pad_input", True) is not True:
        raise c.bad("pad_input", "of the image processor must be true for this kind of tower")
    old = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
           "num_attention_heads": 16, "patch_size": 14}  # fmt: skip
    size = vision["positions"] * patch if projector == "kimik25" else 896  # as converters write it
    for key, value in vision_keys(own, projector, image_size=size, defaults=old, alone=True):
        if not key.endswith("layer_norm_epsilon"):
            yield key, value
    yield "use_gelu", True
    if projector == "kimik25":
        for name in ("height", "width"):
            yield f"vision.pos_emb_{name}", vision["positions"]
        yield "vision.pos_emb_time", vision.get("pos_emb_time", 4)
    eps = c.get("projection_layer_norm_eps", vision.get("projector_ln_eps", 1e-5))
    yield "vision.attention.layer_norm_epsilon", eps
    yield "vision.projector.scale_factor", 2
    limits = (seen.get("max_patches"), seen.get("in_patch_limit"), seen.get("in_token_limit"))
    limit = next((n for n in limits if n is not None), None)
    if limit is not None and (type(limit) is not int or not 1 <= limit < 1 << 24):
        raise c.bad("in_patch_limit", f"of the image processor is {limit!r}; it is a count")
    if projector == "kimik25":
        yield "vision.image_min_pixels", 8 * patch**2
        yield "vision.image_max_pixels", (limit or 16384) * patch**2
    elif limit not in (None, 4096):
        yield "vision.image_max_pixels", limit * patch**2


def _kimivl_change(c: Config, name: str, values: Values) -> Named:
    if name == "v.position_embd.weight":
        values = values.reshaped(values.shape[0] * values.shape[1], values.shape[2])
    if ".attn_qkv." in name:
        third = values.shape[0] // 3
        for part, new in zip(values.split(third, third, third), "qkv", strict=True):
            yield name.replace("attn_qkv", f"attn_{new}"), part
    else:
        yield name, values


def _kimik25_change(c: Config, name: str, values: Values) -> Named:
    """The even pairs of queries and keys stand in front of the odd ones in files."""
    if ".attn_qkv." in name:
        n_head = int(_kimi_vision(c).get("num_attention_heads", 16))
        shape = values.shape
        values = values.through(
            lambda x: np.concatenate([
                x[: 2 * len(x) // 3].reshape(2 * n_head, -1, 2, 2, *x.shape[1:])
                .swapaxes(1, 2).reshape(-1, *x.shape[1:]), x[2 * len(x) // 3 :]
            ]), shape,
        )  # fmt: skip
    yield name, values


def _kimi(projector: str, change: Callable[[Config, str, Values], Named]) -> TowerFamily:
    return TowerFamily(
        lambda c: _kimi_keys(c, projector),
        ("vision_tower.", "multi_modal_projector.", "mm_projector."),
        {"vision_tower.encoder.blocks": "v.blk"}, _KIMI, change,
        unused=("vision_tower.patch_embed.pos_emb.time_weight",),
    )  # fmt: skip


_STEP3 = {
    "vision_model.conv1": "v.patch_embd", "vision_model.ln_pre": "v.pre_ln",
    "vision_model.positional_embedding": "v.position_embd.weight",
    "vision_model.vit_downsampler1": "mm.0", "vision_model.vit_downsampler2": "mm.1",
    "vit_large_projector": "mm.model.fc", "attn.in_proj_weight": "attn_qkv.weight",
    "attn.in_proj_bias": "attn_qkv.bias", "attn.out_proj": "attn_out", "ln_1": "ln1", "ln_2": "ln2",
    "ls_1.gamma": "ls1.weight", "ls_2.gamma": "ls2.weight", "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}  # fmt: skip


def _step3_keys(c: Config) -> Pairs:
    given = part_of(c, "vision_config")
    short = (("width", "hidden_size"), ("layers", "num_hidden_layers"),
             ("heads", "num_attention_heads"))  # fmt: skip
    vision = dict(given) | {full: given[name] for name, full in short if name in given}
    wide = round(vision.get("hidden_size", 1536) * vision.get("mlp_ratio", 8960 / 1536))
    vision.setdefault("intermediate_size", wide)
    if vision.get("hidden_act", "quick_gelu") != "quick_gelu":
        raise c.bad("vision_config.hidden_act", "must be 'quick_gelu' for this kind of tower")
    if c.get("understand_projector_stride", 2) != 2:
        raise c.bad("understand_projector_stride", "must be 2 for this kind of tower")
    seen = image_processor(c)
    yield from vision_keys(
        Config(c.folder, {**c, "vision_config": {"layer_norm_eps": 1e-5} | vision}), "step3vl",
        mean=seen.get("image_mean", CLIP["image_mean"]),
        std=seen.get("image_std", CLIP["image_std"]),
        defaults={"hidden_size": 1536, "num_hidden_layers": 47, "num_attention_heads": 16,
                  "image_size": 728, "patch_size": 14}, alone=True,
    )  # fmt: skip
    yield "vision.projector.scale_factor", 4
    yield "vision.preproc_image_size", seen.get("max_image_size", 3024)
    if seen.get("patch_size", 504) != 504:
        yield "vision.preproc_tile_size", seen["patch_size"]


_RADIO = {
    **{
        f"vision_model.radio_model.model.patch_generator.{name}": file
        for name, file in (
            ("cls_token.token", "v.class_embd"), ("pos_embed", "v.position_embd.weight"),
            ("embedder", "v.patch_embd"),
        )
    },
    "vision_projector.vision_final_layernorm": "v.post_ln",
    **{f"mlp1.{i}": f"mm.model.mlp.{i}" for i in (0, 1, 3)},
    "attn.qkv": "attn_qkv", "attn.proj": "attn_out", "norm1": "ln1", "norm2": "ln2",
    "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down", "layer_scale1.lambda1": "ls1.weight",
    "layer_scale2.lambda1": "ls2.weight",
}  # fmt: skip
_RADIO_SIZES = {"hidden_size": 1280, "num_hidden_layers": 32, "num_attention_heads": 16,
                "patch_size": 16}  # fmt: skip


def _radio_sides(c: Config) -> tuple[int, int]:
    """Pixels of the sides of a tile and of a patch."""
    patch = int(part_of(c, "vision_config").get("patch_size", 16))
    return int(c.get("force_image_size") or 512), max(patch, 1)


def _in_tiles(c: Config) -> bool:
    """True for the model that takes images in tiles."""
    return c.cls == "NemotronH_Nano_VL_V2"


def _radio_keys(c: Config) -> Pairs:
    given = part_of(c, "vision_config")
    if given.get("use_swiglu_ffn"):
        raise c.bad("vision_config.use_swiglu_ffn", "must be false for this kind of tower")
    if c.get("downsample_ratio", 0.5) != 0.5:
        raise c.bad("downsample_ratio", "must be 0.5 for this kind of tower")
    wide = given.get("hidden_size", 1280) * given.get("mlp_ratio", 4.0)
    vision = {"intermediate_size": int(wide), **given}
    seen = image_processor(c)
    colours = {
        name: seen.get(f"norm_{name}", seen.get(f"image_{name}", CLIP[f"image_{name}"]))
        for name in ("mean", "std")
    }
    image, patch = _radio_sides(c)
    yield from vision_keys(
        Config(c.folder, {**c, "vision_config": vision}), "nemotron_v2_vl", image_size=image,
        defaults=_RADIO_SIZES, alone=True, **colours,
    )  # fmt: skip
    yield "use_gelu", True
    yield "vision.projector.scale_factor", 2
    if _in_tiles(c):
        if "max_num_tiles" in seen:
            yield "vision.preproc_max_tiles", seen["max_num_tiles"]
        return
    least, most = seen.get("min_num_patches", 1024), seen.get("max_num_patches", 13312)
    budget = max((seen.get("max_model_len", 16384) - 4) * 4, least)
    yield "vision.image_min_pixels", least * patch**2
    yield "vision.image_max_pixels", max(min(budget, most or budget), least) * patch**2


def _radio_change(c: Config, name: str, values: Values) -> Named:
    image, patch = _radio_sides(c)
    if name == "v.patch_embd.weight":
        values = values.reshaped(values.shape[0], 3, patch, patch)
    elif name == "v.position_embd.weight":
        _, n, width = values.shape
        values, old, new = values.reshaped(n, width), math.isqrt(n), image // patch
        if not _in_tiles(c):
            yield "v.position_embd_whole.weight", values
        values = values.through(
            lambda x: _spread(
                _spread(x.reshape(old, old, width).swapaxes(0, 1), new).swapaxes(0, 1), new
            ), (1, new * new, width),
        )  # fmt: skip
    yield name, values


def _spread(x: NDArray[np.float32], n: int) -> NDArray[np.float32]:
    """n rows spread over the rows of x, from the first to the last."""
    at = np.arange(n, dtype=np.float32) * np.float32((len(x) - 1) / max(n - 1, 1))
    low = np.minimum(at.astype(np.int64), max(len(x) - 2, 0))
    share = (at - low).reshape(-1, *(1,) * (x.ndim - 1))
    return np.asarray(x[low] * (1 - share) + x[np.minimum(low + 1, len(x) - 1)] * share)


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
    **dict.fromkeys(
        ("NemotronH_Omni_Reasoning_V3", "NemotronH_Nano_Omni_Reasoning_V3", "NemotronH_Nano_VL_V2"),
        TowerFamily(
            _radio_keys,
            ("vision_model.", "mlp1.", "vision_projector."),
            {"vision_model.radio_model.model.blocks": "v.blk"},
            _RADIO,
            _radio_change,
            unused=(
                "vision_model.radio_model.input_conditioner",
                "vision_model.radio_model.summary",
                "vision_model.radio_model.model.patch_generator.video_embedder",
            ),
        ),
    ),
    **dict.fromkeys(
        ("StepVLForConditionalGeneration", "Step3p7ForConditionalGeneration"),
        TowerFamily(
            _step3_keys,
            ("vision_model.", "vit_large_projector."),
            {"vision_model.transformer.resblocks": "v.blk"},
            _STEP3,
        ),
    ),
    "KimiVLForConditionalGeneration": _kimi("kimivl", _kimivl_change),
    **dict.fromkeys(
        ("KimiK25ForConditionalGeneration", "Kimi_K25ForConditionalGeneration"),
        _kimi("kimik25", _kimik25_change),
    ),
}
