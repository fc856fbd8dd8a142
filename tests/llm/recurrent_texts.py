"""Tiny recurrent models whose states last."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from tests.llm.made_models import configure, context, keys_of, made_up
from tests.llm.other_models import OTHERS
from tests.llm.tiny import write_model
from weft.llm.compute.context import Context

__all__ = ["NAMES", "alone", "write_lasting"]

USUAL = ("mamba", "lfm2", "qwen35", "kimi", "rwkv7")
RARE = ("mamba2", "qwen3next", "granitehybrid", "falcon-h1", "rwkv6", "ling3", "minimax-01",
        "glm5-next", "qwen4exp", "kimi k3")  # fmt: skip
NAMES = [*USUAL, *(pytest.param(name, marks=pytest.mark.part("models")) for name in RARE)]
"""A model of each kind of state, and others of these kinds in the part models."""


def write_lasting(folder: Path, name: str, more: dict[str, object] | None = None) -> Path:
    """Writes the model `name` with more metadata; returns its path."""
    arch, changes = OTHERS[name]
    meta = keys_of(arch, changes) | (more or {})
    tensors = made_up(configure(folder, meta))
    # states that last: A near 0, so that what comes first still matters in the end
    tensors |= {n: -np.abs(0.05 * a) for n, a in tensors.items() if n.endswith("ssm_a")}
    return write_model(folder / f"{name}.gguf", meta, tensors)


@lru_cache(maxsize=1)
def _context_alone(path: Path) -> Context:
    return context(path)


def alone(path: Path, tokens: list[int]) -> np.ndarray:
    """Logits of a text that a context reads alone."""
    c = _context_alone(path)
    c.clear()
    return c.decode(tokens)
