"""Jais (arXiv 2308.16149): LayerNorm and biases, ALiBi (arXiv 2108.12409) in place of a rotation, a
gated feed-forward layer, and scores divided by the size of a head, not by its root."""

from __future__ import annotations

from dataclasses import replace

from weft.graph import RopeMode
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.models.architecture import Architecture
from weft.llm.models.parts import LAYER

__all__ = ["ARCHITECTURES"]


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the scale of scores, and that nothing rotates."""
    return replace(c.without_rope(), attn_scale=1.0 / c.head_dim_k)


ARCHITECTURES = {"jais": Architecture(RopeMode.NEOX, configure, norm=LAYER)}
