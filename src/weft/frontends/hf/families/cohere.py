"""Cohere's Command R and Command R7B."""

from __future__ import annotations

import numpy as np

from weft.frontends.hf.config import Config
from weft.frontends.hf.family import Family, Named
from weft.frontends.hf.keys import Pairs, common_keys
from weft.frontends.hf.values import Values

__all__ = ["FAMILIES"]


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
    yield "rope.dimension_count", int(part * (c.n_embd // c.n_head))
    yield "rope.scaling.type", "none"


def _without_biases(c: Config, name: str, values: Values) -> Named:
    """Biases are all zero, and files have none."""
    if name.endswith(".bias"):
        if np.any(values.load()):
            raise c.bad("architectures", f"has no biases, but tensor {name} is not zero")
        return
    if name != "lm_head.weight":
        yield name, values


def _tied(c: Config, name: str, values: Values) -> Named:
    if name != "lm_head.weight":  # the same as the embedding
        yield name, values


FAMILIES = {
    "command-r": Family(
        "command-r",
        _keys,
        common=_common,
        change=_tied,
        defaults={"rope_theta": 500000.0, "logit_scale": 0.0625},
    ),
    "cohere2": Family(
        "cohere2",
        _keys2,
        change=_without_biases,
        defaults={
            "rope_theta": 10000.0,
            "logit_scale": 0.0625,
            "head_dim": 0,
            "sliding_window": 4096,
        },
    ),
}
