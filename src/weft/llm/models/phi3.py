"""Phi-3 (arXiv 2404.14219): LLaMA's blocks with q, k and v in one matrix, and gate and up in
another. Long contexts have LongRoPE (arXiv 2402.13753): a factor for each rotated pair.

All layers see only the sliding window, where there is one (models for 4096 tokens).
"""

from __future__ import annotations

from dataclasses import replace

from weft.graph import RopeMode
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.models.architecture import Architecture
from weft.llm.models.parts import FusedGated

__all__ = ["ARCHITECTURES"]


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the window of all layers, where it is shorter than the context of training."""
    return replace(c, windowed=(0 < c.sliding_window < c.n_ctx_train,) * c.n_layer)


ARCHITECTURES = {"phi3": Architecture(RopeMode.NEOX, configure, feed_forward=FusedGated())}
