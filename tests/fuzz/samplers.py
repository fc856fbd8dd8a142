"""Samplers with hostile logits and options: a token comes out, or a WeftError."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import WeftError
from weft.llm import Sampler, SamplingParams

NUMBERS = [0, 1, 1, 1.0, 0.9, -1, 0.5, 2, 5, 40, 1e-9, 1e9, -1e9, 1e300, -1e300, 5e-324, 1e-38,
           float("inf"), float("-inf"), float("nan"), 1 << 31, 1 << 63,
           -(1 << 63), True, None, "x"]  # fmt: skip
FILLS = [0.0, 1e38, -1e38, 3.4e38, float("inf"), float("-inf"), float("nan"), 1e-45]


def options(rng: random.Random) -> dict[str, Any]:
    """Some fields of SamplingParams."""
    names = [field.name for field in dataclasses.fields(SamplingParams)]
    names = [name for name in names if name not in ("grammar", "json_schema", "regex")]
    chosen: dict[str, Any] = {
        name: rng.choice(NUMBERS) for name in rng.sample(names, rng.randrange(1, 4))
    }
    if "logit_bias" in chosen:
        chosen["logit_bias"] = {rng.choice([0, 3, 10**9, -1]): rng.choice(NUMBERS)}
    if "dry_sequence_breakers" in chosen:
        chosen["dry_sequence_breakers"] = rng.choice([("\n",), ("\ud800",), ("",), (1,), "x"])
    return chosen


def logits(rng: random.Random, n: int) -> NDArray[np.float32]:
    """A row with some hostile values."""
    row = np.random.default_rng(rng.randrange(1 << 30)).normal(0, 5, n).astype(np.float32)
    if rng.random() < 0.3:
        row[:] = rng.choice(FILLS)
    for _ in range(rng.randrange(5)):
        row[rng.randrange(n)] = rng.choice(FILLS)
    return row


def check(seed: int) -> bool:
    """Whether a token came out."""
    rng = random.Random(seed)
    n = rng.choice([1, 2, 7, 50, 5000])
    try:
        sampler = Sampler(SamplingParams(**options(rng)))
        for _ in range(3):
            id_ = sampler.sample(logits(rng, n))
            assert 0 <= id_ < n
            sampler.accept(id_)
    except WeftError:
        return False
    return True


def run(seed: int, n: int) -> int:
    """Tries `n` samplers; returns how many gave tokens."""
    with np.errstate(all="raise", under="ignore"):
        return sum(check(seed * 1_000_003 + i) for i in range(n))
