"""Gemma 4's tower for images in folders."""

from __future__ import annotations

from weft.frontends.hf.config import Config
from weft.frontends.hf.family import Named
from weft.frontends.hf.keys import Pairs
from weft.frontends.hf.towers.family import TowerFamily, colours_first, vision_keys
from weft.frontends.hf.values import Values

__all__ = ["FAMILIES"]

_MATRICES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_out", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip
_BOUNDS = ("input_min", "input_max", "output_min", "output_max")
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
    **{f"{name}.{end}": f"{file}.{end}" for name, file in _MATRICES.items() for end in _BOUNDS},
}  # fmt: skip


def _keys(c: Config) -> Pairs:
    # the size is of no use; converters write it
    yield from vision_keys(c, "gemma4v", image_size=224, mean=(0, 0, 0), std=(1, 1, 1))
    merge = c["vision_config"].get("pooling_kernel_size", 3)
    if merge != 3:
        yield "vision.projector.scale_factor", merge


def _change(c: Config, name: str, values: Values) -> Named:
    """Numbers are vectors of one, and colours of a patch outermost."""
    if not values.shape:
        values = values.reshaped(1)
    if name == "v.patch_embd.weight":
        values = colours_first(values)
    return ((name, values),)


FAMILIES = {
    "Gemma4ForConditionalGeneration": TowerFamily(
        _keys,
        ("vision_tower.", "embed_vision."),
        {"vision_tower.encoder.layers": "v.blk"},
        _NAMES,
        _change,
    )
}
