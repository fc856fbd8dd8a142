"""dots.3 Note (RedNote, 2026): DeepSeek-V3.2, where most layers see only a sliding window.

Layers that see everything have an indexer; those with a window have other numbers of heads and
other sizes of latents, and a rotation with a base of its own. Everywhere the part of a key that
rotates is normed, and a number for each head, a sigmoid, multiplies its result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from weft import graph as G
from weft.errors import ContextError
from weft.graph import RopeMode
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.config_parts import MlaConfig
from weft.llm.models.architecture import Architecture
from weft.llm.models.common import linear
from weft.llm.models.deepseek import (
    EXPERTS,
    SparseAttention,
    absorbed,
    configure_sparse,
    indexer_of,
    latent,
    latent_rows,
    project,
)
from weft.llm.models.parts import gate_heads, linear_rows
from weft.llm.models.step import Step
from weft.llm.weights import Row, Weights, need


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the indexer of some layers, and the sizes of the others."""
    if not c.sliding_window or not c.windowed:
        raise keys.bad("attention.sliding_window", c.sliding_window, "1 or more, with a pattern")
    c = configure_sparse(c, keys, halves=True)
    whole, n_rot = latent(c), c.rope.n_dims
    small = MlaConfig(
        whole.q_rank,
        keys.count("attention.kv_lora_rank_swa"),
        keys.count("attention.key_length_mla_swa"),
        keys.count("attention.value_length_mla_swa"),
        absorbed=True,
        norm_eps=whole.norm_eps,
    )
    if not n_rot < small.head_dim_k:
        raise keys.bad("attention.key_length_mla_swa", small.head_dim_k, f"above {n_rot}")
    small = replace(small, query_scale=math.sqrt(whole.head_dim_k / small.head_dim_k))
    base = keys.number("rope.freq_base_swa", c.rope.freq_base, above=0.0)
    local = replace(c.rope, freq_base=base, offset=small.kv_rank)
    return replace(
        c,
        mla_window=small,
        head_dim_window=small.kv_rank + n_rot,
        head_dim_v_window=small.kv_rank,
        ropes=tuple(local if window else c.rope for window in c.windowed),
        indexer=replace(indexer_of(c), layers=tuple(not window for window in c.windowed)),
    )


class GatedAttention(SparseAttention):
    """Attention to chosen positions, or to a window, with gated heads."""

    def rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        yield from latent_rows(c, il) if c.is_windowed(il) else super().rows(c, il)
        yield need(f"blk.{il}.attn_k_norm.weight", c.rope.n_dims)
        yield from linear_rows(f"blk.{il}.attn_gate", c.n_embd, c.n_head(il))

    def __call__(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        if not step.config.is_windowed(il):
            return super().__call__(step, w, il, x)
        layer = w.layer(il)
        y = absorbed(step, layer, il, project(step, w, il, x))
        return linear(layer, "attn_output", self.gated(layer, x, y))

    def gated(self, w: Weights, x: Tensor, y: Tensor) -> Tensor:
        return gate_heads(y, G.sigmoid(linear(w, "attn_gate", x)))


class Dots3(Architecture):
    """The skeleton; files may have a layer that drafts."""

    def of_next_layer(self) -> Architecture:
        raise ContextError(
            "weft does not draft with the last layer of dots3note yet; look tokens up (ngram), or "
            "give a second model that drafts"
        )


ARCHITECTURES = {
    "dots3note": Dots3(
        RopeMode.NORMAL, configure, attention=GatedAttention(), feed_forward=EXPERTS
    ),
}
