"""EXAONE 4.0 (arXiv 2507.11407): norms behind attention and feed-forward layer instead of in front
of them, and an RMS norm of each query and key head.

In the 32B model three of four layers have a sliding window; the others do not rotate. EXAONE 3
(arXiv 2408.03541) has LLaMA's blocks. K-EXAONE (arXiv 2601.01739) has the norms in front, and a
mixture of experts behind the first layers.
"""

from __future__ import annotations

from dataclasses import replace

from weft.graph import RopeMode
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.models.architecture import Architecture
from weft.llm.models.experts import Experts
from weft.llm.models.parts import EACH_HEAD, Attention

__all__ = ["ARCHITECTURES"]


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the window, if there is one, in all but every fourth layer, and rotation in these."""
    if not c.sliding_window:
        return c
    windowed = keys.windowed(4, c.n_layer)
    none = replace(c.rope, n_dims=0)
    return replace(c, windowed=windowed, ropes=tuple(c.rope if w else none for w in windowed))


ARCHITECTURES = {
    "exaone": Architecture(RopeMode.NEOX),
    "exaone4": Architecture(
        RopeMode.NEOX,
        configure,
        attention=Attention(EACH_HEAD),
        before=("", ""),
        after=("post_attention_norm", "post_ffw_norm"),
    ),
    "exaone-moe": Architecture(
        RopeMode.NEOX,
        configure,
        attention=Attention(EACH_HEAD),
        feed_forward=Experts(shared="added", renormalise=False, balanced=True),
    ),
}
