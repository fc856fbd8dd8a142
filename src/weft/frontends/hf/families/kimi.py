"""Kimi Linear: gated delta nets and latent attention in turn."""

from __future__ import annotations

import math

import numpy as np

from weft.frontends.hf.config import Config
from weft.frontends.hf.families.deepseek import split_latent
from weft.frontends.hf.family import Family, Named
from weft.frontends.hf.keys import Pairs, common_keys
from weft.frontends.hf.values import Values

__all__ = ["FAMILIES"]


def _delta(c: Config, theirs: str, ours: str) -> int:
    """A size of delta nets, which older folders have in an object of their own."""
    return int(c.get("linear_attn_config", {}).get(theirs) or c[ours])


def _attends(c: Config) -> list[bool]:
    kinds = c.get("layer_types")
    if kinds:
        return [kind == "full_attention" for kind in kinds]
    chosen = c["linear_attn_config"]["full_attn_layers"]  # counted from 1
    return [il + 1 in chosen for il in range(c.n_layer)]


def _common(c: Config) -> Pairs:
    for key, value in common_keys(c):
        if key == "attention.head_count_kv":
            value = [1 if it else 0 for it in _attends(c)]
        yield key, value


def _n_dense(c: Config) -> int:
    kinds = c.get("mlp_layer_types")
    return int(kinds.count("dense") if kinds else c.get("first_k_dense_replace", 1))


def _keys(c: Config) -> Pairs:
    yield "vocab_size", c.count("vocab_size")
    yield "ssm.conv_kernel", _delta(c, "short_conv_kernel_size", "linear_conv_kernel_dim")
    yield "kda.head_dim", _delta(c, "head_dim", "linear_head_dim")
    if c.get("q_lora_rank") is not None:
        yield "attention.q_lora_rank", c["q_lora_rank"]
    rank, rotated = c["kv_lora_rank"], c["qk_rope_head_dim"]
    yield "attention.kv_lora_rank", rank
    yield "rope.dimension_count", rotated
    yield "attention.key_length", rank + rotated
    yield "attention.key_length_mla", c["qk_nope_head_dim"] + rotated
    yield "attention.value_length_mla", c["v_head_dim"]
    yield "expert_feed_forward_length", c["moe_intermediate_size"]
    yield "expert_shared_count", c["num_shared_experts"]
    yield "leading_dense_block_count", _n_dense(c)
    yield "expert_weights_scale", float(c["routed_scaling_factor"])
    if not c.get("moe_renormalize", True):
        yield "expert_weights_norm", False


def _change(c: Config, name: str, values: Values) -> Named:
    if name.endswith(".A_log"):  # decays are kept as logarithms
        values = values.through(lambda x: -np.exp(x.astype(np.float64)).astype(np.float32))
        yield name, values.reshaped(1, 1, math.prod(values.shape), 1)
    elif name.endswith("_conv1d.weight"):
        yield name, values.reshaped(1, values.shape[0], 1, values.shape[-1])
    elif name.endswith("kv_b_proj.weight"):
        yield from split_latent(c, name, values)
    else:
        yield name.replace(".dt_bias", ".dt_proj.bias"), values


FAMILIES = {
    "kimi-linear": Family(
        "kimi-linear",
        _keys,
        common=_common,
        change=_change,
        defaults={"moe_router_activation_func": "sigmoid"},
        experts=("w1", "w2", "w3"),
    ),
}
