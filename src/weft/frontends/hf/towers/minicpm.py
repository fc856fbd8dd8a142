"""Encoders of images of MiniCPM-V in folders."""

from __future__ import annotations

import numpy as np

from weft.frontends.hf.config import Config
from weft.frontends.hf.family import Named
from weft.frontends.hf.keys import Pairs
from weft.frontends.hf.towers.family import (
    SIGLIP,
    TowerFamily,
    image_processor,
    keys_and_eps,
    part_of,
)
from weft.frontends.hf.values import Values

_NAMES = {
    "vision_tower.embeddings.patch_embedding": "v.patch_embd",
    "vision_tower.embeddings.position_embedding": "v.position_embd",
    "vision_tower.post_layernorm": "v.post_ln",
    **{
        f"vision_tower.vit_merger.{name}": f"v.vit_merger.{file}"
        for name, file in (
            ("layer_norm1", "ln1"), ("self_attn.q_proj", "attn_q"), ("self_attn.k_proj", "attn_k"),
            ("self_attn.v_proj", "attn_v"), ("self_attn.out_proj", "attn_out"),
            ("pre_norm", "ds_ln"), ("linear_1", "ds_ffn_up"), ("linear_2", "ds_ffn_down"),
        )
    },
    "merger.mlp.0.pre_norm": "mm.input_norm", "merger.mlp.0.linear_1": "mm.up",
    "merger.mlp.0.linear_2": "mm.down",
    **SIGLIP,
}  # fmt: skip
_SLICES = 9
"""Maximum number of slices of an image, which files do not say."""


def _keys(c: Config) -> Pairs:
    vision, seen = part_of(c, "vision_config"), image_processor(c)
    act = vision.get("hidden_act", "gelu_pytorch_tanh")
    if act != "gelu_pytorch_tanh":
        raise c.bad("vision_config.hidden_act", f"is {act!r}; this kind of tower has another")
    for name, known in (("merge_kernel_size", [2, 2]), ("merger_times", 1)):
        if c.get(name, known) != known:
            raise c.bad(name, f"is {c[name]!r}; weft computes {known}")
    size = seen.get("scale_resolution", c.get("image_size", 448))
    keys, eps = keys_and_eps(c, "minicpmv4_6", image_size=size, default=1e-6)
    yield from keys.items()
    yield "vision.projector.scale_factor", _merge(c)
    layer = c.get("insert_layer_id", vision.get("insert_layer_id", 6))
    yield "vision.wa_layer_indexes", np.array([layer], np.int32)
    yield "use_gelu", True
    yield eps
    most = seen.get("max_slice_nums", _SLICES) if seen.get("slice_mode", True) else 1
    if most != _SLICES:
        yield "vision.preproc_max_tiles", most


def _merge(c: Config) -> int:
    """Patches of each side of a square that becomes one row. Raises FormatError for a mode that is
    not known."""
    mode = image_processor(c).get("downsample_mode", c.get("downsample_mode", "16x"))
    if mode not in ("4x", "16x"):
        raise c.bad("downsample_mode", f"is {mode!r}; known are '4x' and '16x'")
    return 2 if mode == "4x" else 4


def _change(c: Config, name: str, values: Values) -> Named:
    """A file whose squares are merged once has no tensors for another time."""
    if _merge(c) == 2 and name.startswith("v.vit_merger."):
        return ()
    return ((name, values),)


FAMILIES = {
    "MiniCPMV4_6ForConditionalGeneration": TowerFamily(
        _keys, ("vision_tower.", "merger."), {"vision_tower.encoder.layers": "v.blk"}, _NAMES,
        _change,
    ),
}  # fmt: skip
