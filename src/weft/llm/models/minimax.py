"""MiniMax-M2 (MiniMax, 2025): a mixture of experts in every layer, chosen by sigmoids and a learned
bias, rotation of a part of each head, and queries and keys normed over all heads at once."""

from __future__ import annotations

from weft.graph import RopeMode
from weft.llm.models.architecture import Architecture
from weft.llm.models.experts import Experts
from weft.llm.models.parts import WHOLE, Attention

__all__ = ["ARCHITECTURES"]


ARCHITECTURES = {
    "minimax-m2": Architecture(
        RopeMode.NEOX,
        attention=Attention(WHOLE),
        feed_forward=Experts(dense=None, balanced=True),
    )
}
