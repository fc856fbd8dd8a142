"""Mixtures of experts with a difference or two: dots.llm1, ERNIE 4.5, K-EXAONE, GLM 4.5, Hunyuan,
MiniMax-M2, DBRX."""

from __future__ import annotations

import re

from weft.frontends.hf.config import Config
from weft.frontends.hf.families.deepseek import MTP_NAMES, glm_moe_vocab
from weft.frontends.hf.families.others import ernie_parts, ernie_vocab, exaone_keys
from weft.frontends.hf.families.qwen import expert_keys, split_experts
from weft.frontends.hf.family import Family, Named, never
from weft.frontends.hf.keys import Pairs, common_keys
from weft.frontends.hf.rope import llama3_factors
from weft.frontends.hf.values import Values
from weft.frontends.hf.vocab import Vocabulary, bpe

__all__ = ["FAMILIES", "drafting", "glm_keys", "n_draft"]


def drafting(c: Config) -> Pairs:
    """The common metadata; layers that draft tokens are counted, too."""
    for key, value in common_keys(c):
        yield key, value if key != "block_count" else c.n_layer + n_draft(c)


def n_draft(c: Config) -> int:
    """Layers that draft tokens."""
    return int(c.get("num_nextn_predict_layers", 0))


def _weights(c: Config) -> Pairs:
    yield "expert_weights_scale", float(c["routed_scaling_factor"])
    yield "expert_weights_norm", bool(c["norm_topk_prob"])


def _dots_keys(c: Config) -> Pairs:
    yield from expert_keys(c)
    yield "leading_dense_block_count", c["first_k_dense_replace"]
    yield "expert_shared_count", c["n_shared_experts"]
    yield from _weights(c)


def _ernie_keys(c: Config) -> Pairs:
    yield "expert_count", c["moe_num_experts"]
    yield "expert_used_count", c["moe_k"]
    yield "interleave_moe_layer_step", c["moe_layer_interval"]
    yield "leading_dense_block_count", c["moe_layer_start_index"]
    yield "expert_feed_forward_length", c["moe_intermediate_size"]
    n_shared = c["moe_num_shared_experts"]
    yield "expert_shared_count", n_shared
    if n_shared:  # as converters write it; the count is what is right
        yield "expert_shared_feed_forward_length", c["intermediate_size"] // c.n_head_kv


def _ernie_change(c: Config, name: str, values: Values) -> Named:
    if name.startswith("model.mtp_"):
        return
    name = name.replace("moe_statics.e_score", "e_score")
    for new, changed in ernie_parts(c, name, values):
        yield from split_experts(c, new, changed)


def _exaone_moe_keys(c: Config) -> Pairs:
    yield from exaone_keys(c)
    width, n_shared = c["moe_intermediate_size"], c["num_shared_experts"]
    yield "expert_feed_forward_length", width
    yield "expert_shared_count", n_shared
    yield "expert_shared_feed_forward_length", width * n_shared
    yield from _weights(c)
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


def glm_keys(c: Config) -> Pairs:
    """GLM-4.5's metadata."""
    yield "rope.dimension_count", int(c.head_dim * c.rope.get("partial_rotary_factor", 0.5))
    yield "expert_count", c["n_routed_experts"]
    yield "expert_feed_forward_length", c["moe_intermediate_size"]
    yield "expert_shared_count", c["n_shared_experts"]
    yield "leading_dense_block_count", c["first_k_dense_replace"]
    yield "expert_gating_func", 2
    yield from _weights(c)
    if "num_nextn_predict_layers" in c:
        yield "nextn_predict_layers", n_draft(c)


def _hunyuan_keys(c: Config) -> Pairs:
    yield "expert_shared_feed_forward_length", c["intermediate_size"]
    for key, names in (
        ("expert_feed_forward_length", ("moe_intermediate_size", "intermediate_size")),
        ("expert_used_count", ("moe_topk",)),
        ("expert_shared_count", ("num_shared_expert",)),
    ):
        value = c.first(*names)
        if isinstance(value, list):
            if len(set(value)) != 1:
                raise c.bad(names[0], "differs between layers, which weft does not know")
            value = value[0]
        yield key, 1 if value is None else value
    _plain_rope(c)


def _plain_rope(c: Config) -> Pairs:
    """Raises FormatError for a rotary embedding that is stretched by `alpha`."""
    if c.rope.get("rope_type") in ("dynamic", "xdrope"):
        raise c.bad("rope_scaling", "is dynamic, which weft does not read; convert the model")
    return ()


def _untied(c: Config, name: str, values: Values) -> Named:
    if name != "lm_head.weight" or not c.get("tie_word_embeddings"):
        yield from split_experts(c, name, values)


def _hy_keys(c: Config) -> Pairs:
    width = c["moe_intermediate_size"]
    yield "expert_feed_forward_length", width
    yield "expert_shared_feed_forward_length", width * c.get("num_shared_experts", 1)
    yield "expert_weights_norm", bool(c.get("route_norm", True))
    yield "expert_weights_scale", float(c.get("router_scaling_factor", 1.0))
    yield "expert_gating_func", 2
    if n_draft(c):
        yield "nextn_predict_layers", n_draft(c)


def _minimax_keys(c: Config) -> Pairs:
    yield "expert_feed_forward_length", c["intermediate_size"]
    part = c.rope.get("partial_rotary_factor", 1.0)
    yield "rope.dimension_count", c.get("rotary_dim", int(c.head_dim * part))


_HEADS = {"self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm"}


def _hunyuan_vocab(c: Config) -> Vocabulary:
    yield from bpe(c)
    if c.get("eod_token_id") is not None:
        yield "tokenizer.ggml.eos_token_id", c["eod_token_id"]
    ends = c.json("generation_config.json").get("eos_token_id")
    if isinstance(ends, list) and len(ends) >= 2:
        yield "tokenizer.ggml.eot_token_id", ends[0]


def _dbrx_keys(c: Config) -> Pairs:
    attention, layer = c["attn_config"], c["ffn_config"]
    yield "block_count", c.n_layer
    yield "context_length", c["max_seq_len"]
    yield "embedding_length", c.n_embd
    yield "feed_forward_length", layer["ffn_hidden_size"]
    yield "attention.head_count", c.n_head
    yield "attention.head_count_kv", attention["kv_n_heads"]
    yield "rope.freq_base", float(attention["rope_theta"])
    yield "attention.clamp_kqv", float(attention["clip_qkv"])
    yield "expert_count", layer["moe_num_experts"]
    yield "expert_used_count", layer["moe_top_k"]
    yield "attention.layer_norm_epsilon", 1e-5
    yield "general.file_type", None


def _dbrx_change(c: Config, name: str, values: Values) -> Named:
    """Experts are stacked along the rows."""
    part = name.rpartition(".")[2]
    if ".experts.mlp." not in name or part not in ("w1", "v1", "w2"):
        yield name, values
        return
    n, width = c["ffn_config"]["moe_num_experts"], c.n_embd
    stack = values.reshaped(n, values.shape[0] // n, width)
    if part == "w2":
        shape = (n, width, stack.shape[1])
        stack = stack.through(lambda x: x.swapaxes(1, 2), shape)
    yield f"{name}.weight", stack


_ROTARY = {"rope_theta": 10000.0}

FAMILIES = {
    "dots1": Family("dots1", _dots_keys, change=split_experts, defaults=_ROTARY, windows=never),
    "ernie4_5-moe": Family(
        "ernie4_5-moe",
        _ernie_keys,
        change=_ernie_change,
        vocab=ernie_vocab,
        defaults={"rope_theta": 500000.0},
        experts=("gate_proj", "up_proj", "down_proj"),
    ),
    "exaone-moe": Family(
        "exaone-moe",
        _exaone_moe_keys,
        common=drafting,
        names=MTP_NAMES,
        change=_exaone_change,
        extra=llama3_factors,
        defaults=_ROTARY,
    ),
    "glm4moe": Family(
        "glm4moe",
        glm_keys,
        common=drafting,
        names={**MTP_NAMES, "post_attention_layernorm": "post_attention_norm"},
        change=split_experts,
        vocab=glm_moe_vocab,
        defaults={**_ROTARY, "head_dim": 128},
    ),
    "hunyuan-dense": Family(
        "hunyuan-dense",
        _plain_rope,
        vocab=_hunyuan_vocab,
        names=_HEADS,
        change=_untied,
        defaults=_ROTARY,
    ),
    "hunyuan-moe": Family(
        "hunyuan-moe",
        _hunyuan_keys,
        vocab=_hunyuan_vocab,
        names={
            **_HEADS,
            "mlp.gate.wg": "ffn_gate_inp",
            "mlp.shared_mlp.gate_proj": "ffn_gate_shexp",
            "mlp.shared_mlp.up_proj": "ffn_up_shexp",
            "mlp.shared_mlp.down_proj": "ffn_down_shexp",
        },
        change=_untied,
        defaults=_ROTARY,
    ),
    "hy_v3": Family(
        "hy_v3",
        _hy_keys,
        common=drafting,
        names={
            **MTP_NAMES,
            "mlp.expert_bias": "exp_probs_b",
            "mlp.router.gate": "ffn_gate_inp",
            "mlp.shared_mlp.gate_proj": "ffn_gate_shexp",
            "mlp.shared_mlp.up_proj": "ffn_up_shexp",
            "mlp.shared_mlp.down_proj": "ffn_down_shexp",
        },
        change=split_experts,
        defaults=_ROTARY,
    ),
    "minimax-m2": Family(
        "minimax-m2",
        _minimax_keys,
        names={"block_sparse_moe.e_score_correction": "exp_probs_b"},
        defaults=_ROTARY,
        experts=("w1", "w2", "w3"),
    ),
    "dbrx": Family(
        "dbrx",
        common=_dbrx_keys,
        f32_routers=False,
        change=_dbrx_change,
        outer={"norm_f": "output_norm"},
        names={
            "norm_attn_norm.norm_1": "attn_norm",
            "norm_attn_norm.norm_2": "attn_output_norm",
            "norm_attn_norm.attn.Wqkv": "attn_qkv",
            "norm_attn_norm.attn.out_proj": "attn_output",
            "ffn.router.layer": "ffn_gate_inp",
            "ffn.experts.mlp.w1": "ffn_gate_exps",
            "ffn.experts.mlp.v1": "ffn_up_exps",
            "ffn.experts.mlp.w2": "ffn_down_exps",
        },
    ),
}
