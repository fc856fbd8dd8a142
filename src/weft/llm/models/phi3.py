"""Phi-3 (arXiv 2404.14219): LLaMA's blocks with q, k and v in one matrix, and gate and up in
another. Long contexts have LongRoPE (arXiv 2402.13753): a factor for each rotated pair.

The window in the metadata is not used, because files do not say which layers have it.
"""

from __future__ import annotations

from weft.graph import RopeMode
from weft.llm.models.architecture import Architecture
from weft.llm.models.parts import FusedGated

__all__ = ["ARCHITECTURES"]


ARCHITECTURES = {"phi3": Architecture(RopeMode.NEOX, feed_forward=FusedGated())}
