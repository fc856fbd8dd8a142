"""OLMo (arXiv 2402.00838): LLaMA's blocks with a LayerNorm without learned gains. The 7B models
clamp queries, keys and values."""

from __future__ import annotations

from weft.graph import RopeMode
from weft.llm.models.architecture import Architecture
from weft.llm.models.parts import ClampedAttention, Norm

__all__ = ["ARCHITECTURES"]


ARCHITECTURES = {
    "olmo": Architecture(
        RopeMode.NORMAL, attention=ClampedAttention(), norm=Norm(centred=True, gains=False)
    )
}
