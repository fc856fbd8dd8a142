"""LLaMA (arXiv 2302.13971, 2307.09288, 2407.21783), and models of the same shape: Mistral
(arXiv 2310.06825), Mixtral (arXiv 2401.04088), TinyLlama and many others.

A block is  x + attention(norm(x)), then  x + feed_forward(norm(x)); the feed-forward layer is dense
or, when the metadata has `expert_count`, a mixture of experts.
"""

from __future__ import annotations

from weft.graph import RopeMode
from weft.llm.models.architecture import Architecture
from weft.llm.models.experts import Experts

__all__ = ["ARCHITECTURES"]


ARCHITECTURES = {"llama": Architecture(RopeMode.NORMAL, feed_forward=Experts())}
