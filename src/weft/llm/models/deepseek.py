"""DeepSeekMoE (arXiv 2401.06066) and Ling (bailingmoe, arXiv 2503.05139): LLaMA's blocks with many
small experts, some of them shared, behind dense layers if there are such."""

from __future__ import annotations

from weft.graph import RopeMode
from weft.llm.models.architecture import Architecture
from weft.llm.models.experts import Experts

__all__ = ["ARCHITECTURES"]


_EXPERTS = Experts(shared="added", renormalise=False)
_DEEPSEEK = Architecture(RopeMode.NORMAL, feed_forward=_EXPERTS)

ARCHITECTURES = {"bailingmoe": _DEEPSEEK, "deepseek": _DEEPSEEK}
