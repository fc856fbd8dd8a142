"""Gemma 3 (arXiv 2503.19786): Gemma 2 with an RMS norm of each query and key head instead of the
caps, and a sliding window in five of six layers, whose rotation has a base of its own."""

from __future__ import annotations

import math
from dataclasses import replace

from weft import graph as G
from weft.graph import RopeMode
from weft.llm.config import ModelConfig, RopeConfig
from weft.llm.config_keys import Keys
from weft.llm.models.gemma2 import Capped
from weft.llm.models.parts import EACH_HEAD, Attention, Gated

__all__ = ["ARCHITECTURES"]


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets windows and rotations; positions of layers with a window are never scaled."""
    c = replace(c, embedding_scale=math.sqrt(c.n_embd))
    # the 27B model has another scale than its head size implies
    if c.n_layer == 62 and not c.attn_scale:
        c = replace(c, attn_scale=1 / math.sqrt(c.n_embd // c.n_head()))
    if not c.sliding_window:
        return c
    windowed = keys.windowed(6, c.n_layer)
    base = keys.number("rope.freq_base_swa", 10000.0, above=0)
    local = RopeConfig(c.rope.n_dims, base)
    return replace(c, windowed=windowed, ropes=tuple(local if w else c.rope for w in windowed))


ARCHITECTURES = {
    "gemma3": Capped(
        RopeMode.NEOX,
        configure,
        attention=Attention(EACH_HEAD),
        feed_forward=Gated(G.geglu),
        after=("post_attention_norm", "post_ffw_norm"),
    )
}
