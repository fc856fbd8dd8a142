"""MiMo-V2 (arXiv 2601.02780): five of six layers have a sliding window, another number of key
heads, a rotation with a base of its own, and attention sinks; values are scaled. Behind the first
layer are experts, chosen by sigmoids and a learned bias."""

from __future__ import annotations

from dataclasses import replace

from weft import graph as G
from weft.graph import RopeMode
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.models.architecture import Architecture
from weft.llm.models.experts import Experts, require_experts
from weft.llm.models.parts import Attention
from weft.llm.models.step import Step
from weft.llm.weights import Weights

__all__ = ["ARCHITECTURES"]


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets windows, rotations and the scale of values, and what no key has: the layers without
    experts, by their tensors, and that weights are sigmoids."""
    tensors, local = keys.file.tensors, keys.local_rope(c)
    dense = (il for il in range(c.n_layer) if f"blk.{il}.ffn_gate_inp.weight" not in tensors)
    return replace(
        c,
        ropes=tuple(local if c.is_windowed(il) else c.rope for il in range(c.n_layer)),
        value_scale=keys.number("attention.value_scale", 0.0),
        moe=replace(require_experts(c), sigmoid=True, dense=tuple(dense)),
    )


class ScaledValues(Attention):
    """Attention whose values are scaled."""

    def output(self, step: Step, w: Weights, y: Tensor) -> Tensor:
        """The output projection of the heads' results y [dv * n_head, n_tokens]."""
        scale = step.config.value_scale
        return super().output(step, w, G.scale(y, scale) if scale else y)


ARCHITECTURES = {
    "mimo2": Architecture(
        RopeMode.NEOX,
        configure,
        attention=ScaledValues(sinks="some"),
        feed_forward=Experts(balanced=True),
    )
}
