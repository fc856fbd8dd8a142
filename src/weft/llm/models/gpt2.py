"""GPT-2 (Radford et al., 2019): learned positions, LayerNorm, and a feed-forward layer of two
matrices around GELU.

StarCoder (arXiv 2305.06161) has one key and value head for all query heads."""

from __future__ import annotations

from dataclasses import replace

from weft.graph import RopeMode
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.models.architecture import Architecture
from weft.llm.models.parts import LAYER, Mlp

__all__ = ["ARCHITECTURES"]


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets learned positions and no rotation."""
    return replace(c.without_rope(), n_positions=c.n_ctx_train)


_GPT2 = Architecture(RopeMode.NEOX, configure, norm=LAYER, feed_forward=Mlp())

ARCHITECTURES = {"gpt2": _GPT2, "starcoder": _GPT2}
