"""Cohere's Command R and Command R7B."""

from __future__ import annotations

import numpy as np

from weft.frontends.hf.config import Config
from weft.frontends.hf.families.qwen import split_experts
from weft.frontends.hf.family import ROTARY, Family, Named
from weft.frontends.hf.keys import Pairs, common_keys, window_keys
from weft.frontends.hf.values import Values

__all__ = ["FAMILIES", "tied"]


def _common(c: Config) -> Pairs:
    """The context is the tokenizer's, where config.json has it: `max_position_embeddings` is less
    than what the model was trained for."""
    for key, value in common_keys(c):
        longest = c.first("model_max_length", "max_position_embeddings")
        yield key, longest if key == "context_length" else value


def _keys(c: Config) -> Pairs:
    yield "logit_scale", float(c["logit_scale"])
    yield "rope.scaling.type", "none"


def _keys2(c: Config) -> Pairs:
    yield "logit_scale", float(c["logit_scale"])
    yield "attention.sliding_window", c["sliding_window"]
    yield "vocab_size", c.count("vocab_size")
    part = c.first("rotary_pct") or 1.0
    yield "rope.dimension_count", int(part * c.head_dim)
    yield "rope.scaling.type", "none"


def _keys_moe(c: Config) -> Pairs:
    kinds = c.get("mlp_layer_types")
    n_dense = c.get("first_k_dense_replace", 0)
    if kinds:
        n_dense = next((il for il, kind in enumerate(kinds) if kind != "dense"), len(kinds))
    width, n_shared = c["intermediate_size"], c.get("num_shared_experts", 0)
    yield "logit_scale", float(c["logit_scale"])
    yield from window_keys(c)
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
    """Biases are all zero, and files have none."""
    if name.endswith(".bias"):
        if np.any(values.load()):
            raise c.bad("architectures", f"has no biases, but tensor {name} is not zero")
        return
    if name != "lm_head.weight" or not c.get("tie_word_embeddings", True):
        yield name, values


def tied(c: Config, name: str, values: Values) -> Named:
    """Leaves out the output where it is the embedding."""
    if name != "lm_head.weight" or not c.get("tie_word_embeddings", True):
        yield name, values


FAMILIES = {
    "command-r": Family(
        "command-r",
        _keys,
        common=_common,
        change=tied,
        defaults={"rope_theta": 500000.0, "logit_scale": 0.0625},
    ),
    "cohere2moe": Family(
        "cohere2moe",
        _keys_moe,
        change=_experts_without_biases,
        defaults={**ROTARY, "logit_scale": 0.0625, "head_dim": 128},
    ),
    "cohere2": Family(
        "cohere2",
        _keys2,
        change=_without_biases,
        defaults={
            **ROTARY,
            "logit_scale": 0.0625,
            "head_dim": 0,
            "sliding_window": 4096,
        },
        windows=lambda il: il % 4 != 3,
    ),
}
