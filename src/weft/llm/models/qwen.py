"""Qwen 1 to 3, and models of the same shape."""

from __future__ import annotations

from dataclasses import replace

from weft.graph import RopeMode
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.models.architecture import Architecture
from weft.llm.models.experts import Experts, require_experts
from weft.llm.models.parts import EACH_HEAD, Attention, Head

# Qwen (arXiv 2309.16609) and Qwen2 (arXiv 2407.10671): LLaMA's blocks with biases on q, k and v.
#
# Qwen1.5-MoE and Qwen2-57B-A14B have a mixture instead of the feed-forward layer: the experts'
# weights are not scaled to sum 1, and the output of a shared expert is added, weighted by a
# sigmoid. The text models of Qwen2-VL and Qwen2.5-VL (qwen2vl) have three positions per token
# (M-RoPE); those of text are equal, and rotate as one. openPangu-Embedded (arXiv 2505.22375) has a
# bias on the output of attention, too.


def configure_qwen2_experts(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets widths that the metadata may lack: `feed_forward_length` is the width of the shared
    expert, and of all other experts of a token together."""
    moe = require_experts(c)
    n_ff = keys.count("expert_feed_forward_length", 0, least=0) or c.n_ff() // moe.n_used
    return replace(c, moe=replace(moe, n_ff=n_ff, n_ff_shared=moe.n_ff_shared or c.n_ff()))


_EXPERTS = Experts(shared="gated", renormalise=False)


def configure_first(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets widths: `feed_forward_length` of Qwen is the width of gate and up together."""
    return replace(c, widths=tuple(n // 2 for n in c.widths))


# Qwen3 (arXiv 2505.09388): LLaMA's blocks with an RMS norm of each query and key head in front of
# the rotation; the feed-forward layer is dense or a mixture of experts. The text models of
# Qwen3-VL are the same. Mellum 2 (JetBrains, 2026) has a sliding window in some layers, whose
# rotation has a base of its own and is never scaled. OpenELM (arXiv 2404.14619) has heads and
# widths that differ between layers.


def configure_qwen3_experts(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the width of an expert if the metadata lacks it: `feed_forward_length` is the width of
    all experts of a token together."""
    moe = require_experts(c)
    n_ff = keys.count("expert_feed_forward_length", 0, least=0) or c.n_ff() // moe.n_used
    return replace(c, moe=replace(moe, n_ff=n_ff))


def configure_windows(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the layers with a window, besides the width of experts."""
    c = configure_qwen3_experts(c, keys)
    if not c.sliding_window:
        return c
    windowed = keys.windowed(4, c.n_layer)
    local = keys.local_rope(c)
    return replace(c, windowed=windowed, ropes=tuple(local if w else c.rope for w in windowed))


_ATTENTION = Attention(EACH_HEAD)


# rerankers score by two rows of the output matrix, for "yes" and for "no"
_DENSE = Architecture(
    RopeMode.NEOX, attention=_ATTENTION, feed_forward=Experts(), head=Head(softmax=True)
)


_MIXTURE = replace(_DENSE, configure=configure_qwen3_experts)


ARCHITECTURES = {
    "qwen": Architecture(RopeMode.NEOX, configure_first),
    "qwen2": Architecture(RopeMode.NEOX, feed_forward=_EXPERTS),
    "pangu-embedded": Architecture(RopeMode.NEOX),
    "qwen2vl": Architecture(RopeMode.NEOX),
    "qwen2moe": Architecture(RopeMode.NEOX, configure_qwen2_experts, feed_forward=_EXPERTS),
    "mellum": replace(_MIXTURE, configure=configure_windows),
    "openelm": Architecture(RopeMode.NEOX, attention=_ATTENTION),
    "qwen3": _DENSE,
    "qwen3moe": _MIXTURE,
    # text has three equal positions per token (M-RoPE); rows of images have parts for the first
    # layers
    "qwen3vl": replace(_DENSE, image_rope=RopeMode.IMROPE),
    "qwen3vlmoe": replace(_MIXTURE, image_rope=RopeMode.IMROPE),
}
