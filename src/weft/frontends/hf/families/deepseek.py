"""DeepSeek and GLM with latent attention, and relatives: DeepSeekMoE, Ling, dots.llm1, MiniCPM3."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from weft.frontends.hf.config import Config
from weft.frontends.hf.families.qwen import expert_keys, split_experts
from weft.frontends.hf.family import ROTARY, Family, Named, never
from weft.frontends.hf.keys import Pairs, common_keys, drafting, long_factors, n_draft
from weft.frontends.hf.special import SpecialTokens
from weft.frontends.hf.values import Values
from weft.frontends.hf.vocab import Vocabulary, bpe, llama, pieces_or_bpe, sentencepiece, token_id


def _common(c: Config) -> Pairs:
    for key, value in common_keys(c):
        if key == "block_count":
            value = c.n_layer + _n_draft(c)
        elif key == "attention.head_count_kv":
            value = 1  # the latent vector is the key and value of all heads
        yield key, value


def _n_draft(c: Config) -> int:
    """Layers that predict the token after the next; files of DeepSeek-V2, V3 and Kimi lack them."""
    return 0 if c.cls in _WITHOUT_DRAFTS else int(c.get("num_nextn_predict_layers", 0))


_WITHOUT_DRAFTS = ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "HYV4ForCausalLM",
                   "KimiVLForConditionalGeneration", "KimiK25ForConditionalGeneration",
                   "Kimi_K25ForConditionalGeneration")  # fmt: skip


def _keys(c: Config) -> Pairs:
    routed = c.get("n_routed_experts")
    dense = c.get("first_k_dense_replace")
    yield "leading_dense_block_count", dense if dense is not None else 0 if routed else c.n_layer
    rank = c.get("kv_lora_rank", 512)
    yield "vocab_size", c.count("vocab_size")
    if c.get("q_lora_rank") is not None:
        yield "attention.q_lora_rank", c["q_lora_rank"]
    rotated = c["qk_rope_head_dim"]
    part = c.rope.get("partial_rotary_factor")
    if part is not None and int(c.get("head_dim", rotated) * part) != rotated:
        raise c.bad("partial_rotary_factor", f"is {part}; times head_dim it must be {rotated}, "
                    "qk_rope_head_dim")  # fmt: skip
    yield "attention.kv_lora_rank", rank
    yield "attention.key_length", rank + rotated
    yield "attention.value_length", rank
    yield "attention.key_length_mla", c["qk_nope_head_dim"] + rotated
    yield "attention.value_length_mla", c["v_head_dim"]
    yield from _routing(c)
    yield "rope.dimension_count", rotated
    if c.cls == "Mistral4ForCausalLM" and c.get("n_group", 1) > 1:  # chosen by two of each group
        raise c.bad("n_group", f"is {c['n_group']}, which must be 1 here")
    if c.rope.get("llama_4_scaling_beta"):
        yield "attention.temperature_scale", float(c.rope["llama_4_scaling_beta"])
    _check_yarn(c)
    if c.rope.get("mscale_all_dim") is not None:
        yield "rope.scaling.yarn_log_multiplier", 0.1 * c.rope["mscale_all_dim"]
    if c.cls == "Glm4MoeLiteForCausalLM" and _n_draft(c):
        yield "nextn_predict_layers", _n_draft(c)


def _routing(c: Config) -> Pairs:
    """The experts and how they are chosen."""
    yield "expert_feed_forward_length", c.first("moe_intermediate_size", "intermediate_size")
    if c.get("n_routed_experts") is not None:
        yield "expert_count", c["n_routed_experts"]
    yield "expert_shared_count", c.get("n_shared_experts", 0)
    if c.get("routed_scaling_factor") is not None:
        yield "expert_weights_scale", float(c["routed_scaling_factor"])
    if c.get("norm_topk_prob"):
        yield "expert_weights_norm", True
    if c.get("topk_method") == "greedy" and c.get("n_group", 1) > 1:  # groups have no effect
        yield "expert_group_count", 1
        yield "expert_group_used_count", 1


def _check_yarn(c: Config) -> None:
    """Files have one number for the magnitude of YaRN in scores and in rotated vectors. Raises
    FormatError where it does not say both."""
    rope = c.rope
    if rope.get("rope_type") != "yarn":
        return
    both = rope.get("mscale"), rope.get("mscale_all_dim")
    if rope.get("attention_factor") is not None or None in both or both[0] != both[1]:
        raise c.bad("rope_scaling", "must have the same mscale and mscale_all_dim, and no "
                    "attention_factor, beside yarn here")  # fmt: skip


def _indexed(c: Config) -> Pairs:
    """The indexer of sparse attention."""
    yield from _keys(c)
    if c.cls.startswith("Glm"):
        part = c.rope.get("partial_rotary_factor", 1.0)
        yield "rope.dimension_count", int(c["qk_rope_head_dim"] * part)
    if "num_nextn_predict_layers" in c:
        yield "nextn_predict_layers", _n_draft(c)
    yield "attention.indexer.head_count", c["index_n_heads"]
    yield "attention.indexer.key_length", c["index_head_dim"]
    yield "attention.indexer.top_k", c["index_topk"]
    if c.cls.startswith("Glm") and c.get("indexer_types"):
        yield "attention.indexer.types", [kind == "full" for kind in c["indexer_types"]]


def _change(c: Config, name: str, values: Values) -> Named:
    layer = re.match(r"model\.layers\.(\d+)\.", name)
    if layer and int(layer[1]) >= c.n_layer + _n_draft(c):
        return
    if c.get("tie_word_embeddings") and name.endswith("lm_head.weight"):
        return
    if name.endswith("kv_b_proj.weight"):
        yield from split_latent(c, name, values)
        return
    stem = name.removesuffix(".weight")
    if stem.endswith("mlp.experts.gate_up_proj"):
        yield from split_experts(c, name, values)
        return
    yield (f"{stem}.weight" if stem.endswith("mlp.experts.down_proj") else name), values


def split_latent(
    c: Config, name: str, values: Values, sizes: Mapping[str, Any] | None = None
) -> Named:
    """Takes apart the matrices of keys and values that heads compute from the latent; `sizes` are
    the layer's, if they are not config.json's."""
    keys, vals = (sizes or c)["qk_nope_head_dim"], (sizes or c)["v_head_dim"]
    n, rank = values.shape[0] // (keys + vals), values.shape[-1]
    each = values.reshaped(n, keys + vals, rank)
    yield (
        name.replace("kv_b_proj", "k_b_proj"),
        each.through(lambda x: x[:, :keys].swapaxes(1, 2), (n, rank, keys)),
    )
    yield (
        name.replace("kv_b_proj", "v_b_proj"),
        each.through(lambda x: x[:, keys:], (n, vals, rank)),
    )


def glm_moe_vocab(c: Config) -> Vocabulary:
    """The vocabulary of GLM 4.5 and later, whose texts begin with [gMASK]."""
    special = SpecialTokens(c, merges=True)
    plain = (pair for pair in glm_vocab(c) if not is_special(pair[0]))
    yield from plain
    for kind, text in (("bos", "[gMASK]"), ("eot", "<|user|>"), ("unk", "<|endoftext|>"),
                       ("eom", "<|observation|>")):  # fmt: skip
        special.set(kind, token_id(c, text))
    yield from special.keys()


def is_special(key: str) -> bool:
    """True for keys of the tokenizer behind its vocabulary."""
    names = ("model", "pre", "tokens", "token_type")
    return key not in {f"tokenizer.ggml.{name}" for name in names}


_DEFAULTS = {**ROTARY, "rms_norm_eps": 1e-6, "head_dim": 64}


def _bailing_parts(c: Config, name: str, values: Values) -> Named:
    stem, found, kind = name.partition("attention.query_key_value")
    if name == "lm_head.weight" and c.get("norm_head"):
        # the matrix of the head is normed column by column
        values = values.through(
            lambda x: x / np.maximum(np.sqrt((x * x).sum(0, keepdims=True)), np.float32(1e-7))
        )
    if not found:
        yield name, values
        return
    q, kv = c.n_head * c.head_dim, c.n_head_kv * c.head_dim
    for part, cut in zip("qkv", values.split(q, kv, kv), strict=True):
        yield f"{stem}self_attn.{part}_proj{kind}", cut


def _deepseek_keys(c: Config) -> Pairs:
    yield "rope.dimension_count", c.head_dim
    yield "rope.scaling.type", "none"
    yield "leading_dense_block_count", c["first_k_dense_replace"]
    yield "vocab_size", c.count("vocab_size")
    yield "expert_feed_forward_length", c["moe_intermediate_size"]
    yield "expert_weights_scale", 1.0
    yield "expert_count", c["n_routed_experts"]
    yield "expert_shared_count", c["n_shared_experts"]


# DeepSeek-OCR, whose text model has no latent attention. Published folders say so with `use_mla`,
# and name DeepSeek-V2's class for the text.


def _of_ocr(config: Mapping[str, Any]) -> str:
    text = config.get("language_config")
    plain = isinstance(text, dict) and text.get("use_mla") is False
    return "deepseek2-ocr" if plain or config.get("use_mla") is False else ""


def _ocr_template(c: Config) -> Pairs:
    """The template of folders without one: the contents, one after another."""
    yield "tokenizer.chat_template", "{% for m in messages %}{{m['content']}}{% endfor %}"


def n_dense(c: Config) -> int:
    """The number of dense layers in front of the mixtures."""
    given, kinds = c.get("first_k_dense_replace"), c.get("mlp_layer_types")
    if given is None and isinstance(kinds, list):
        given = next((il for il, kind in enumerate(kinds) if kind != "dense"), c.n_layer)
    return given or 0


def _ocr_keys(c: Config) -> Pairs:
    yield "leading_dense_block_count", n_dense(c)
    yield "vocab_size", c.count("vocab_size")
    yield from _routing(c)
    yield "rope.dimension_count", c.get("qk_rope_head_dim", 0)  # 0: all elements of a head rotate
    window = c.first("sliding_window_size", "sliding_window")
    if window:
        yield "attention.sliding_window", window


def _bailing_keys(c: Config) -> Pairs:
    yield "rope.dimension_count", c.head_dim
    yield "leading_dense_block_count", c["first_k_dense_replace"]
    yield "vocab_size", c.count("vocab_size")
    yield "expert_feed_forward_length", c["moe_intermediate_size"]
    yield "expert_weights_scale", 1.0
    yield "expert_shared_count", c["num_shared_experts"]
    yield "expert_weights_norm", bool(c["norm_topk_prob"])


def _minicpm3_keys(c: Config) -> Pairs:
    for key, value in (("scale_emb", 12), ("scale_depth", 1.4), ("dim_model_base", 256)):
        if c.get(key, value) != value:  # files have no keys for them
            raise c.bad(key, f"is {c[key]}, and weft knows only {value}")
    yield "general.file_type", None
    yield "context_length", c["max_position_embeddings"]
    yield "embedding_length", c.n_embd
    yield "block_count", c.n_layer
    yield "feed_forward_length", c["intermediate_size"]
    yield "attention.head_count", c.n_head
    yield "attention.head_count_kv", c.n_head_kv
    yield "attention.layer_norm_rms_epsilon", float(c["rms_norm_eps"])
    yield "vocab_size", c.count("vocab_size")
    if c.get("q_lora_rank") is not None:
        yield "attention.q_lora_rank", c["q_lora_rank"]
    yield "attention.kv_lora_rank", c["kv_lora_rank"]
    yield "attention.key_length", c["qk_nope_head_dim"] + c["qk_rope_head_dim"]
    yield "rope.dimension_count", c["qk_rope_head_dim"]


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


def _sarvam_keys(c: Config) -> Pairs:
    yield from _ling_keys(c)
    yield "rope.dimension_count", c.head_dim


def _sarvam_change(c: Config, name: str, values: Values) -> Named:
    """The bias that balances experts has a mean of 0."""
    if name.endswith("gate.expert_bias"):
        values = values.through(lambda x: x - x.mean(dtype=np.float32))
    yield from _ling_change(c, name, values)


def _plm_keys(c: Config) -> Pairs:
    yield "vocab_size", c.count("vocab_size")
    yield "attention.kv_lora_rank", c["kv_lora_rank"]
    yield "attention.key_length", c["qk_nope_head_dim"] + c["qk_rope_head_dim"]
    yield "attention.value_length", c["v_head_dim"]
    yield "rope.dimension_count", c["qk_rope_head_dim"]


def _ling_change(c: Config, name: str, values: Values) -> Named:
    if name.endswith("gate.expert_bias"):
        name += ".bias"
    yield from split_experts(c, name, values)


def weight_keys(c: Config) -> Pairs:
    yield "expert_weights_scale", float(c["routed_scaling_factor"])
    yield "expert_weights_norm", bool(c["norm_topk_prob"])


def _dots_keys(c: Config) -> Pairs:
    yield from expert_keys(c)
    yield "leading_dense_block_count", c["first_k_dense_replace"]
    yield "expert_shared_count", c["n_shared_experts"]
    yield from weight_keys(c)


def glm_vocab(c: Config) -> Vocabulary:
    """The vocabulary of GLM 4, whose texts end with <|endoftext|> and turns with <|user|>."""
    special = SpecialTokens(c, merges=True)
    yield from (pair for pair in bpe(c) if not pair[0].startswith(SPECIAL_KEYS))
    for kind, text in (("eos", "<|endoftext|>"), ("eot", "<|user|>"), ("unk", "<|endoftext|>"),
                       ("bos", "<|endoftext|>")):  # fmt: skip
        special.set(kind, token_id(c, text))
    yield from special.keys()


SPECIAL_KEYS = ("tokenizer.ggml.merges", "tokenizer.ggml.add_", "tokenizer.chat_template",
                 "tokenizer.ggml.normalizer", *(f"tokenizer.ggml.{k}_token_id" for k in (
                     "bos", "eos", "unknown", "seperator", "padding", "cls", "mask")))  # fmt: skip


latent_common, latent_keys, latent_change = _common, _keys, _change
"""The parts of the family that others of its kind share."""

_LATENT = Family("deepseek2", _keys, common=_common, change=_change, defaults=_DEFAULTS)
_SPARSE = replace(_LATENT, arch="deepseek32", keys=_indexed)

FAMILIES = {
    "deepseek2": replace(_LATENT, variant=_of_ocr),
    "deepseek2-ocr": Family(
        "deepseek2-ocr", _ocr_keys, first=_ocr_template, change=_change,
        defaults={"rms_norm_eps": 1e-6},
    ),
    "mistral4": replace(
        _LATENT, arch="mistral4", vocab=llama, defaults={**ROTARY, "rms_norm_eps": 1e-6},
    ),
    "glm4_moe_lite": replace(
        _LATENT, vocab=glm_moe_vocab, defaults={**ROTARY, "rms_norm_eps": 1e-5},
    ),
    "deepseek32": _SPARSE,
    "glm-dsa": replace(
        _SPARSE, arch="glm-dsa", vocab=glm_moe_vocab, defaults={**ROTARY, "rms_norm_eps": 1e-5},
    ),
    "bailingmoe": Family(
        "bailingmoe", _bailing_keys, change=_bailing_parts, defaults=ROTARY, adjacent=True,
    ),
    "deepseek": Family(
        "deepseek", _deepseek_keys, vocab=pieces_or_bpe, defaults=ROTARY, adjacent=True,
    ),
    "minicpm3": Family(
        "minicpm3", common=_minicpm3_keys, extra=long_factors, vocab=sentencepiece, defaults=ROTARY,
    ),
    "bailingmoe2": Family(
        "bailingmoe2", _ling_keys, common=drafting, change=_ling_change, defaults=ROTARY,
    ),
    "sarvam": Family(
        "bailingmoe2", _sarvam_keys, common=drafting, change=_sarvam_change, defaults=ROTARY,
    ),
    "plm": Family("plm", _plm_keys, defaults=ROTARY, activation="relu2"),
    "dots1": Family("dots1", _dots_keys, change=split_experts, defaults=ROTARY, windows=never),
}  # fmt: skip
