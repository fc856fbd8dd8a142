"""dots.llm1 (arXiv 2506.05767): DeepSeek-V3's experts, chosen by sigmoids and a learned bias, with
attention as in Qwen3. Ling 2.0 and Ring 2.0 (bailingmoe2, arXiv 2510.22115) are the same, with
rotation of a part of each head."""

from __future__ import annotations

from weft.graph import RopeMode
from weft.llm.models.architecture import Architecture
from weft.llm.models.experts import Experts
from weft.llm.models.parts import EACH_HEAD, Attention

__all__ = ["ARCHITECTURES"]


_DOTS = Architecture(
    RopeMode.NEOX,
    attention=Attention(EACH_HEAD),
    feed_forward=Experts(shared="added", renormalise=False, balanced=True),
)

ARCHITECTURES = {"bailingmoe2": _DOTS, "dots1": _DOTS}
