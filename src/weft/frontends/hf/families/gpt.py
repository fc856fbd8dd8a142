"""GPT-2 and models of its kind, from Bloom and Falcon to StableLM, Command R and Phi."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from weft.frontends.hf.config import Config
from weft.frontends.hf.families.qwen import split_experts
from weft.frontends.hf.family import ROTARY, Family, Named, never
from weft.frontends.hf.keys import (
    Pairs,
    common_keys,
    long_factors,
    long_magnitude,
    original_length,
    window_keys,
)
from weft.frontends.hf.safetensors import open_shards
from weft.frontends.hf.values import Values, stacked, stored_values
from weft.frontends.hf.vocab import Vocabulary, bpe, pieces_or_llama, sentencepiece


def _require(c: Config, **values: bool) -> None:
    """Raises FormatError for a setting, False or True, that files have no key for."""
    for key, value in values.items():
        if bool(c.get(key, value)) is not value:
            raise c.bad(key, f"is {c[key]}, which weft does not know here")


def _gpt2_keys(c: Config) -> Pairs:
    _require(c, scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False)
    width = c.n_embd
    yield "block_count", c.n_layer
    yield "context_length", c.first("n_ctx", "n_positions")
    yield "embedding_length", width
    yield "feed_forward_length", c.get("n_inner") or 4 * width
    yield "attention.head_count", c.n_head
    yield "attention.layer_norm_epsilon", float(c.get("layer_norm_epsilon", 1e-5))
    yield "general.file_type", None


def _starcoder_keys(c: Config) -> Pairs:
    _require(c, scale_attn_weights=True, multi_query=True)
    yield "context_length", c["n_positions"]
    yield "embedding_length", c.n_embd
    yield "feed_forward_length", c.get("n_inner") or 4 * c.n_embd
    yield "block_count", c.n_layer
    yield "attention.head_count", c.n_head
    yield "attention.head_count_kv", 1
    yield "attention.layer_norm_epsilon", float(c.get("layer_norm_epsilon", 1e-5))
    yield "general.file_type", None


def _transposed(c: Config, name: str, values: Values) -> Named:
    """GPT-2's matrices are stored with inputs outermost."""
    if name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")):
        values = values.through(lambda x: x.T, values.shape[::-1])
    yield name, values


def _neox_keys(c: Config) -> Pairs:
    yield "context_length", c["max_position_embeddings"]
    yield "embedding_length", c.n_embd
    yield "block_count", c.n_layer
    yield "feed_forward_length", c["intermediate_size"]
    part = c.first("rotary_pct") or c.rope.get("partial_rotary_factor", 0.25)
    yield "rope.dimension_count", int(part * (c.n_embd // c.n_head))
    yield "attention.head_count", c.n_head
    yield "use_parallel_residual", bool(c.get("use_parallel_residual", True))
    yield "attention.layer_norm_epsilon", float(c.get("layer_norm_eps", 1e-5))


def _heads_apart(c: Config, name: str, values: Values) -> Named:
    """Puts the queries of all heads first, then the keys, then the values; the folder has the three
    of a head together."""
    if "query_key_value" in name:
        n, rest = c.n_head, values.shape[1:]
        values = values.through(
            lambda x: x.reshape(n, 3, -1, *rest).swapaxes(0, 1).reshape(x.shape)
        )
    yield name, values


def _bloom_keys(c: Config) -> Pairs:
    _require(c, apply_residual_connection_post_layernorm=False)
    width = c.n_embd
    yield "context_length", c.get("seq_length", width)
    yield "embedding_length", width
    yield "feed_forward_length", 4 * width
    yield "block_count", c.n_layer
    yield "attention.head_count", c.n_head
    yield "attention.head_count_kv", c.n_head
    yield "attention.layer_norm_epsilon", float(c.get("layer_norm_epsilon", 1e-5))
    yield "general.file_type", None


def _mpt_keys(c: Config) -> Pairs:
    attention = c.get("attn_config", {})
    yield "context_length", c["max_seq_len"]
    yield "embedding_length", c.n_embd
    yield "block_count", c.n_layer
    yield "feed_forward_length", 4 * c.n_embd
    yield "attention.head_count", c.n_head
    if attention.get("kv_n_heads"):
        yield "attention.head_count_kv", attention["kv_n_heads"]
    yield "attention.layer_norm_epsilon", float(c.get("layer_norm_epsilon", 1e-5))
    if attention.get("clip_qkv") is not None:
        yield "attention.clamp_kqv", float(attention["clip_qkv"])
    bias = attention.get("alibi_bias_max", 8) if attention.get("alibi", True) else 0.0
    yield "attention.max_alibi_bias", float(bias)


def _falcon_keys(c: Config) -> Pairs:
    _require(c, alibi=False)
    yield "context_length", 2048  # not in config.json
    yield "tensor_data_layout", "jploski"
    yield "embedding_length", c.n_embd
    yield "feed_forward_length", c.get("ffn_hidden_size") or 4 * c.n_embd
    yield "block_count", c.n_layer
    yield "attention.head_count", c.n_head
    yield "attention.head_count_kv", _falcon_kv(c)
    yield "attention.layer_norm_epsilon", float(c.get("layer_norm_epsilon", 1e-5))
    yield "general.file_type", None


def _falcon_kv(c: Config) -> int:
    """Groups of heads with a key and a value of their own. Falcon 7B has one for all, whatever
    `num_kv_heads` says."""
    if c.get("multi_query", True) and not c.get("new_decoder_architecture"):
        return 1
    return int(c.first("num_kv_heads", "n_head_kv") or 1)


def _falcon_parts(c: Config, name: str, values: Values) -> Named:
    """A group is the queries of its heads, a key and a value; all queries go first, then the keys,
    then the values."""
    if "query_key_value" in name:
        n_kv, dim = _falcon_kv(c), c.n_embd // c.n_head
        each = c.n_head // n_kv

        def regrouped(x: NDArray[np.float32]) -> NDArray[np.float32]:
            groups = x.reshape(n_kv, each + 2, dim, -1)
            parts = (groups[:, :-2], groups[:, -2:-1], groups[:, -1:])
            return np.concatenate([p.reshape(-1, groups.shape[-1]) for p in parts])

        values = values.through(regrouped)
    yield name, values


def _codeshell_keys(c: Config) -> Pairs:
    yield "context_length", c["n_positions"]
    yield "embedding_length", c.n_embd
    yield "feed_forward_length", 4 * c.n_embd
    yield "block_count", c.n_layer
    yield "attention.head_count", c.n_head
    yield "attention.head_count_kv", c["num_query_groups"]
    yield "attention.layer_norm_epsilon", float(c["layer_norm_epsilon"])
    yield "general.file_type", None
    yield "rope.freq_base", 10000.0
    yield "rope.scaling.type", "linear"
    yield "rope.scaling.factor", 1.0


def _stablelm_keys(c: Config) -> Pairs:
    yield "context_length", c["max_position_embeddings"]
    yield "embedding_length", c.n_embd
    yield "block_count", c.n_layer
    yield "feed_forward_length", c["intermediate_size"]
    part = c.rope.get("partial_rotary_factor", 0.25)
    yield "rope.dimension_count", int(part * (c.n_embd // c.n_head))
    yield "attention.head_count", c.n_head
    yield "attention.head_count_kv", c.n_head_kv
    yield "use_parallel_residual", bool(c.get("use_parallel_residual", False))
    yield "attention.layer_norm_epsilon", float(c.first("layer_norm_eps", "norm_eps"))
    yield "general.file_type", None


def _norms_together(c: Config, tensors: Named) -> Iterator[tuple[str, Values]]:
    """Joins the norms of heads of StableLM 2 12B, which are a tensor each."""
    waiting: dict[str, dict[int, Values]] = {}
    for name, values in tensors:
        norm = re.fullmatch(r"(.*\.([qk])_layernorm)\.norms\.(\d+)\.weight", name)
        if norm is None:
            yield name, values
            continue
        heads = waiting.setdefault(norm[1], {})
        heads[int(norm[3])] = values
        if len(heads) == (c.n_head if norm[2] == "q" else c.n_head_kv):
            yield f"{norm[1]}.weight", stacked([heads[i] for i in sorted(heads)])


# Cohere's Command R and Command R7B.


def _common(c: Config) -> Pairs:
    """The context is the tokenizer's, where config.json has it: `max_position_embeddings` is less
    than what the model was trained for."""
    for key, value in common_keys(c):
        longest = c.first("model_max_length", "max_position_embeddings")
        yield key, longest if key == "context_length" else value


def _keys(c: Config) -> Pairs:
    yield "logit_scale", float(c["logit_scale"])
    yield "rope.scaling.type", "none"


def _cohere2_keys(c: Config) -> Pairs:
    yield "logit_scale", float(c["logit_scale"])
    yield "attention.sliding_window", c["sliding_window"]
    yield "vocab_size", c.count("vocab_size")
    part = c.first("rotary_pct") or 1.0
    yield "rope.dimension_count", int(part * c.head_dim)
    yield "rope.scaling.type", "none"


def _cohere2moe_keys(c: Config) -> Pairs:
    kinds = c.get("mlp_layer_types")
    n_dense = c.get("first_k_dense_replace", 0)
    if kinds:
        n_dense = next((il for il, kind in enumerate(kinds) if kind != "dense"), len(kinds))
    width, n_shared = c["intermediate_size"], c.get("num_shared_experts", 0)
    yield "logit_scale", float(c["logit_scale"])
    yield from window_keys(c)
    if c.get("prefix_dense_sliding_window_pattern", 1) != 1:  # dense layers rotate as others do
        rotates = [kind == "sliding_attention" for kind in c["layer_types"]]
        yield "attention.rope_pattern", rotates
    yield "vocab_size", c.count("vocab_size")
    yield "expert_feed_forward_length", width
    yield "leading_dense_block_count", n_dense
    chosen = c.get("expert_selection_fn", "softmax") == "softmax"  # over these experts alone
    yield "expert_weights_norm", chosen or bool(c.get("norm_topk_prob", True))
    if n_shared:
        if c.get("shared_expert_combination_strategy", "average") != "average":
            raise c.bad("shared_expert_combination_strategy", "must be average")
        yield "expert_shared_count", n_shared
        yield "expert_shared_feed_forward_length", width * n_shared
    n_draft = int(c.get("num_nextn_predict_layers", 0))
    if n_draft:
        raise c.bad("num_nextn_predict_layers", "must be 0: layers that draft are not read here")
    yield "rope.dimension_count", c.head_dim
    yield "rope.scaling.type", "none"


def _experts_without_biases(c: Config, name: str, values: Values) -> Named:
    for new, changed in _without_biases(c, name, values):
        yield from split_experts(c, new, changed)


def _without_biases(c: Config, name: str, values: Values) -> Named:
    """Leaves out biases that are zero; only attention may have others."""
    if name.endswith(".bias") and not np.any(values.load()):
        return
    if name.endswith(".bias") and ".self_attn." not in name:
        raise c.bad("architectures", f"has no biases, but tensor {name} is not zero")
    if name != "lm_head.weight" or not c.get("tie_word_embeddings", True):
        yield name, values


def tied(c: Config, name: str, values: Values) -> Named:
    """Leaves out the output where it is the embedding."""
    if name != "lm_head.weight" or not c.get("tie_word_embeddings", True):
        yield name, values


# Phi-2, Phi-3 and Phi-4.


def _phi_keys2(c: Config) -> Pairs:
    yield "context_length", c.first("n_positions", "max_position_embeddings")
    yield "embedding_length", c.n_embd
    yield "feed_forward_length", c.first("intermediate_size", "n_inner") or 4 * c.n_embd
    yield "block_count", c.n_layer
    yield "attention.head_count", c.n_head
    yield "attention.head_count_kv", c.n_head
    yield "attention.layer_norm_epsilon", float(c.first("layer_norm_epsilon", "layer_norm_eps"))
    yield "rope.dimension_count", int(c.rope["partial_rotary_factor"] * c.n_embd) // c.n_head
    yield "general.file_type", None
    yield "tokenizer.ggml.add_bos_token", False


def _rotated(c: Config) -> int:
    return int(c.rope.get("partial_rotary_factor", 1.0) * c.n_embd) // c.n_head


def _keys3(c: Config) -> Pairs:
    yield "context_length", c.first("n_positions", "max_position_embeddings")
    yield "rope.scaling.original_context_length", original_length(c)
    yield "embedding_length", c.n_embd
    yield "feed_forward_length", c["intermediate_size"]
    yield "block_count", c.n_layer
    yield "attention.head_count", c.n_head
    yield "attention.head_count_kv", c.n_head_kv
    yield "attention.layer_norm_rms_epsilon", float(c["rms_norm_eps"])
    yield "rope.dimension_count", _rotated(c)
    yield "rope.freq_base", float(c.main_rope["rope_theta"])
    yield "general.file_type", None
    yield "attention.sliding_window", c.get("sliding_window", 0)


def _magnitude(c: Config) -> Pairs:
    if c.rope.get("long_factor") and c.rope.get("rope_type") != "default":
        yield "rope.scaling.attn_factor", long_magnitude(c)


def _phi_keys_moe(c: Config) -> Pairs:
    yield "expert_used_count", c["num_experts_per_tok"]
    yield "expert_count", c.n_expert


def _vocab3(c: Config) -> Vocabulary:
    """Phi-4 has GPT-2's kind of vocabulary; Phi-3 has LLaMA's."""
    if c.json("tokenizer_config.json").get("tokenizer_class") == "GPT2Tokenizer":
        yield from bpe(c)
    else:
        yield from pieces_or_llama(c)


# Jais and PLaMo.


def _jais_keys(c: Config) -> Pairs:
    for key, value in (("activation_function", "swiglu"), ("position_embedding_type", "alibi")):
        if c.get(key, value) != value:
            raise c.bad(key, f"is {c[key]!r}, which must be {value!r} here")
    yield "block_count", c.n_layer
    yield "context_length", c["n_positions"]
    yield "embedding_length", c.n_embd
    yield "feed_forward_length", c["n_inner"]
    yield "attention.head_count", c.n_head
    yield "attention.layer_norm_epsilon", float(c["layer_norm_epsilon"])
    yield "general.file_type", None
    slopes, bias = open_shards(c.folder).get("transformer.relative_pe.slopes"), 8
    if slopes is not None:  # the first is 2^-(bias / heads)
        first = max(float(stored_values(slopes).load().reshape(-1)[0]), 1e-30)
        bias = -round(math.log2(first) * 2 ** math.floor(math.log2(c.n_head)))
    yield "attention.max_alibi_bias", float(bias)


def _jais_change(c: Config, name: str, values: Values) -> Named:
    if name.endswith("relative_pe.slopes"):
        return
    if name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight", ".c_fc2.weight")):
        rows, columns = values.shape
        values = values.through(lambda x: x.T, (columns, rows))
    scale = 1.0
    if name == "transformer.wte.weight":
        scale = c.first("mup_embeddings_scale", "embeddings_scale") or 1.0
    elif name == "lm_head.weight":
        alpha = c.get("mup_output_alpha")
        scale = alpha * c["mup_width_scale"] if alpha is not None else c.get("width_scale", 1.0)
    yield name, values.through(lambda x: x * np.float32(scale)) if scale != 1.0 else values


def _plamo_keys(c: Config) -> Pairs:
    yield "context_length", c.get("max_position_embeddings", 4096)
    yield "embedding_length", c.n_embd
    yield "feed_forward_length", c["intermediate_size"]
    yield "block_count", c.n_layer
    yield "attention.head_count", c.n_head
    yield "attention.head_count_kv", _plamo_kv(c)
    yield "attention.layer_norm_rms_epsilon", float(c["rms_norm_eps"])
    yield "general.file_type", None


def _plamo_kv(c: Config) -> int:
    """Key heads; `num_key_value_heads` of config.json is something else."""
    return int(c.n_head // c.get("n_shared_head", 8))


def _plamo_change(c: Config, name: str, values: Values) -> Named:
    """Query heads take turns with the keys that they share; files have them one after another."""
    name = name.replace("layers.layers.", "layers.")
    n_kv, d, width = _plamo_kv(c), c.n_embd // c.n_head, c.n_embd
    if name.endswith("self_attn.q_proj.weight"):
        values = values.through(
            lambda x: x.reshape(-1, n_kv, d, width).swapaxes(0, 1).reshape(x.shape)
        )
    elif name.endswith("self_attn.o_proj.weight"):
        values = values.through(
            lambda x: x.reshape(width, -1, n_kv, d).swapaxes(1, 2).reshape(x.shape)
        )
    yield name, values


FAMILIES = {
    "jais": Family(
        "jais", common=_jais_keys, change=_jais_change, names={"mlp.c_fc2": "ffn_gate"},
        activation="",
    ),
    "plamo": Family(
        "plamo", common=_plamo_keys, change=_plamo_change, vocab=sentencepiece, defaults=ROTARY,
    ),
    "gpt2": Family("gpt2", common=_gpt2_keys, change=_transposed, activation="gelu"),
    "gptneox": Family("gptneox", common=_neox_keys, change=_heads_apart, activation="gelu"),
    "bloom": Family("bloom", common=_bloom_keys, change=_heads_apart, activation="gelu"),
    "mpt": Family("mpt", common=_mpt_keys, activation="gelu"),
    "falcon": Family("falcon", common=_falcon_keys, change=_falcon_parts, activation="gelu"),
    "starcoder": Family("starcoder", common=_starcoder_keys, activation="gelu"),
    "starcoder2": Family("starcoder2", defaults=ROTARY, windows=never, activation="gelu"),
    "codeshell": Family("codeshell", common=_codeshell_keys, activation="gelu"),
    "stablelm": Family(
        "stablelm", common=_stablelm_keys, join=_norms_together,
        defaults={**ROTARY, "partial_rotary_factor": 0.25, "layer_norm_eps": 1e-5},
    ),
    "command-r": Family(
        "command-r", _keys, common=_common, change=tied,
        defaults={"rope_theta": 500000.0, "logit_scale": 0.0625},
    ),
    "cohere2moe": Family(
        "cohere2moe", _cohere2moe_keys, change=_experts_without_biases,
        defaults={**ROTARY, "logit_scale": 0.0625, "head_dim": 128},
    ),
    "cohere2": Family(
        "cohere2", _cohere2_keys, change=_without_biases,
        defaults={**ROTARY, "logit_scale": 0.0625, "head_dim": 0, "sliding_window": 4096},
        windows=lambda il: il % 4 != 3,
    ),
    "phi2": Family(
        "phi2", common=_phi_keys2,
        defaults={**ROTARY, "partial_rotary_factor": 0.5, "layer_norm_eps": 1e-5},
        activation="gelu",
    ),
    "phi3": Family(
        "phi3", common=_keys3, first=_magnitude, extra=long_factors, vocab=_vocab3,
        defaults={**ROTARY, "rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096},
    ),
    "phimoe": Family(
        "phimoe", _phi_keys_moe, common=_keys3, first=_magnitude, extra=long_factors, vocab=_vocab3,
        defaults={"rope_theta": 1e6, "rms_norm_eps": 1e-5}, experts=("w1", "w2", "w3"),
        windows=never,
    ),
}  # fmt: skip
