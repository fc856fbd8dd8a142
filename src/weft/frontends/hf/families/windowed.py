"""AFMoE, EXAONE, Laguna, MiMo-V2 and OLMo: most layers see only a sliding window."""

from __future__ import annotations

import re

from weft.frontends.hf.config import Config
from weft.frontends.hf.families.deepseek import weight_keys
from weft.frontends.hf.families.llama import llama_keys
from weft.frontends.hf.families.qwen import split_experts
from weft.frontends.hf.family import NORM_BEHIND, ROTARY, Family, Named
from weft.frontends.hf.keys import Pairs, drafting, llama3_factors, n_draft, window_keys
from weft.frontends.hf.values import Values
from weft.frontends.hf.vocab import llama


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


# EXAONE 3 and 4, and K-EXAONE.


def _exaone_keys(c: Config) -> Pairs:
    part = c.rope.get("partial_rotary_factor", 1.0)
    yield "rope.dimension_count", int(part * (c.n_embd // c.n_head))


def exaone_keys(c: Config) -> Pairs:
    """The vocabulary's size and the windows."""
    yield "vocab_size", c.count("vocab_size")
    pattern = c.get("sliding_window_pattern")
    default = None
    if isinstance(pattern, str) and pattern:

        def default(il: int) -> bool:
            return pattern[il % len(pattern)] == "L"
    elif isinstance(pattern, int):

        def default(il: int) -> bool:
            return (il + 1) % pattern != 0

    yield from window_keys(c, default)


def _exaone_moe_keys(c: Config) -> Pairs:
    yield from exaone_keys(c)
    width, n_shared = c["moe_intermediate_size"], c["num_shared_experts"]
    yield "expert_feed_forward_length", width
    yield "expert_shared_count", n_shared
    yield "expert_shared_feed_forward_length", width * n_shared
    yield from weight_keys(c)
    yield "leading_dense_block_count", c.get("first_k_dense_replace", 0)
    yield "nextn_predict_layers", n_draft(c)
    yield "rope.scaling.type", "none"


_MTP = {"fc": "eh_proj", "pre_fc_norm_embedding": "enorm", "pre_fc_norm_hidden": "hnorm",
        "norm": "shared_head.norm"}  # fmt: skip


def _exaone_change(c: Config, name: str, values: Values) -> Named:
    draft = re.fullmatch(r"mtp\.layers\.(\d+)\.(.+)", name)
    outer = re.fullmatch(r"mtp\.(\w+)\.weight", name)
    if draft:
        name = f"model.layers.{int(draft[1]) + c.n_layer}.{draft[2]}"
    elif outer and outer[1] in _MTP:  # all layers that draft share these
        for il in range(c.n_layer, c.n_layer + n_draft(c)):
            yield f"model.layers.{il}.{_MTP[outer[1]]}.weight", values
        return
    yield from split_experts(c, name, values)


# OLMo, OLMo 2, OLMo 3 and OLMoE.


def _keys(c: Config) -> Pairs:
    yield "attention.layer_norm_epsilon", 1e-5
    if c.get("clip_qkv") is not None:
        yield "attention.clamp_kqv", float(c["clip_qkv"])


def _olmo2_keys(c: Config) -> Pairs:
    return window_keys(c, lambda il: (il + 1) % 4 != 0)


def _olmoe_keys(c: Config) -> Pairs:
    if c.get("clip_qkv") is not None:  # files have no key for it
        raise c.bad("clip_qkv", f"is {c['clip_qkv']}, which weft does not know here")
    yield "attention.layer_norm_rms_epsilon", float(c.get("rms_norm_eps", 1e-5))


FAMILIES = {
    "afmoe": Family(
        "afmoe", _afmoe_keys, vocab=llama, change=_afmoe_change, names=NORM_BEHIND,
        defaults={**ROTARY, "head_dim": 128}, experts=("gate_proj", "up_proj", "down_proj"),
        windows=lambda il: il % 4 != 3,
    ),
    "laguna": Family(
        "laguna", _laguna_keys, change=split_experts,
        defaults={"head_dim": 128, "moe_routed_scaling_factor": 1.0},
        experts=("gate_proj", "up_proj", "down_proj"), windows=lambda il: il % 4 != 0,
    ),
    "mimo2": Family(
        "mimo2", _mimo_keys, change=_mimo_change, defaults={"rope_theta": 5e6}, norm_topk=True,
    ),
    "exaone": Family("exaone", _exaone_keys, extra=llama3_factors, defaults=ROTARY),
    "exaone4": Family(
        "exaone4", exaone_keys, names=NORM_BEHIND, extra=llama3_factors, defaults=ROTARY,
    ),
    "exaone-moe": Family(
        "exaone-moe", _exaone_moe_keys, common=drafting, change=_exaone_change,
        extra=llama3_factors, defaults=ROTARY,
    ),
    "olmo": Family("olmo", _keys, defaults=ROTARY, adjacent=True),
    "olmo2": Family("olmo2", _olmo2_keys, names=NORM_BEHIND, defaults=ROTARY),
    "olmo3": Family(
        "olmo2", _olmo2_keys, names=NORM_BEHIND,
        defaults={"rope_theta": 500000.0, "sliding_window": 4096},
    ),
    "olmoe": Family("olmoe", _olmoe_keys, change=split_experts, defaults=ROTARY, norm_topk=False),
}  # fmt: skip
