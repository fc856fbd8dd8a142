"""DBRX (Databricks, 2024): a mixture of experts in every layer, LayerNorm without biases, clamped
queries, keys and values."""

from __future__ import annotations

from weft.graph import RopeMode
from weft.llm.models.architecture import Architecture
from weft.llm.models.experts import Experts
from weft.llm.models.parts import ClampedAttention, Norm

__all__ = ["ARCHITECTURES"]

ARCHITECTURES = {
    "dbrx": Architecture(
        RopeMode.NEOX,
        norm=Norm(centred=True),
        before=("attn_norm", "attn_output_norm"),
        attention=ClampedAttention(),
        feed_forward=Experts(dense=None),
    )
}
