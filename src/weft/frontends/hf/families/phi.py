"""Phi-2, Phi-3 and Phi-4."""

from __future__ import annotations

from weft.frontends.hf.config import Config
from weft.frontends.hf.family import ROTARY, Family, never
from weft.frontends.hf.keys import Pairs
from weft.frontends.hf.rope import long_factors, long_magnitude, original_length
from weft.frontends.hf.vocab import Vocabulary, bpe, pieces_or_llama

__all__ = ["FAMILIES"]


def _keys2(c: Config) -> Pairs:
    yield "context_length", c.first("n_positions", "max_position_embeddings")
    yield "embedding_length", c.n_embd
    yield "feed_forward_length", 4 * c.n_embd
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


def _keys_moe(c: Config) -> Pairs:
    yield "expert_used_count", c["num_experts_per_tok"]
    yield "expert_count", c.n_expert


def _vocab3(c: Config) -> Vocabulary:
    """Phi-4 has GPT-2's kind of vocabulary; Phi-3 has LLaMA's."""
    if c.json("tokenizer_config.json").get("tokenizer_class") == "GPT2Tokenizer":
        yield from bpe(c)
    else:
        yield from pieces_or_llama(c)


FAMILIES = {
    "phi2": Family(
        "phi2",
        common=_keys2,
        defaults={**ROTARY, "partial_rotary_factor": 0.5, "layer_norm_eps": 1e-5},
        activation="gelu",
    ),
    "phi3": Family(
        "phi3",
        common=_keys3,
        first=_magnitude,
        extra=long_factors,
        vocab=_vocab3,
        defaults={
            **ROTARY,
            "rms_norm_eps": 1e-5,
            "original_max_position_embeddings": 4096,
        },
    ),
    "phimoe": Family(
        "phimoe",
        _keys_moe,
        common=_keys3,
        first=_magnitude,
        extra=long_factors,
        vocab=_vocab3,
        defaults={"rope_theta": 1e6, "rms_norm_eps": 1e-5},
        experts=("w1", "w2", "w3"),
        windows=never,
    ),
}
