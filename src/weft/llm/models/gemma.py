"""Gemma (arXiv 2403.08295): LLaMA's blocks with GeGLU, heads wider than n_embd / n_head, and
embeddings multiplied by sqrt(n_embd). The gains of norms in files include the 1 that is added."""

from __future__ import annotations

import math
from dataclasses import replace

from weft import graph as G
from weft.graph import RopeMode
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.models.architecture import Architecture
from weft.llm.models.parts import Gated

__all__ = ["ARCHITECTURES"]


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the scale of the embeddings."""
    return replace(c, embedding_scale=math.sqrt(c.n_embd))


ARCHITECTURES = {"gemma": Architecture(RopeMode.NEOX, configure, feed_forward=Gated(G.geglu))}
