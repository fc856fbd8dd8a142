"""OLMoE (arXiv 2409.02060): a mixture of experts in every layer, whose weights are not scaled to
sum 1, and queries and keys normed over all heads at once."""

from __future__ import annotations

from weft.graph import RopeMode
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.models.architecture import Architecture
from weft.llm.models.experts import Experts, require_experts
from weft.llm.models.parts import WHOLE, Attention

__all__ = ["ARCHITECTURES"]


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Raises FormatError if the file has no experts."""
    require_experts(c)
    return c


ARCHITECTURES = {
    "olmoe": Architecture(
        RopeMode.NEOX,
        configure,
        attention=Attention(WHOLE),
        feed_forward=Experts(dense=None, renormalise=False),
    )
}
