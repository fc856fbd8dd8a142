"""Hunyuan (arXiv 2411.02265, and Tencent, 2025): LLaMA's blocks with an RMS norm of each query and
key head behind the rotation; the mixture of experts of A13B has a shared expert."""

from __future__ import annotations

from dataclasses import replace

from weft.graph import RopeMode
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.models.architecture import Architecture
from weft.llm.models.experts import Experts, require_experts
from weft.llm.models.parts import EACH_HEAD, Attention

__all__ = ["ARCHITECTURES"]


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets where heads are normed."""
    return replace(c, heads_last=True)


def configure_experts(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the width of the shared expert as well, which is that of dense layers if not stated."""
    moe = require_experts(c)
    moe = replace(moe, n_ff_shared=moe.n_ff_shared or c.n_ff())
    return replace(c, heads_last=True, moe=moe)


ARCHITECTURES = {
    "hunyuan-dense": Architecture(RopeMode.NEOX, configure, attention=Attention(EACH_HEAD)),
    "hunyuan-moe": Architecture(
        RopeMode.NEOX,
        configure_experts,
        attention=Attention(EACH_HEAD),
        feed_forward=Experts(dense=None, shared="added"),
    ),
}
