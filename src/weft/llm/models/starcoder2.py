"""StarCoder2 (arXiv 2402.19173): LayerNorm, biases everywhere, grouped-query attention with rotary
embedding, and a feed-forward layer of two matrices around GELU. CodeShell (arXiv 2403.15747) is the
same."""

from __future__ import annotations

from weft.graph import RopeMode
from weft.llm.models.architecture import Architecture
from weft.llm.models.parts import LAYER, Mlp

__all__ = ["ARCHITECTURES"]


_STARCODER2 = Architecture(RopeMode.NEOX, norm=LAYER, feed_forward=Mlp())

ARCHITECTURES = {"codeshell": _STARCODER2, "starcoder2": _STARCODER2}
