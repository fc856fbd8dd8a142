"""Gemma, Gemma 2 and the text of Gemma 3. Their norms multiply by 1 + weight."""

from __future__ import annotations

from weft.frontends.hf.config import Config
from weft.frontends.hf.family import NORM_BEHIND, Family, Named
from weft.frontends.hf.keys import Pairs, common_keys
from weft.frontends.hf.special import SpecialTokens
from weft.frontends.hf.values import Values
from weft.frontends.hf.vocab import Vocabulary, bpe, has, pieces_or_llama

__all__ = ["FAMILIES", "gemma3_keys", "gemma3_vocab"]


def _keys(c: Config) -> Pairs:
    yield "context_length", c["max_position_embeddings"]
    yield "embedding_length", c.n_embd
    yield "block_count", c.n_layer
    yield "feed_forward_length", c["intermediate_size"]
    yield "attention.head_count", c.n_head
    yield "attention.head_count_kv", c.n_head_kv
    yield "attention.layer_norm_rms_epsilon", float(c["rms_norm_eps"])
    yield "attention.key_length", c.head_dim
    yield "attention.value_length", c.head_dim
    yield "general.file_type", None


def _keys2(c: Config) -> Pairs:
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        yield key, 0.0 if c.is_null(key) else float(c[key])
    yield "attention.sliding_window", c["sliding_window"]
    yield from _scale(c, 46)


def _scale(c: Config, n_layer: int) -> Pairs:
    """The scale of scores, where it is not that of the size of a head; the largest models, of
    `n_layer` layers, have one by the width, which architectures know."""
    usual = c.n_embd // c.n_head if c.n_layer == n_layer else c.head_dim
    scalar = c.get("query_pre_attn_scalar")
    if scalar and scalar != usual:
        yield "attention.scale", float(scalar) ** -0.5


def gemma3_keys(c: Config) -> Pairs:
    """Gemma 3's metadata, which later ones have, too."""
    yield "context_length", c.get("max_position_embeddings", 131072)
    yield "attention.head_count", c.get("num_attention_heads", 8)
    yield "attention.layer_norm_rms_epsilon", float(c.get("rms_norm_eps", 1e-6))
    yield "attention.key_length", c.get("head_dim", 256)
    yield "attention.value_length", c.get("head_dim", 256)
    yield "rope.freq_base", float(c.main_rope.get("rope_theta", 1e6))
    if c.get("final_logit_softcapping"):
        yield "final_logit_softcapping", float(c["final_logit_softcapping"])
    if c.get("sliding_window_pattern") != 1:
        yield "attention.sliding_window", c["sliding_window"]
    yield "attention.head_count_kv", c.get("num_key_value_heads", 4)
    yield from _scale(c, 62)


def _shifted(c: Config, name: str, values: Values) -> Named:
    if name == "lm_head.weight" and c.get("tie_word_embeddings", True):
        return
    if name.endswith("norm.weight"):
        values = values.through(lambda x: x + 1)
    yield name, values


def _vocab(c: Config) -> Vocabulary:
    yield from pieces_or_llama(c)
    special = SpecialTokens(c, kinds=("prefix", "suffix", "middle", "fsep", "eot"))
    ids = (("prefix", 67), ("suffix", 69), ("middle", 68), ("fsep", 70), ("eot", 107))
    for kind, id_ in ids:  # of CodeGemma, and written for all
        special.set(kind, id_)
    special.template = None
    yield from special.keys()
    yield "tokenizer.ggml.add_space_prefix", False


def _vocab2(c: Config) -> Vocabulary:
    yield from pieces_or_llama(c)
    yield "tokenizer.ggml.add_space_prefix", False


def gemma3_vocab(c: Config) -> Vocabulary:
    """The vocabulary of tokenizer.model, or of tokenizer.json of either kind."""
    if has(c, "tokenizer.model"):
        yield from _vocab2(c)
    elif (c.json("tokenizer.json").get("model") or {}).get("byte_fallback"):
        yield from _vocab2(c)
    else:
        yield from bpe(c)


FAMILIES = {
    "gemma": Family(
        "gemma",
        common=_keys,
        change=_shifted,
        vocab=_vocab,
        defaults={"head_dim": 256},
        activation="gelu",
    ),
    "gemma2": Family(
        "gemma2",
        _keys2,
        common=_keys,
        names=NORM_BEHIND,
        change=_shifted,
        vocab=_vocab2,
        defaults={
            "head_dim": 256,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
            "sliding_window": 4096,
        },
        windows=lambda il: il % 2 != 1,
        activation="gelu",
    ),
    "gemma3": Family(
        "gemma3",
        gemma3_keys,
        common=common_keys,
        names=NORM_BEHIND,
        change=_shifted,
        vocab=gemma3_vocab,
        defaults={
            "head_dim": 256,
            "max_position_embeddings": 131072,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1e6,
            "sliding_window": 4096,
            "rope_local_base_freq": 10000.0,
        },
        windows=lambda il: il % 6 != 5,
        activation="gelu",
    ),
}
