"""Spark X2.5 (iFlytek, 2026): layers with a sliding window rotate in a way of their own, the
results of heads have a gate of one number for each head, and the feed-forward layer has GELU."""

from __future__ import annotations

from dataclasses import replace

from weft import graph as G
from weft.graph import RopeMode
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.models.architecture import Architecture
from weft.llm.models.parts import Attention, Gated

__all__ = ["ARCHITECTURES"]


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the rotation of each layer, and what gates are of."""
    other = keys.local_rope(c)
    local = replace(c.rope, n_dims=other.n_dims, freq_base=other.freq_base)
    ropes = tuple(local if c.is_windowed(il) else c.rope for il in range(c.n_layer))
    return replace(c, gated_heads=True, ropes=ropes)


ARCHITECTURES = {
    "spark2_5": Architecture(
        RopeMode.NEOX,
        configure,
        attention=Attention(gate=G.sigmoid),
        feed_forward=Gated(G.geglu),
    )
}
