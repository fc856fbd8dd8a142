"""BLOOM (arXiv 2211.05100): GPT-2's blocks with a LayerNorm behind the embedding, and attention
with linear biases (ALiBi, arXiv 2108.12409) instead of positions."""

from __future__ import annotations

from dataclasses import replace

from weft.graph import RopeMode
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.models.architecture import Architecture
from weft.llm.models.parts import LAYER, Mlp

__all__ = ["ARCHITECTURES"]


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the slopes of ALiBi from the paper; no key has them."""
    return replace(c.without_rope(), alibi_bias=8.0)


ARCHITECTURES = {
    "bloom": Architecture(
        RopeMode.NEOX,
        configure,
        norm=LAYER,
        feed_forward=Mlp(),
        embedding_norm="token_embd_norm",
    )
}
