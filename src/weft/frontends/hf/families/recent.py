"""Relatives of families elsewhere: Ling 2.0, MiMo-V2, Solar Open, Maincoder, openPangu, DeciLM."""

from __future__ import annotations

from weft.frontends.hf.config import Config
from weft.frontends.hf.families.deepseek import MTP_NAMES
from weft.frontends.hf.families.llama import DERIVED, ROTARY
from weft.frontends.hf.families.mixtures import drafting, glm_keys, n_draft
from weft.frontends.hf.families.qwen import split_experts
from weft.frontends.hf.family import Family, Named
from weft.frontends.hf.keys import Pairs, common_keys
from weft.frontends.hf.rope import llama3_factors
from weft.frontends.hf.values import Values
from weft.frontends.hf.vocab import Vocabulary, bpe, has, llama, sentencepiece

__all__ = ["FAMILIES"]


def _ling_keys(c: Config) -> Pairs:
    width, n_shared = c["moe_intermediate_size"], c["num_shared_experts"]
    yield "rope.dimension_count", int(c.head_dim * c.rope.get("partial_rotary_factor", 0.5))
    yield "leading_dense_block_count", c["first_k_dense_replace"]
    yield "vocab_size", c.count("vocab_size")
    yield "expert_feed_forward_length", width
    yield (
        "expert_shared_feed_forward_length",
        c.get("moe_shared_expert_intermediate_size", width * n_shared),
    )
    yield "expert_weights_scale", float(c["routed_scaling_factor"])
    yield "expert_shared_count", n_shared
    yield "expert_weights_norm", bool(c["norm_topk_prob"])
    if "num_nextn_predict_layers" in c:
        yield "nextn_predict_layers", n_draft(c)


def _ling_change(c: Config, name: str, values: Values) -> Named:
    if name.endswith("gate.expert_bias"):
        name += ".bias"
    yield from split_experts(c, name, values)


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


def _solar_keys(c: Config) -> Pairs:
    for key, value in glm_keys(c):
        whole = key == "rope.dimension_count" and "partial_rotary_factor" not in c.rope
        yield key, c.head_dim if whole else value


def _head_keys(c: Config) -> Pairs:
    yield "rope.dimension_count", c.head_dim


def _pangu_keys(c: Config) -> Pairs:
    yield "vocab_size", c.count("vocab_size")
    yield "rope.dimension_count", c.head_dim
    yield "attention.key_length", c.head_dim
    yield "attention.value_length", c.head_dim


def _pieces(c: Config) -> Vocabulary:
    return sentencepiece(c) if has(c, "tokenizer.model") else llama(c)


def _deci_blocks(c: Config) -> tuple[list[int], list[int], list[int]]:
    """Heads, key heads and the width of the feed-forward layer, by layer."""
    heads, heads_kv, widths = [], [], []
    for block in c["block_configs"]:
        group = block["attention"]["n_heads_in_group"]
        linear = bool(block["attention"].get("replace_with_linear"))
        heads.append(c.n_head if group or linear else 0)
        heads_kv.append(c.n_head // group if group else 0)
        width = int(2 * (block["ffn"]["ffn_mult"] or 0) * c.n_embd / 3)
        widths.append(-(-width // 256) * 256)
    return heads, heads_kv, widths


def _deci_common(c: Config) -> Pairs:
    blocks = _deci_blocks(c) if "block_configs" in c else None
    each = ("attention.head_count", "attention.head_count_kv", "feed_forward_length")
    for key, value in common_keys(c):
        if blocks and key in each:
            value = blocks[each.index(key)]
        yield key, value
    if blocks:
        yield each[1], blocks[1]
        yield each[2], blocks[2]
    elif "num_key_value_heads_per_layer" in c:
        yield each[1], c["num_key_value_heads_per_layer"]
    yield "vocab_size", c.count("vocab_size")
    yield "rope.dimension_count", c.head_dim


def _deci_change(c: Config, name: str, values: Values) -> Named:
    yield name.replace("self_attn.linear_attn", "self_attn.o_proj"), values


def _deci_vocab(c: Config) -> Vocabulary:
    return llama(c) if c.count("vocab_size") != 128256 else bpe(c)


FAMILIES = {
    "bailingmoe2": Family(
        "bailingmoe2",
        _ling_keys,
        common=drafting,
        names={
            **MTP_NAMES,
            "attention.query_key_value": "attn_qkv",
            "attention.dense": "attn_output",
            "attention.query_layernorm": "attn_q_norm",
            "attention.key_layernorm": "attn_k_norm",
            "mlp.gate.expert_bias": "exp_probs_b",
            "final_layernorm": "layer_output_norm",
        },
        change=_ling_change,
        defaults=ROTARY,
    ),
    "mimo2": Family("mimo2", _mimo_keys, change=_mimo_change, defaults={"rope_theta": 5e6}),
    "solar_open": Family(
        "glm4moe",
        _solar_keys,
        common=drafting,
        names={"post_attention_layernorm": "post_attention_norm"},
        change=split_experts,
        defaults={"rope_theta": 1e6, "head_dim": 128, "first_k_dense_replace": 0},
    ),
    "maincoder": Family("maincoder", _head_keys, defaults=DERIVED),
    "pangu-embedded": Family("pangu-embedded", _pangu_keys, vocab=_pieces, defaults=DERIVED),
    "deci": Family(
        "deci",
        common=_deci_common,
        change=_deci_change,
        extra=llama3_factors,
        vocab=_deci_vocab,
        defaults=DERIVED,
        adjacent=True,
    ),
}
