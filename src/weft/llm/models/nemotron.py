"""Nemotron-4 (arXiv 2402.16819, Minitron: 2407.14679): LayerNorm, rotation of a part of each head,
grouped-query attention, and squared ReLU (arXiv 2109.08668) in the feed-forward layer."""

from __future__ import annotations

from weft import graph as G
from weft.graph import RopeMode
from weft.graph.tensor import Tensor
from weft.llm.models.architecture import Architecture
from weft.llm.models.parts import LAYER, Mlp

__all__ = ["ARCHITECTURES"]


def squared_relu(x: Tensor) -> Tensor:
    """max(x, 0) squared."""
    return G.sqr(G.relu(x))


ARCHITECTURES = {
    "nemotron": Architecture(RopeMode.NEOX, norm=LAYER, feed_forward=Mlp(squared_relu))
}
