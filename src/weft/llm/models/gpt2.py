"""GPT-2 (Radford et al., 2019): learned positions, LayerNorm, and a feed-forward layer of two
matrices around GELU."""

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


ARCHITECTURES = {"gpt2": Architecture(RopeMode.NEOX, configure, norm=LAYER, feed_forward=Mlp())}
