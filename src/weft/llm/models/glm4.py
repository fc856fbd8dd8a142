"""GLM-4 (arXiv 2406.12793) of 2025 (0414): LLaMA's blocks with RMS norms behind attention and
feed-forward layer as well, and rotation of a part of each head. Gate and up are one matrix."""

from __future__ import annotations

from weft.graph import RopeMode
from weft.llm.models.architecture import Architecture
from weft.llm.models.parts import FusedGated

__all__ = ["ARCHITECTURES"]


ARCHITECTURES = {
    "glm4": Architecture(
        RopeMode.NORMAL,
        feed_forward=FusedGated(),
        after=("post_attention_norm", "post_ffw_norm"),
    )
}
