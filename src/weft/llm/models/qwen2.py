"""Qwen (arXiv 2309.16609) and Qwen2 (arXiv 2407.10671): LLaMA's blocks with biases on q, k and v.

Qwen1.5-MoE and Qwen2-57B-A14B have a mixture instead of the feed-forward layer: the experts'
weights are not scaled to sum 1, and the output of a shared expert is added, weighted by a sigmoid.
The text models of Qwen2-VL and Qwen2.5-VL (qwen2vl) have three positions per token (M-RoPE); those
of text are equal, and rotate as one. openPangu-Embedded (arXiv 2505.22375) has a bias on the output
of attention, too.
"""

from __future__ import annotations

from dataclasses import replace

from weft.graph import RopeMode
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.models.architecture import Architecture
from weft.llm.models.experts import Experts, require_experts

__all__ = ["ARCHITECTURES"]


def configure_experts(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets widths that the metadata may lack: `feed_forward_length` is the width of the shared
    expert, and of all other experts of a token together."""
    moe = require_experts(c)
    n_ff = keys.count("expert_feed_forward_length", 0, least=0) or c.n_ff() // moe.n_used
    return replace(c, moe=replace(moe, n_ff=n_ff, n_ff_shared=moe.n_ff_shared or c.n_ff()))


_EXPERTS = Experts(shared="gated", renormalise=False)


def configure_first(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets widths: `feed_forward_length` of Qwen is that of gate and up together."""
    return replace(c, widths=tuple(n // 2 for n in c.widths))


ARCHITECTURES = {
    "qwen": Architecture(RopeMode.NEOX, configure_first),
    "qwen2": Architecture(RopeMode.NEOX, feed_forward=_EXPERTS),
    "pangu-embedded": Architecture(RopeMode.NEOX),
    "qwen2vl": Architecture(RopeMode.NEOX),
    "qwen2moe": Architecture(RopeMode.NEOX, configure_experts, feed_forward=_EXPERTS),
}
