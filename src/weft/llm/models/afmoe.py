"""AFMoE (Arcee Trinity, 2025): norms in front of attention and feed-forward layer and behind them,
a gate on the results of heads, and shared and routed experts behind the first layers. Three of four
layers see only a sliding window, and those alone rotate (arXiv 2501.18795).

Laguna (Poolside, 2026) has no norms behind, gates of heads or elements through softplus, and
rotates everywhere, in layers with a window in another way. The first layer of four sees everything.
"""

from __future__ import annotations

import math
from dataclasses import replace

from weft import graph as G
from weft.graph import RopeMode
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.models.architecture import Architecture
from weft.llm.models.experts import Experts, require_experts
from weft.llm.models.parts import EACH_HEAD, Attention

__all__ = ["ARCHITECTURES"]


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets windows, the layers that rotate, and the factor of embeddings."""
    windowed = keys.windowed(4, c.n_layer)
    none = replace(c.rope, n_dims=0)
    return replace(
        c,
        embedding_scale=math.sqrt(c.n_embd),
        windowed=windowed if c.sliding_window else (),
        ropes=tuple(c.rope if w else none for w in windowed),
    )


def configure_laguna(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets windows and rotations, the kind of gate, and a shared expert, which files always
    have."""
    moe = require_experts(c)
    gate = keys.file.tensors.get("blk.0.attn_gate.weight")
    c = replace(
        c,
        gated_heads=gate is not None and gate.ne[1] == c.n_head(),
        moe=replace(moe, n_ff_shared=moe.n_ff_shared or moe.n_ff),
    )
    if not c.sliding_window:
        return c
    windowed = keys.windowed(4, c.n_layer, first=True)
    local = keys.local_rope(c)
    return replace(c, windowed=windowed, ropes=tuple(local if w else c.rope for w in windowed))


_EXPERTS = Experts(shared="added", balanced=True)

ARCHITECTURES = {
    "afmoe": Architecture(
        RopeMode.NEOX,
        configure,
        attention=Attention(EACH_HEAD, gate=G.sigmoid),
        feed_forward=_EXPERTS,
        after=("post_attention_norm", "post_ffw_norm"),
    ),
    "laguna": Architecture(
        RopeMode.NEOX,
        configure_laguna,
        attention=Attention(EACH_HEAD, gate=G.softplus),
        feed_forward=_EXPERTS,
    ),
}
