"""Models that write by diffusion: tokens see tokens on both sides, and the logits of a mask say
which token it stands for (arXiv 2406.07524). `sampling/diffusion.py` writes texts with them.

LLaDA (arXiv 2502.09992) has LLaMA's blocks; LLaDA-MoE (arXiv 2509.24389) a mixture of experts, and
a norm of each query and key head. Dream (arXiv 2508.15487) was trained from Qwen2, and RND1
(Radical Numerics, 2025) from Qwen3's mixture: both predict a token in the row before it, as these
did.
"""

from __future__ import annotations

from dataclasses import replace

from weft.graph import RopeMode
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.config_parts import DiffusionConfig
from weft.llm.models.architecture import Architecture
from weft.llm.models.experts import Experts
from weft.llm.models.parts import EACH_HEAD, Attention
from weft.llm.models.qwen import configure_qwen3_experts

_BLOCK = 32
"""Length of LLaDA's blocks if nothing else is asked for."""


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets that texts are seen on both sides and how they are written; files say whether the row of
    a token is the one before it, and those that do not mean that it is."""
    shifts = keys.file.get_bool("diffusion.shift_logits", True)
    block = 0 if shifts else _BLOCK
    return replace(c, causal=False, diffusion=DiffusionConfig(shifts, block))


def configure_experts(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the width of an expert as well."""
    return configure_qwen3_experts(configure(c, keys), keys)


_RND1 = Architecture(
    RopeMode.NEOX, configure_experts, attention=Attention(EACH_HEAD),
    feed_forward=Experts(dense=None),
)  # fmt: skip


ARCHITECTURES = {
    "dream": Architecture(RopeMode.NEOX, configure),
    "llada": Architecture(RopeMode.NORMAL, configure),
    "llada-moe": replace(_RND1, feed_forward=Experts(dense=None, renormalise=False)),
    "rnd1": _RND1,
}
