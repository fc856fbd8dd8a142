"""Phi-2 (Microsoft, 2023; its shape is phi-1.5's, arXiv 2309.05463): attention and feed-forward
layer side by side behind one LayerNorm, rotation of a part of each head, biases everywhere."""

from __future__ import annotations

from weft import graph as G
from weft.graph import RopeMode
from weft.graph.tensor import Tensor
from weft.llm.models.architecture import Architecture, last
from weft.llm.models.parts import LAYER, Mlp
from weft.llm.models.step import Step
from weft.llm.weights import Weights

__all__ = ["ARCHITECTURES"]


class Parallel(Architecture):
    """Attention and feed-forward layer read the same normed input."""

    def block(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        """One layer, from x [n_embd, n_tokens] to the same sizes."""
        normed = self.normed(step, w.layer(il), "attn_norm", x)
        y = self.attention(step, w, il, normed)
        x, y, normed = last(step, il, x, y, normed)
        return G.add(G.add(y, self.feed_forward(step, w, il, normed)), x)


ARCHITECTURES = {
    "phi2": Parallel(RopeMode.NEOX, norm=LAYER, before=("attn_norm", ""), feed_forward=Mlp())
}
