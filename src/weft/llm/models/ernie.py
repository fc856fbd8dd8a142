"""ERNIE 4.5 (Baidu, 2025), the dense models: LLaMA's blocks. The weights are trained for a rotation
of adjacent pairs, so converters do not reorder their rows."""

from __future__ import annotations

from weft.graph import RopeMode
from weft.llm.models.architecture import Architecture

__all__ = ["ARCHITECTURES"]


ARCHITECTURES = {"ernie4_5": Architecture(RopeMode.NORMAL)}
