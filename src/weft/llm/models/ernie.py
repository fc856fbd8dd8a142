"""ERNIE 4.5 (Baidu, 2025), the dense models: LLaMA's blocks. The weights are trained for a rotation
of adjacent pairs, so converters do not reorder their rows.

In the mixture of experts, a learned bias takes part in the choice, and shared experts are added.
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
    """Sets the width of the shared experts, which files state wrongly for some sizes, and that
    weights are a softmax although there is a bias."""
    moe = require_experts(c)
    n_shared = keys.count("expert_shared_count", 0, least=0)
    return replace(c, moe=replace(moe, sigmoid=False, n_ff_shared=n_shared * moe.n_ff))


ARCHITECTURES = {
    "ernie4_5": Architecture(RopeMode.NORMAL),
    "ernie4_5-moe": Architecture(
        RopeMode.NORMAL, configure_experts, feed_forward=Experts(shared="added", balanced=True)
    ),
}
