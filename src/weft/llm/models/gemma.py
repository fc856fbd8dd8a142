"""Gemma 1 to 3."""

from __future__ import annotations

import math
from dataclasses import replace

from weft import graph as G
from weft.graph import RopeMode
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig, RopeConfig
from weft.llm.config_keys import Keys
from weft.llm.models import common
from weft.llm.models.architecture import Architecture
from weft.llm.models.parts import EACH_HEAD, Attention, Gated
from weft.llm.models.step import Step
from weft.llm.weights import Weights

__all__ = ["ARCHITECTURES", "Capped", "configure_gemma3"]

# Gemma (arXiv 2403.08295): LLaMA's blocks with GeGLU, heads wider than n_embd / n_head, and
# embeddings multiplied by sqrt(n_embd). The gains of norms in files include the 1 that is added.


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the scale of the embeddings."""
    return replace(c, embedding_scale=math.sqrt(c.n_embd))


# Gemma 2 (arXiv 2408.00118): Gemma with norms behind attention and feed-forward layer as well,
# soft caps on attention scores and logits, and a sliding window in every second layer.


def configure_gemma2(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets windows, caps and scales, by default as in the paper."""
    windowed = keys.windowed(2, c.n_layer)
    # the 27B model, which has 46 layers, has another scale than its head size implies
    scale = 1 / math.sqrt(c.n_embd // c.n_head()) if c.n_layer == 46 else 0.0
    local = replace(c.rope, freq_base=keys.number("rope.freq_base_swa", c.rope.freq_base, above=0))
    return replace(
        c,
        embedding_scale=math.sqrt(c.n_embd),
        attn_scale=c.attn_scale or scale,
        attn_softcap=keys.number("attn_logit_softcapping", 50.0),
        final_softcap=keys.number("final_logit_softcapping", 30.0),
        sliding_window=c.sliding_window or 4096,
        windowed=windowed,
        ropes=tuple(local if w else c.rope for w in windowed),
    )


class Capped(Architecture):
    """Logits are soft-capped if the model has a cap."""

    def logits(self, step: Step, w: Weights, x: Tensor) -> Tensor:
        """The capped logits, cap * tanh(logits / cap): [n_vocab, n_outputs]."""
        y = super().logits(step, w, x)
        cap = step.config.final_softcap
        return common.soft_cap(y, cap) if cap else y


# Gemma 3 (arXiv 2503.19786): Gemma 2 with an RMS norm of each query and key head instead of the
# caps, and a sliding window in five of six layers, whose rotation has a base of its own.


def configure_gemma3(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets windows and rotations; positions of layers with a window are never scaled."""
    c = replace(c, embedding_scale=math.sqrt(c.n_embd))
    # the 27B model has another scale than its head size implies
    if c.n_layer == 62 and not c.attn_scale:
        c = replace(c, attn_scale=1 / math.sqrt(c.n_embd // c.n_head()))
    if not c.sliding_window:
        return c
    windowed = keys.windowed(6, c.n_layer)
    base = keys.number("rope.freq_base_swa", 10000.0, above=0)
    local = RopeConfig(c.rope.n_dims, base)
    return replace(c, windowed=windowed, ropes=tuple(local if w else c.rope for w in windowed))


ARCHITECTURES = {
    "gemma": Architecture(RopeMode.NEOX, configure, feed_forward=Gated(G.geglu)),
    "gemma2": Capped(
        RopeMode.NEOX,
        configure_gemma2,
        feed_forward=Gated(G.geglu),
        after=("post_attention_norm", "post_ffw_norm"),
    ),
    "gemma3": Capped(
        RopeMode.NEOX,
        configure_gemma3,
        attention=Attention(EACH_HEAD),
        feed_forward=Gated(G.geglu),
        after=("post_attention_norm", "post_ffw_norm"),
    ),
}
