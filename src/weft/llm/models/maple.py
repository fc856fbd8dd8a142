"""Maple (Deepgrove, 2026): a mixture of experts in every layer, whose gate and up are limited, and
norms of each head. Only layers with a sliding window rotate."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from weft import graph as G
from weft.graph import RopeMode
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.models.architecture import Architecture
from weft.llm.models.experts import Experts
from weft.llm.models.parts import EACH_HEAD, Attention
from weft.llm.models.step import Step
from weft.llm.weights import Weights

__all__ = ["ARCHITECTURES"]


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the layers that rotate, and the limit of each layer; 0: there is none."""
    other, none = keys.local_rope(c), replace(c.rope, n_dims=0)
    local = replace(c.rope, n_dims=other.n_dims, freq_base=other.freq_base)
    limits = keys.numbers("swiglu_clamp_exp", c.n_layer, 0.0)
    return replace(
        c,
        ropes=tuple(local if c.is_windowed(il) else none for il in range(c.n_layer)),
        activation=tuple((limit,) for limit in limits),
    )


class Limited(Experts):
    """Experts with the limit of their layer: silu(min(gate, limit)) * clamp(up)."""

    def __call__(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        """The mixture, from x [n_embd, n_tokens] to the same sizes."""
        (limit,) = step.config.activation[il]
        act = partial(G.swiglu_clamp, limit=limit) if limit > 0 else G.swiglu
        return Experts(None, act=act)(step, w, il, x)


ARCHITECTURES = {
    "maple": Architecture(
        RopeMode.NEOX, configure, attention=Attention(EACH_HEAD), feed_forward=Limited(None)
    )
}
