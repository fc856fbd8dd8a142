"""OLMo 2 (arXiv 2501.00656): norms behind attention and feed-forward layer instead of in front of
them, and queries and keys normed over all heads at once.

OLMo 3 adds a sliding window to three of four layers, whose rotation is never scaled (no YaRN).
"""

from __future__ import annotations

from dataclasses import replace

from weft.graph import RopeMode
from weft.llm.config import ModelConfig, RopeConfig
from weft.llm.config_keys import Keys
from weft.llm.models.architecture import Architecture
from weft.llm.models.parts import WHOLE, Attention

__all__ = ["ARCHITECTURES"]


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the window, if there is one, in all but every fourth layer."""
    if not c.sliding_window:
        return c
    windowed = keys.windowed(4, c.n_layer)
    local = RopeConfig(c.rope.n_dims, c.rope.freq_base)
    return replace(c, windowed=windowed, ropes=tuple(local if w else c.rope for w in windowed))


ARCHITECTURES = {
    "olmo2": Architecture(
        RopeMode.NEOX,
        configure,
        attention=Attention(WHOLE),
        before=("", ""),
        after=("post_attention_norm", "post_ffw_norm"),
    )
}
