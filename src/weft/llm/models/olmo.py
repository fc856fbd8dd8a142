"""The OLMo models of the Allen Institute for AI."""

from __future__ import annotations

from dataclasses import replace

from weft.graph import RopeMode
from weft.llm.config import ModelConfig, RopeConfig
from weft.llm.config_keys import Keys
from weft.llm.models.architecture import Architecture
from weft.llm.models.experts import Experts, require_experts
from weft.llm.models.parts import WHOLE, Attention, ClampedAttention, Norm

__all__ = ["ARCHITECTURES"]

# OLMo 2 (arXiv 2501.00656): norms behind attention and feed-forward layer instead of in front of
# them, and queries and keys normed over all heads at once.
#
# OLMo 3 adds a sliding window to three of four layers, whose rotation is never scaled (no YaRN).


def configure_olmo2(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the window, if there is one, in all but every fourth layer."""
    if not c.sliding_window:
        return c
    windowed = keys.windowed(4, c.n_layer)
    local = RopeConfig(c.rope.n_dims, c.rope.freq_base)
    return replace(c, windowed=windowed, ropes=tuple(local if w else c.rope for w in windowed))


# OLMoE (arXiv 2409.02060): a mixture of experts in every layer, whose weights are not scaled to
# sum 1, and queries and keys normed over all heads at once.


def configure_olmoe(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Raises FormatError if the file has no experts."""
    require_experts(c)
    return c


ARCHITECTURES = {
    # OLMo (arXiv 2402.00838): LLaMA's blocks with a LayerNorm without learned gains. The 7B models
    # clamp queries, keys and values.
    "olmo": Architecture(
        RopeMode.NORMAL, attention=ClampedAttention(), norm=Norm(centred=True, gains=False)
    ),
    "olmo2": Architecture(
        RopeMode.NEOX,
        configure_olmo2,
        attention=Attention(WHOLE),
        before=("", ""),
        after=("post_attention_norm", "post_ffw_norm"),
    ),
    "olmoe": Architecture(
        RopeMode.NEOX,
        configure_olmoe,
        attention=Attention(WHOLE),
        feed_forward=Experts(dense=None, renormalise=False),
    ),
}
