"""Encoders of images in folders of Kimi-VL and Kimi K2.5."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from weft.frontends.hf.config import Config
from weft.frontends.hf.family import Named
from weft.frontends.hf.keys import Pairs
from weft.frontends.hf.towers.family import (
    TowerFamily,
    image_processor,
    part_of,
    vision_keys,
)
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


FAMILIES = {
    "KimiVLForConditionalGeneration": _kimi("kimivl", _kimivl_change),
    **dict.fromkeys(
        ("KimiK25ForConditionalGeneration", "Kimi_K25ForConditionalGeneration"),
        _kimi("kimik25", _kimik25_change),
    ),
}
