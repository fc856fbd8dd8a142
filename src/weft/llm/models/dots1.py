"""dots.llm1 (arXiv 2506.05767): DeepSeek-V3's experts, chosen by sigmoids and a learned bias, with
attention as in Qwen3."""

from __future__ import annotations

from weft.graph import RopeMode
from weft.llm.models.architecture import Architecture
from weft.llm.models.experts import Experts
from weft.llm.models.parts import EACH_HEAD, Attention

__all__ = ["ARCHITECTURES"]


ARCHITECTURES = {
    "dots1": Architecture(
        RopeMode.NEOX,
        attention=Attention(EACH_HEAD),
        feed_forward=Experts(shared="added", renormalise=False, balanced=True),
    )
}
