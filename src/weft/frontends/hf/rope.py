"""Scaled rotary embeddings: the divisors of angles that files have as tensors, and magnitudes."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from weft.frontends.hf.config import MOST_WIDTH, Config
from weft.frontends.hf.values import Values

__all__ = ["llama3_factors", "long_factors", "long_magnitude", "original_length", "yarn_magnitude"]

Named = Iterable[tuple[str, Values]]


def llama3_factors(c: Config, n_rotated: int = 0) -> Named:
    """LLaMA 3.1's divisors of the rotary frequencies, if the model has them: 1 for wavelengths that
    training has seen often, `factor` for those it has not, and something between. `n_rotated`
    elements of a head rotate (0: all).

    Source: `_compute_llama3_parameters` in transformers."""
    rope = c.main_rope
    if str(rope.get("rope_type", "")).lower() != "llama3":
        return
    base, dim = float(rope.get("rope_theta", 10000.0)), n_rotated or c.head_dim
    if dim > MOST_WIDTH:
        raise c.bad("head_dim", f"is {dim}; a head has at most {MOST_WIDTH} elements")
    # single precision, step by step, as the reference's converter computes them
    powers = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    frequencies = np.float32(1.0) / np.power(base, powers.astype(np.float64)).astype(np.float32)
    factor = rope.get("factor", 8.0)
    low, high = rope.get("low_freq_factor", 1.0), rope.get("high_freq_factor", 4.0)
    seen = rope.get("original_max_position_embeddings", 8192)
    factors = []
    one = np.float32(1)  # quotients are products with reciprocals there
    for frequency in frequencies:
        length = np.float32(2 * math.pi) * (one / frequency)
        if length < np.float32(seen / high):
            factors.append(np.float32(1))
        elif length > np.float32(seen / low):
            factors.append(np.float32(factor))
        else:
            smooth = (np.float32(seen) * (one / length) - np.float32(low)) / np.float32(high - low)
            inverse = (np.float32(1) - smooth) / np.float32(factor) + smooth
            factors.append(np.float32(1) / inverse)
    array = np.array(factors, np.float32)
    yield "=rope_freqs.weight", Values(array.shape, "f32", lambda: array)


def long_factors(c: Config) -> Named:
    """LongRoPE's divisors of angles, for texts within the original context and beyond."""
    if c.main_rope.get("rope_type") == "default":
        return
    for kind in ("long", "short"):
        factors = np.array(c.main_rope.get(f"{kind}_factor") or (), np.float32)
        if len(factors):
            yield f"=rope_factors_{kind}.weight", Values(factors.shape, "f32", factors.copy)


def original_length(c: Config) -> int:
    """The length of texts in training, before positions were scaled."""
    given = c.main_rope.get("original_max_position_embeddings")
    return int(given or c["max_position_embeddings"])


def long_magnitude(c: Config) -> float:
    """LongRoPE's factor of rotated vectors, where the context is longer than it was in training."""
    rope, original = c.main_rope, original_length(c)
    if c.get("model_type") == "phimoe" and "long_mscale" in rope:  # the only class that reads it
        if rope["long_mscale"] != rope.get("short_mscale"):
            raise c.bad("rope_scaling", "must have the same short_mscale and long_mscale here")
        return float(rope["long_mscale"])
    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])
    scale = max(float(rope.get("factor") or c["max_position_embeddings"] / original), 1.0)
    if rope.get("rope_type") == "yarn":
        return 0.1 * math.log(scale) + 1.0
    return math.sqrt(1 + math.log(scale) / math.log(original))


def yarn_magnitude(c: Config) -> float | None:
    """YaRN's factor of rotated vectors, where config.json states it by two multipliers of its
    logarithm; None: it does not."""
    rope = c.main_rope
    over, under = rope.get("mscale"), rope.get("mscale_all_dim")
    if rope.get("attention_factor") is not None or not over or not under:
        return None
    log = 0.1 * math.log(max(float(rope["factor"]), 1.0))
    return float((log * over + 1.0) / (log * under + 1.0))
