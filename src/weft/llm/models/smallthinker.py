"""SmallThinker (arXiv 2507.20984): the router reads the input of the block, in front of attention
and its norm, so that experts can be fetched meanwhile. Experts have ReLU gates. Three of four
layers see only a sliding window, and those alone rotate."""

from __future__ import annotations

from dataclasses import replace

from weft import graph as G
from weft.graph import RopeMode
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.models.architecture import Architecture, last
from weft.llm.models.common import linear
from weft.llm.models.experts import Experts, require_experts
from weft.llm.models.step import Step
from weft.llm.weights import Weights

__all__ = ["ARCHITECTURES"]

_EXPERTS = Experts(dense=None, act=G.reglu)


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets windows and the layers that rotate; without a window all do."""
    if not c.sliding_window:
        return c
    windowed = keys.windowed(4, c.n_layer, first=True)
    local = replace(c.rope, freq_base=keys.local_rope(c).freq_base)
    none = replace(c.rope, n_dims=0)
    return replace(c, windowed=windowed, ropes=tuple(local if w else none for w in windowed))


class Early(Architecture):
    """The router reads the input of the block."""

    def block(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        """One layer, from x [n_embd, n_tokens] to the same sizes."""
        layer = w.layer(il)
        scores = linear(layer, "ffn_gate_inp", x)
        y = self.attention(step, w, il, self.normed(step, layer, "attn_norm", x))
        x, y, scores = last(step, il, x, y, scores)
        x = G.add(x, y)
        y = self.normed(step, layer, "ffn_norm", x)
        return G.add(x, _EXPERTS.mixture(layer, y, require_experts(step.config), scores))


ARCHITECTURES = {"smallthinker": Early(RopeMode.NEOX, configure, feed_forward=_EXPERTS)}
