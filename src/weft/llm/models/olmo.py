"""OLMo (arXiv 2402.00838): LLaMA's blocks with LayerNorm that has no gains; queries, keys and
values are clamped in the 7B models."""

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
