"""Nemotron-4 (arXiv 2402.16819, Minitron: 2407.14679): LayerNorm, rotation of a part of each head,
grouped-query attention, and squared ReLU (arXiv 2109.08668) in the feed-forward layer."""

from __future__ import annotations

from weft.graph import RopeMode
from weft.llm.models.architecture import Architecture
from weft.llm.models.parts import LAYER, Mlp, squared_relu

__all__ = ["ARCHITECTURES"]


ARCHITECTURES = {
    "nemotron": Architecture(RopeMode.NEOX, norm=LAYER, feed_forward=Mlp(squared_relu))
}
