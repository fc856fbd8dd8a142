"""Granite 3 (IBM, 2024): LLaMA's blocks with four constants: factors of embeddings, of attention
scores and of the outputs that a layer adds to the residual, and a divisor of logits.

MiniCPM (arXiv 2404.06395) has the same factors.

The mixture of experts (granitemoe) may have a shared expert, whose output is added. The models with
a sliding window in some layers (granite_swa) have attention sinks; some of their layers do not
rotate."""

from __future__ import annotations

from dataclasses import replace

from weft import graph as G
from weft.graph import RopeMode
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.models.architecture import Architecture
from weft.llm.models.experts import Experts
from weft.llm.models.parts import Attention, Gated
from weft.llm.models.step import Step
from weft.llm.weights import Weights

__all__ = ["ARCHITECTURES", "Granite", "configure"]


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Removes the rotary embedding if `rope.scaling.finetuned` is false."""
    if keys.flag("rope.scaling.finetuned", True):
        return c
    return replace(c, rope=replace(c.rope, n_dims=0))


def configure_windows(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the layers with a window, and those that rotate."""
    windowed = keys.windowed(4, c.n_layer, first=True)
    rotates = keys.flags("attention.rope_pattern", c.n_layer) or (True,) * c.n_layer
    none = replace(c.rope, n_dims=0)
    return replace(c, windowed=windowed, ropes=tuple(c.rope if r else none for r in rotates))


class Granite(Architecture):
    """Logits are divided by the scale of the metadata."""

    def logits(self, step: Step, w: Weights, x: Tensor) -> Tensor:
        """The scaled logits [n_vocab, n_outputs]."""
        return G.scale(super().logits(step, w, x), 1.0 / (step.config.logit_scale or 1.0))


_GRANITE = Granite(RopeMode.NORMAL, configure, feed_forward=Experts(shared="added"))


ARCHITECTURES = {
    "granite": _GRANITE,
    "granite_swa": replace(
        _GRANITE, configure=configure_windows, attention=Attention(sinks=True), feed_forward=Gated()
    ),
    "granitemoe": _GRANITE,
    "minicpm": _GRANITE,
}
