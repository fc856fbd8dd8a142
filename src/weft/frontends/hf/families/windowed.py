"""AFMoE, Laguna and MiMo-V2: most layers see only a sliding window."""

from __future__ import annotations

from weft.frontends.hf.config import Config
from weft.frontends.hf.families.llama import llama_keys
from weft.frontends.hf.families.qwen import split_experts
from weft.frontends.hf.family import NORM_BEHIND, ROTARY, Family, Named
from weft.frontends.hf.keys import Pairs
from weft.frontends.hf.values import Values
from weft.frontends.hf.vocab import llama

__all__ = ["FAMILIES"]


def _afmoe_keys(c: Config) -> Pairs:
    yield from llama_keys(c)
    yield "expert_shared_count", c["num_shared_experts"]
    yield "expert_feed_forward_length", c["moe_intermediate_size"]
    yield "leading_dense_block_count", c["num_dense_layers"]
    if "route_norm" in c:
        yield "expert_weights_norm", bool(c["route_norm"])
    if "route_scale" in c:
        yield "expert_weights_scale", float(c["route_scale"])
    if "sliding_window" in c:
        yield "attention.sliding_window", c["sliding_window"]
    if not c.get("mup_enabled"):  # files have no key for it
        raise c.bad("mup_enabled", "is not true, which weft needs here")


def _afmoe_change(c: Config, name: str, values: Values) -> Named:
    if name.endswith("mlp.expert_bias"):
        name += ".bias"
    yield from split_experts(c, name, values)


def _laguna_keys(c: Config) -> Pairs:
    yield "vocab_size", c.count("vocab_size")
    heads = c.get("num_attention_heads_per_layer")
    yield "attention.head_count", heads or [c.n_head] * c.n_layer
    if c.get("sliding_window"):
        yield "attention.sliding_window", c["sliding_window"]
    yield "expert_feed_forward_length", c["moe_intermediate_size"]
    yield "expert_shared_feed_forward_length", c["shared_expert_intermediate_size"]
    yield "expert_weights_norm", True
    yield "expert_weights_scale", float(c["moe_routed_scaling_factor"])
    yield "expert_gating_func", 2
    kinds = c["mlp_layer_types"]
    yield (
        "leading_dense_block_count",
        next((il for il, kind in enumerate(kinds) if kind != "dense"), len(kinds)),
    )
    for key, kind in (("", "full_attention"), ("_swa", "sliding_attention")):
        rope = c.rope_of(kind)
        if rope:
            part = float(rope.get("partial_rotary_factor", 1.0))
            yield f"rope.dimension_count{key}", int(c.head_dim * part)


def _mimo_windows(c: Config) -> list[bool]:
    kinds = c.get("layer_types")
    if kinds:
        return [kind == "sliding_attention" for kind in kinds]
    return [bool(flag) for flag in c["hybrid_layer_pattern"]]


def _mimo_keys(c: Config) -> Pairs:
    n_kv, windows = c.n_head_kv, _mimo_windows(c)
    of_windows = c.get("swa_num_key_value_heads", 2 * n_kv)
    yield "attention.head_count_kv", [of_windows if window else n_kv for window in windows]
    yield "attention.sliding_window", c["sliding_window"]
    yield "attention.sliding_window_pattern", windows
    yield "attention.value_length", c["v_head_dim"]
    yield "expert_count", c["n_routed_experts"]
    yield "expert_feed_forward_length", c["moe_intermediate_size"]
    part = c.main_rope.get("partial_rotary_factor", 0.334)
    yield "rope.dimension_count", int(c.head_dim * part)
    yield "attention.layer_norm_rms_epsilon", float(c.first("layernorm_epsilon", "rms_norm_eps"))
    if c.get("attention_value_scale") is not None:
        yield "attention.value_scale", float(c["attention_value_scale"])
    if c.get("routed_scaling_factor", 1.0) != 1.0:
        yield "expert_weights_scale", float(c["routed_scaling_factor"])


def _mimo_change(c: Config, name: str, values: Values) -> Named:
    if name.startswith("model.mtp."):  # layers that draft tokens
        return
    name = name.replace("attention_sink_bias", "sinks")
    yield from split_experts(c, f"{name}.weight" if name.endswith(".sinks") else name, values)


FAMILIES = {
    "afmoe": Family(
        "afmoe",
        _afmoe_keys,
        vocab=llama,
        change=_afmoe_change,
        names=NORM_BEHIND,
        defaults={**ROTARY, "head_dim": 128},
        experts=("gate_proj", "up_proj", "down_proj"),
        windows=lambda il: il % 4 != 3,
    ),
    "laguna": Family(
        "laguna",
        _laguna_keys,
        change=split_experts,
        defaults={"head_dim": 128, "moe_routed_scaling_factor": 1.0},
        experts=("gate_proj", "up_proj", "down_proj"),
        windows=lambda il: il % 4 != 0,
    ),
    "mimo2": Family(
        "mimo2",
        _mimo_keys,
        change=_mimo_change,
        defaults={"rope_theta": 5e6},
        norm_topk=True,
    ),
}
