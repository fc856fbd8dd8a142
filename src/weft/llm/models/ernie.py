"""ERNIE 4.5 (Baidu, 2025), the dense models: LLaMA's blocks. The weights are trained to rotate
adjacent pairs, so that files have their rows as they are."""

from __future__ import annotations

from weft.graph import RopeMode
from weft.llm.models.architecture import Architecture

__all__ = ["ARCHITECTURES"]


ARCHITECTURES = {"ernie4_5": Architecture(RopeMode.NORMAL)}
