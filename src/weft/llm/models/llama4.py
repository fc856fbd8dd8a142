"""LLaMA 4 (Meta, 2025): every fourth layer does not rotate and sees everything (arXiv 2501.18795),
its late queries are sharpened; the others see the chunk of positions that they are in, and norm
queries and keys behind the rotation. Experts weigh their input, and one more expert is always used.

Files do not state the lengths of chunks and of the spans of temperatures.
"""

from __future__ import annotations

from dataclasses import replace

from weft.graph import RopeMode
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig, Temperature
from weft.llm.config_keys import Keys
from weft.llm.models.architecture import Architecture
from weft.llm.models.experts import Experts, require_experts
from weft.llm.models.parts import Attention, HeadNorm, Norm
from weft.llm.models.step import Step
from weft.llm.weights import Weights

__all__ = ["ARCHITECTURES"]

_SPAN = 8192
_UNNORMED = 128
"""Number of experts of Maverick, whose heads have no norm."""


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets chunks, rotations, temperatures, and the experts. A window of 0 means no chunks, and
    that all layers rotate."""
    moe = require_experts(c)
    moe = replace(moe, sigmoid=True, n_ff_shared=moe.n_ff)
    c = replace(c, moe=moe, heads_last=moe.n_expert != _UNNORMED)
    if keys.count("attention.sliding_window", _SPAN, least=0) == 0:
        return c
    windowed = keys.windowed(4, c.n_layer)
    none = replace(c.rope, n_dims=0)
    return replace(
        c,
        sliding_window=c.sliding_window or _SPAN,
        windowed=windowed,
        chunked=True,
        ropes=tuple(c.rope if w else none for w in windowed),
        temperature=Temperature(0.1, _SPAN, offset=1, unrotated=True),
    )


_PLAIN = Attention()


class RotatedNormed(Attention):
    """Attention whose heads are normed in layers that rotate."""

    def __call__(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        if step.config.heads_last and step.config.rope_of(il).n_dims:
            return super().__call__(step, w, il, x)
        return _PLAIN(step, w, il, x)


ARCHITECTURES = {
    "llama4": Architecture(
        RopeMode.NORMAL,
        configure,
        attention=RotatedNormed(HeadNorm(Norm(gains=False))),
        feed_forward=Experts(shared="added", renormalise=False, weigh_inputs=True),
    )
}
