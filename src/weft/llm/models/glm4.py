"""GLM-4 (arXiv 2406.12793): LLaMA's blocks with rotation of a part of each head, and gate and up in
one matrix (chatglm). The models of 2025 (0414) have RMS norms behind attention and feed-forward
layer as well.

GLM-4.5 (arXiv 2508.06471) has a mixture of experts behind the first layers; its large model norms
each query and key head.
"""

from __future__ import annotations

from dataclasses import replace

from weft.graph import RopeMode
from weft.llm.models.architecture import Architecture
from weft.llm.models.experts import Experts
from weft.llm.models.parts import Attention, FusedGated, HeadNorm

__all__ = ["ARCHITECTURES"]


_CHAT = Architecture(RopeMode.NORMAL, feed_forward=FusedGated())

ARCHITECTURES = {
    "chatglm": _CHAT,
    "glm4": replace(_CHAT, after=("post_attention_norm", "post_ffw_norm")),
    "glm4moe": Architecture(
        RopeMode.NEOX,
        before=("attn_norm", "post_attention_norm"),
        attention=Attention(HeadNorm(optional=True)),
        feed_forward=Experts(shared="added", renormalise=False, balanced=True),
    ),
}
