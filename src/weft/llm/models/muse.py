"""Muse Glimmer (Meta, 2026): AFMoE's blocks with a dense feed-forward layer. Embeddings are normed,
the norms behind attention and feed-forward layer have a smaller epsilon, and logits are scaled and
capped. Three of four layers see only a sliding window, and those alone rotate."""

from __future__ import annotations

from dataclasses import replace

from weft import graph as G
from weft.graph import RopeMode
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.models import common
from weft.llm.models.grok import Grok
from weft.llm.models.parts import EACH_HEAD, Attention
from weft.llm.models.step import Step
from weft.llm.weights import Weights

__all__ = ["ARCHITECTURES"]

_EPS_BEHIND = 1e-8


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets windows and the layers that rotate."""
    windowed = keys.windowed(4, c.n_layer)
    local = replace(c.rope, freq_base=keys.local_rope(c).freq_base)
    none = replace(c.rope, n_dims=0)
    return replace(
        c,
        windowed=windowed if c.sliding_window else (),
        ropes=tuple(local if w else none for w in windowed),
    )


class Muse(Grok):
    """Embeddings and results are normed, with epsilons of their own."""

    def embed(self, step: Step, w: Weights) -> Tensor:
        """The normed embeddings, [n_embd, n_tokens]."""
        return G.rms_norm(super().embed(step, w), step.config.rms_eps)

    def normed(self, step: Step, w: Weights, name: str, x: Tensor) -> Tensor:
        """Applies the norm called `name` to x; an empty name is no norm."""
        if name in self.after and name:
            return common.norm(w, name, x, _EPS_BEHIND)
        return super().normed(step, w, name, x)


ARCHITECTURES = {
    "muse-glimmer": Muse(
        RopeMode.NORMAL,
        configure,
        attention=Attention(EACH_HEAD, gate=G.sigmoid),
        after=("post_attention_norm", "post_ffw_norm"),
    )
}
