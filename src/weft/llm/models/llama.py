"""LLaMA (arXiv 2302.13971, 2307.09288, 2407.21783), and models of the same shape: Mistral
(arXiv 2310.06825), Mixtral (arXiv 2401.04088), TinyLlama and many others. Ministral 3 (mistral3)
sharpens the scores of late tokens.

A block is  x + attention(norm(x)), then  x + feed_forward(norm(x)); the feed-forward layer is dense
or, when the metadata has `expert_count`, a mixture of experts.
"""

from __future__ import annotations

from dataclasses import replace

from weft.graph import RopeMode
from weft.llm.config import ModelConfig, Temperature
from weft.llm.config_keys import Keys
from weft.llm.models.architecture import Architecture
from weft.llm.models.experts import Experts

__all__ = ["ARCHITECTURES"]


def configure_temperature(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the temperature of Ministral 3, whose spans are as long as the original context."""
    scale = keys.number("attention.temperature_scale", 0.0)
    return replace(c, temperature=Temperature(scale, c.rope.n_ctx_orig) if scale else None)


ARCHITECTURES = {
    "llama": Architecture(RopeMode.NORMAL, feed_forward=Experts()),
    "mistral3": Architecture(RopeMode.NORMAL, configure_temperature, feed_forward=Experts()),
}
