"""Encoders of images in folders of Nemotron: RADIO."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from weft.frontends.hf.config import Config
from weft.frontends.hf.family import Named
from weft.frontends.hf.keys import Pairs
from weft.frontends.hf.towers.family import (
    TowerFamily,
    image_processor,
    part_of,
    vision_keys,
)
from weft.frontends.hf.towers.square import CLIP
from weft.frontends.hf.values import Values

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


FAMILIES = {
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
}
