"""Encoders of images in folders of Step3-VL and Step 3.7."""

from __future__ import annotations

from weft.frontends.hf.config import Config
from weft.frontends.hf.keys import Pairs
from weft.frontends.hf.towers.family import (
    TowerFamily,
    image_processor,
    part_of,
    vision_keys,
)
from weft.frontends.hf.towers.square import CLIP

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


FAMILIES = {
    **dict.fromkeys(
        ("StepVLForConditionalGeneration", "Step3p7ForConditionalGeneration"),
        TowerFamily(
            _step3_keys,
            ("vision_model.", "vit_large_projector."),
            {"vision_model.transformer.resblocks": "v.blk"},
            _STEP3,
        ),
    ),
}
