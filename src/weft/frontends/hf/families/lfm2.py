"""LFM2: short convolutions and attention in turn, and its mixture of experts."""

from __future__ import annotations

from dataclasses import replace

from weft.frontends.hf.config import Config
from weft.frontends.hf.family import Family, Named
from weft.frontends.hf.keys import Pairs, common_keys
from weft.frontends.hf.values import Values

__all__ = ["FAMILIES"]


def _common(c: Config) -> Pairs:
    kinds = c.get("layer_types") or ["full_attention"] * c.n_layer
    for key, value in common_keys(c):
        if key == "attention.head_count_kv":
            value = [0 if kind == "conv" else c.n_head_kv for kind in kinds]
        yield key, value


def _keys(c: Config) -> Pairs:
    yield "vocab_size", c.count("vocab_size")
    yield "shortconv.l_cache", c["conv_L_cache"]
    yield "attention.layer_norm_rms_epsilon", float(c["norm_eps"])
    width = c.first("block_ff_dim", "intermediate_size")
    if c.get("block_auto_adjust_ff_dim", True):
        width = int(2 * width / 3)
        if c.get("block_ffn_dim_multiplier", 1.0) is not None:
            width = int(c.get("block_ffn_dim_multiplier", 1.0) * width)
        unit = c.get("block_multiple_of", 256)
        width = unit * -(-width // unit)
    yield "feed_forward_length", width


def _moe_keys(c: Config) -> Pairs:
    yield "expert_feed_forward_length", c["moe_intermediate_size"]
    yield "leading_dense_block_count", c["num_dense_layers"]
    yield "expert_gating_func", 2  # a sigmoid
    if c.get("routed_scaling_factor", 1.0) != 1.0:
        yield "expert_weights_scale", float(c["routed_scaling_factor"])
    yield "attention.layer_norm_rms_epsilon", float(c["norm_eps"])
    yield "vocab_size", c.count("vocab_size")
    yield "shortconv.l_cache", c["conv_L_cache"]


def _change(c: Config, name: str, values: Values) -> Named:
    if "conv.conv" in name:  # one filter per channel: [n, 1, width]
        values = values.reshaped(values.shape[0], *values.shape[2:])
    name = name.replace(".expert_bias", ".expert_bias.bias")
    yield name, values


_LFM2 = Family(
    "lfm2",
    _keys,
    common=_common,
    change=_change,
    defaults={"rope_theta": 1e6, "norm_eps": 1e-5},
)

FAMILIES = {
    "lfm2": _LFM2,
    "lfm2moe": replace(
        _LFM2,
        arch="lfm2moe",
        keys=_moe_keys,
        experts=("w1", "w2", "w3"),
        norm_topk=True,
    ),
}
