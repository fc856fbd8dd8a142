"""MiniCPM3 (OpenBMB, 2024): DeepSeek-V2's latent attention, with the keys and values of all heads
cached, and Granite's constants, which files do not have. PLM (arXiv 2503.12167) has no constants,
and squared ReLU without a gate in the feed-forward layer."""

from __future__ import annotations

import math
from dataclasses import replace

from weft.graph import RopeMode
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.models.architecture import Architecture
from weft.llm.models.deepseek2 import LatentAttention, configure_latent
from weft.llm.models.granite import Granite
from weft.llm.models.parts import Mlp, squared_relu

__all__ = ["ARCHITECTURES"]


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the sizes of attention and the constants."""
    return replace(
        configure_latent(c, keys),
        embedding_scale=12.0,
        residual_scale=1.4 / math.sqrt(c.n_layer),
        logit_scale=c.n_embd / 256,
    )


ARCHITECTURES = {
    "minicpm3": Granite(RopeMode.NEOX, configure, attention=LatentAttention()),
    "plm": Architecture(
        RopeMode.NORMAL,
        configure_latent,
        attention=LatentAttention(),
        feed_forward=Mlp(squared_relu),
    ),
}
