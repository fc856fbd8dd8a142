"""Arcee (AFM-4.5B, 2025): LLaMA's blocks, with squared ReLU (arXiv 2109.08668) and no gate in the
feed-forward layer. Jais 2 (MBZUAI, 2025) has LayerNorm, biases, and rotates halves."""

from __future__ import annotations

from weft.graph import RopeMode
from weft.llm.models.architecture import Architecture
from weft.llm.models.parts import LAYER, Mlp, squared_relu

__all__ = ["ARCHITECTURES"]


ARCHITECTURES = {
    "arcee": Architecture(RopeMode.NORMAL, feed_forward=Mlp(squared_relu)),
    "jais2": Architecture(RopeMode.NEOX, norm=LAYER, feed_forward=Mlp(squared_relu)),
}
