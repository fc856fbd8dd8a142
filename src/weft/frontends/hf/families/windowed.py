"""AFMoE, EXAONE, Laguna, MiMo-V2 and OLMo: most layers see only a sliding window."""

from __future__ import annotations

import re

import numpy as np

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


# Maple, Spark X2.5, SmallThinker and Step 3.5.


def _rotated(c: Config, kind: str) -> int:
    rope = c.rope_of(kind) or c.rope
    return int(c.head_dim * float(rope.get("partial_rotary_factor", 1.0)))


def _maple_keys(c: Config) -> Pairs:
    for key, value in (
        ("num_shared_experts", 0),
        ("norm_topk_prob", True),
        ("nope_on_global_attention", True),
    ):
        if c.get(key, value) != value:
            raise c.bad(key, f"is {c[key]!r}, which must be {value!r} here")
    yield "vocab_size", c.count("vocab_size")
    yield "rope.dimension_count", _rotated(c, "full_attention")
    yield from window_keys(c)
    yield "expert_feed_forward_length", c["moe_intermediate_size"]
    yield "swiglu_clamp_exp", [7.0] * c.n_layer  # as the model's own code has it


def _spark_keys(c: Config) -> Pairs:
    for key, value in (("gate_attn_act_mode", "sigmoid"), ("headwise_attn_output_gate", True)):
        if c.get(key, value) != value:
            raise c.bad(key, f"is {c[key]!r}, which must be {value!r} here")
    yield "vocab_size", c.count("vocab_size")
    yield from window_keys(c)
    yield "rope.dimension_count", _rotated(c, "full_attention")
    yield "rope.dimension_count_swa", _rotated(c, "sliding_attention")


def _thinker_keys(c: Config) -> Pairs:
    width = c["moe_ffn_hidden_size"]
    yield "expert_count", c.n_expert
    yield "expert_used_count", c["moe_num_active_primary_experts"]
    yield "expert_feed_forward_length", width
    yield "feed_forward_length", width
    yield "expert_gating_func", 1 if c.get("moe_primary_router_apply_softmax") else 2
    windowed = [bool(flag) for flag in c.get("sliding_window_layout") or ()]
    if any(windowed):
        yield "attention.sliding_window", c["sliding_window_size"]
        if windowed != [il % 4 != 0 for il in range(c.n_layer)]:
            yield "attention.sliding_window_pattern", windowed
    rotates = [bool(flag) for flag in c.get("rope_layout") or ()]
    if rotates and rotates != (windowed if any(windowed) else [True] * c.n_layer):
        raise c.bad("rope_layout", "must be the same as sliding_window_layout here")


def _step_kinds(c: Config) -> list[str]:
    """The kinds of layers, and of those that draft, which attend as a full one unless it says."""
    n = c.n_layer + n_draft(c)
    kinds = list(c.get("layer_types") or ())
    return (kinds + ["full_attention"] * n)[:n]


def _step_keys(c: Config) -> Pairs:
    kinds, other = _step_kinds(c), c.get("attention_other_setting") or {}
    for kind, usual in (("full_attention", 0.5), ("sliding_attention", 1.0)):
        part = c.rope_of(kind).get("partial_rotary_factor", 1.0)
        if c.rope_of("full_attention") and part != usual:
            raise c.bad("partial_rotary_factor", f"is {part}, which must be {usual} for {kind}")
    scalar = c.get("query_pre_attn_scalar", c.head_dim)
    if scalar != c.head_dim:
        raise c.bad("query_pre_attn_scalar", f"is {scalar}, which must be head_dim, {c.head_dim}")
    n_head, n_kv = c.n_head, c.first("num_attention_groups", "num_key_value_heads")
    few = (
        other.get("num_attention_heads") or c.get("num_sliding_attention_heads") or n_head,
        other.get("num_attention_groups") or c.get("num_sliding_key_value_heads") or n_kv,
    )
    for i, (key, all_) in enumerate((("head_count", n_head), ("head_count_kv", n_kv))):
        numbers = [few[i] if kind == "sliding_attention" else all_ for kind in kinds]
        yield f"attention.{key}", numbers
    yield "attention.sliding_window", c["sliding_window"]
    yield "attention.sliding_window_pattern", [kind == "sliding_attention" for kind in kinds]
    yield "attention.value_length", c.head_dim
    yield "expert_count", c.first("moe_num_experts", "n_routed_experts", "num_local_experts")
    yield "expert_used_count", c.first("moe_top_k", "num_experts_per_tok")
    yield "expert_feed_forward_length", c["moe_intermediate_size"]
    yield "expert_shared_feed_forward_length", c["share_expert_dim"]
    if c.get("moe_router_scaling_factor") is not None:
        yield "expert_weights_scale", float(c["moe_router_scaling_factor"])
    yield "expert_weights_norm", bool(c.get("norm_expert_weight", True))
    layers, mlps = str(c.get("moe_layers_enum") or ""), list(c.get("mlp_layer_types") or ())
    routed = sorted(int(il) for il in layers.split(",") if il.strip())
    routed = routed or [il for il, kind in enumerate(mlps) if kind == "sparse"]
    yield "leading_dense_block_count", routed[0] if routed else 0
    yield "moe_every_n_layers", int(c.get("moe_every_n_layer", 1))
    yield "attention.layer_norm_rms_epsilon", float(c.get("rms_norm_eps", 1e-5))
    for key, name in (("exp", "swiglu_limits"), ("shexp", "swiglu_limits_shared")):
        if c.get(name) is not None:
            limits = [float(limit or 0.0) for limit in c[name]] + [0.0] * len(kinds)
            yield f"swiglu_clamp_{key}", limits[: len(kinds)]
    if n_draft(c):
        yield "nextn_predict_layers", n_draft(c)


def _step_factors(c: Config) -> Named:
    """LLaMA 3's divisors, for the half of a head that rotates in layers that see everything."""
    n = c.head_dim // 2
    for name, values in llama3_factors(c, n):
        factors = np.ones(n, np.float32)
        factors[: values.size] = values.load()
        yield name, Values((n,), "f32", factors.copy)


def _step_change(c: Config, name: str, values: Values) -> Named:
    name = name.replace(".transformer.", ".").replace("shared_head.output", "shared_head.head")
    name = name.replace(".moe.router_bias", ".moe.router_bias.bias")
    if name.endswith("norm.weight"):
        values = values.through(lambda x: x + 1)
    if name.endswith((".g_proj.weight", "moe.gate.weight")) or ".moe." in name:
        sizes = [n for n in values.shape if n != 1]
        values = values.reshaped(*sizes) if len(sizes) > 1 else values
    yield from split_experts(c, name, values)


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
        fixed={"moe_router_logit_softcapping": (0.0,)},
    ),
    "mimo2": Family(
        "mimo2", _mimo_keys, change=_mimo_change, defaults={"rope_theta": 5e6}, norm_topk=True,
    ),
    "maple": Family("maple", _maple_keys, defaults=ROTARY),
    "smallthinker": Family(
        "smallthinker", _thinker_keys, defaults=ROTARY, experts=("down", "gate", "up"),
        activation="", norm_topk=True, names={
            "block_sparse_moe.primary_router": "ffn_gate_inp",
            "block_sparse_moe.experts.gate": "ffn_gate_exps",
            "block_sparse_moe.experts.up": "ffn_up_exps",
            "block_sparse_moe.experts.down": "ffn_down_exps",
        },
    ),
    "spark2_5": Family(
        "spark2_5", _spark_keys, names={"self_attn.q_k_v_proj": "attn_qkv"}, activation="gelu",
    ),
    "step35": Family(
        "step35", _step_keys, common=drafting, change=_step_change, extra=_step_factors,
        defaults=ROTARY, names={
            "moe.gate": "ffn_gate_inp", "moe.router_bias": "exp_probs_b",
            "moe.gate_proj": "ffn_gate_exps", "moe.up_proj": "ffn_up_exps",
            "moe.down_proj": "ffn_down_exps", "share_expert.gate_proj": "ffn_gate_shexp",
            "share_expert.up_proj": "ffn_up_shexp", "share_expert.down_proj": "ffn_down_shexp",
        },
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
