"""Seed-OSS (ByteDance, 2025): LLaMA's blocks with biases on q, k and v. Files call the norm in
front of the feed-forward layer `post_attention_norm`."""

from __future__ import annotations

from weft.graph import RopeMode
from weft.llm.models.architecture import Architecture

__all__ = ["ARCHITECTURES"]


ARCHITECTURES = {
    "seed_oss": Architecture(RopeMode.NEOX, before=("attn_norm", "post_attention_norm"))
}
