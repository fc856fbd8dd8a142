"""StarCoder2 (arXiv 2402.19173): LayerNorm, biases everywhere, grouped-query attention with rotary
embedding, and a feed-forward layer of two matrices around GELU."""

from __future__ import annotations

from weft.graph import RopeMode
from weft.llm.models.architecture import Architecture
from weft.llm.models.parts import LAYER, Mlp

__all__ = ["ARCHITECTURES"]


ARCHITECTURES = {"starcoder2": Architecture(RopeMode.NEOX, norm=LAYER, feed_forward=Mlp())}
