"""LLaMA (arXiv 2302.13971, 2307.09288, 2407.21783), and models of the same shape: Mistral
(arXiv 2310.06825), Mixtral (arXiv 2401.04088), TinyLlama and many others. Ministral 3 (mistral3)
sharpens the scores of late tokens; Orion (arXiv 2401.12246) has LayerNorm; Refact and the large
Baichuan (arXiv 2309.10305) have ALiBi (arXiv 2108.12409) in place of a rotation.

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
from weft.llm.models.parts import LAYER

__all__ = ["ARCHITECTURES"]


def configure_temperature(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the temperature of Ministral 3, whose spans are as long as the original context."""
    scale = keys.number("attention.temperature_scale", 0.0)
    return replace(c, temperature=Temperature(scale, c.rope.n_ctx_orig) if scale else None)


def configure_alibi(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets biases in place of the rotation; no key has them."""
    return replace(c.without_rope(), alibi_bias=8.0)


def configure_baichuan(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the biases of Baichuan 13B, which is told by its number of layers."""
    return configure_alibi(c, keys) if c.n_layer == 40 else c


_LLAMA = Architecture(RopeMode.NORMAL, feed_forward=Experts())

ARCHITECTURES = {
    "baichuan": Architecture(RopeMode.NORMAL, configure_baichuan),
    "internlm2": _LLAMA,
    "llama": _LLAMA,
    "mistral3": Architecture(RopeMode.NORMAL, configure_temperature, feed_forward=Experts()),
    "orion": Architecture(RopeMode.NEOX, norm=LAYER),
    "refact": Architecture(RopeMode.NORMAL, configure_alibi, feed_forward=Experts()),
    "xverse": _LLAMA,
}
