"""Gemma 1 to 4. The norms of the first three multiply by 1 + weight."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from weft.frontends.hf.config import Config
from weft.frontends.hf.families.gpt import tied
from weft.frontends.hf.family import NORM_BEHIND, Family, Named
from weft.frontends.hf.keys import Pairs, common_keys
from weft.frontends.hf.special import SpecialTokens
from weft.frontends.hf.values import Values, stacked
from weft.frontends.hf.vocab import (
    Vocabulary,
    base_tokens,
    bpe,
    has,
    pieces_or_llama,
    require_vocabulary,
    sentencepiece,
)


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


def _gemma2_keys(c: Config) -> Pairs:
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


# Gemma 3n and Gemma 4: inputs of each layer, shared keys and values.

_SEEN = {"<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>",
         "<tool_response|>", '<|"|>'}  # fmt: skip
"""Control tokens that answers are taken apart by, so that files have them as text."""


def _windowed(c: Config) -> list[bool]:
    return [kind == "sliding_attention" for kind in c["layer_types"]]


# **** Gemma 3n ****


def _keys3n(c: Config) -> Pairs:
    yield from gemma3_keys(c)
    yield "altup.active_idx", c["altup_active_idx"]
    yield "altup.num_inputs", c["altup_num_inputs"]
    yield "embedding_length_per_layer_input", c["hidden_size_per_layer_input"]
    yield "attention.shared_kv_layers", c["num_kv_shared_layers"]
    scales = [_deviations(part) for part in c["activation_sparsity_pattern"]]
    yield "activation_sparsity_scale", np.array(scales, np.float32)
    yield "attention.sliding_window_pattern", _windowed(c)


def _deviations(part: float) -> np.float32:
    """The standard deviations below which a normal value is with the probability `part`, in the
    steps in which the reference's converter rounds."""
    root = np.float32(np.sqrt(2))
    centred = np.float32(2) * np.float32(part) - np.float32(1)
    if centred <= -1:
        return np.float32(-np.inf)
    return np.float32(NormalDist().inv_cdf((float(centred) + 1) / 2) / np.sqrt(2)) * root


def _change3n(c: Config, name: str, values: Values) -> Named:
    if name.endswith("_scale"):
        name += ".weight"
    if "embed_tokens" in name and values.shape[0] < c["vocab_size"]:
        rows, n = values.shape[0], c["vocab_size"]  # ids of images and sound have no rows
        require_vocabulary(c, n, rows)
        values = values.through(
            lambda x: np.pad(x, ((0, n - rows), (0, 0))), (n, *values.shape[1:])
        )
    yield from tied(c, name, values)


def _streams3n(c: Config, tensors: Named) -> Named:
    """Joins the matrices of the streams."""
    parts: dict[str, list[Values]] = {"altup_proj": [], "altup_unembd_proj": []}
    for name, values in tensors:
        if ".altup_" not in name:
            yield name, values
            continue
        together = "altup_unembd_proj" if "unembed" in name else "altup_proj"
        parts[together].append(values)
        if len(parts[together]) == c["altup_num_inputs"] - 1:
            yield f"={together}.weight", stacked(parts[together])


def _vocab3n(c: Config) -> Vocabulary:
    if not has(c, "tokenizer.model"):
        yield from gemma3_vocab(c)
    else:
        yield from sentencepiece(c, n_vocab=c["vocab_size"])
        yield "tokenizer.ggml.add_space_prefix", False


# **** Gemma 4 ****


def _of_full(c: Config, key: str, name: str) -> object:
    """A value of layers that see everything, by its own key or by that of the first of them."""
    if c.get(key) is not None:
        return c[key]
    each = c.get("per_layer_config") or {}
    for il, kind in enumerate(c["layer_types"]):
        found = each.get(str(il), {}).get(name)
        if kind == "full_attention" and found is not None:
            return found
    return None


def _head_dim(c: Config) -> int:
    found = _of_full(c, "global_head_dim", "head_dim")
    if found is None and c.get("per_layer_config") is not None:
        return c.head_dim  # transformers writes nothing where both are equal
    if not isinstance(found, int):
        raise c.bad("global_head_dim", "is missing")
    return found


def _keys4(c: Config) -> Pairs:
    yield from gemma3_keys(c)
    n_shared, windowed = c["num_kv_shared_layers"], _windowed(c)
    yield "attention.shared_kv_layers", n_shared
    yield "embedding_length_per_layer_input", c.get("hidden_size_per_layer_input", 0)
    yield "attention.sliding_window_pattern", windowed
    full = _head_dim(c)
    yield "attention.key_length", full
    yield "attention.value_length", full
    yield "attention.key_length_swa", c.head_dim
    yield "attention.value_length_swa", c.head_dim
    width = c.first("expert_intermediate_size", "moe_intermediate_size")
    if width is not None:
        yield "expert_feed_forward_length", width
    if c.get("use_double_wide_mlp"):
        n, own = c["intermediate_size"], c.n_layer - n_shared
        yield "feed_forward_length", [n if il < own else 2 * n for il in range(c.n_layer)]
    n_full = _of_full(c, "num_global_key_value_heads", "num_key_value_heads")
    if n_full is not None:
        yield "attention.head_count_kv", [c.n_head_kv if w else n_full for w in windowed]
    yield "rope.dimension_count", full
    yield "rope.dimension_count_swa", int(c.head_dim * c.rope.get("partial_rotary_factor", 1.0))


def _factors4(c: Config) -> Named:
    """Pairs of layers that see everything rotate only in part, by divisors."""
    rope, half = c.rope_of("full_attention"), _head_dim(c) // 2
    if rope.get("rope_type") != "proportional":
        raise c.bad("rope_parameters", "of full attention must be proportional")
    n = int(_head_dim(c) * rope["partial_rotary_factor"] / 2)
    factors = np.array([1.0] * n + [1e30] * (half - n), np.float32)
    yield "=rope_freqs.weight", Values(factors.shape, "f32", factors.copy)


def _change4(c: Config, name: str, values: Values) -> Named:
    if name.endswith(("per_dim_scale", "layer_scalar")):
        name += ".weight"
    elif ".experts." in name and not name.endswith(".weight"):
        name += ".weight"
    blk = f"=blk.{name.partition('.layers.')[2].partition('.')[0]}"
    if name.endswith("router.scale"):
        name = f"{blk}.ffn_gate_inp.scale"
    elif name.endswith("router.per_expert_scale"):
        name = f"{blk}.ffn_down_exps.scale"
    yield from tied(c, name, values)


def _vocab4(c: Config) -> Vocabulary:
    special = SpecialTokens(c, merges=True)
    tokens, kinds = base_tokens(c, _SEEN)
    yield "tokenizer.ggml.model", "gemma4"
    yield "tokenizer.ggml.tokens", tokens
    yield "tokenizer.ggml.scores", np.full(len(tokens), -1000.0, np.float32)
    yield "tokenizer.ggml.token_type", np.array(kinds, np.int32)
    yield from special.keys()
    yield "tokenizer.ggml.add_space_prefix", False
    yield "tokenizer.ggml.add_bos_token", True


GEMMA4 = Family(
    "gemma4", _keys4, names=NORM_BEHIND, extra=_factors4, change=_change4, vocab=_vocab4,
    defaults={"head_dim": 256, "rms_norm_eps": 1e-6, "num_kv_shared_layers": 0},
    activation="gelu", fixed={"use_bidirectional_attention": (False, "vision")},
)  # fmt: skip

FAMILIES = {
    "gemma": Family(
        "gemma", common=_keys, change=_shifted, vocab=_vocab, defaults={"head_dim": 256},
        activation="gelu",
    ),
    "gemma2": Family(
        "gemma2",
        _gemma2_keys,
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
    "gemma3n": Family(
        "gemma3n", _keys3n, names=NORM_BEHIND, join=_streams3n, change=_change3n, vocab=_vocab3n,
        defaults={"head_dim": 256, "rms_norm_eps": 1e-6, "rope_local_base_freq": 10000.0},
        activation="gelu", fixed={"altup_correct_scale": (True,)},
    ),
    "gemma4": GEMMA4,
}  # fmt: skip
