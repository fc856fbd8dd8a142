"""Falcon (arXiv 2311.16867): attention with few key/value heads and a feed-forward layer side by
side behind one LayerNorm. In the 40B shape attention has a norm of its own, `attn_norm_2`."""

from __future__ import annotations

from collections.abc import Iterator

from weft import graph as G
from weft.graph import RopeMode
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig
from weft.llm.models.architecture import Architecture, last
from weft.llm.models.parts import LAYER, Mlp
from weft.llm.models.step import Step
from weft.llm.weights import Row, Weights

__all__ = ["ARCHITECTURES"]


class Falcon(Architecture):
    """Attention and feed-forward layer read the same input; the 40B model norms it for each."""

    def block_rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        """Tensors of a layer."""
        yield from super().block_rows(c, il)
        yield from self.norm.rows(f"blk.{il}.attn_norm_2", c.n_embd, optional=True)

    def block(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        """One layer, from x [n_embd, n_tokens] to the same sizes."""
        layer = w.layer(il)
        normed = self.normed(step, layer, "attn_norm", x)
        own = "attn_norm_2.weight" in layer
        y = self.normed(step, layer, "attn_norm_2", x) if own else normed
        y = self.attention(step, w, il, y)
        x, y, normed = last(step, il, x, y, normed)
        return G.add(G.add(y, self.feed_forward(step, w, il, normed)), x)


ARCHITECTURES = {
    "falcon": Falcon(RopeMode.NEOX, norm=LAYER, before=("attn_norm", ""), feed_forward=Mlp())
}
