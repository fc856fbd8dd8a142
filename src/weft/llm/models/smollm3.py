"""SmolLM3 (Hugging Face, 2025): LLaMA's blocks, with no rotary embedding in every fourth layer
(NoPE, arXiv 2501.18795)."""

from __future__ import annotations

from dataclasses import replace

from weft.graph import RopeMode
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.models.architecture import Architecture
from weft.llm.models.experts import Experts

__all__ = ["ARCHITECTURES"]


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the layers that rotate; no key has them."""
    none = replace(c.rope, n_dims=0)
    return replace(c, ropes=tuple(none if il % 4 == 3 else c.rope for il in range(c.n_layer)))


ARCHITECTURES = {"smollm3": Architecture(RopeMode.NORMAL, configure, feed_forward=Experts())}
