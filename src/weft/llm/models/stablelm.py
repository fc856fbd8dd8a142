"""StableLM (arXiv 2402.17834): LayerNorm, rotation of a part of each head, a gated feed-forward
layer.

StableLM 2 12B norms each query and key head, and has no norm in front of the feed-forward layer,
which reads the normed input of attention."""

from __future__ import annotations

from collections.abc import Iterator

from weft import graph as G
from weft.graph import RopeMode
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig
from weft.llm.models.architecture import Architecture, last
from weft.llm.models.parts import LAYER, LAYER_NORMED_HEADS, Attention
from weft.llm.models.step import Step
from weft.llm.weights import Row, Weights

__all__ = ["ARCHITECTURES"]


class StableLm(Architecture):
    """The norm in front of the feed-forward layer is optional."""

    def block_rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        """Tensors of a layer."""
        yield from super().block_rows(c, il)
        yield from self.norm.rows(f"blk.{il}.ffn_norm", c.n_embd, optional=True)

    def block(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        """One layer, from x [n_embd, n_tokens] to the same sizes."""
        layer = w.layer(il)
        normed = self.normed(step, layer, "attn_norm", x)
        y = self.attention(step, w, il, normed)
        x, y, normed = last(step, il, x, y, normed)
        x = G.add(x, y)
        if "ffn_norm.weight" in layer:
            normed = self.normed(step, layer, "ffn_norm", x)
        return G.add(x, self.feed_forward(step, w, il, normed))


ARCHITECTURES = {
    "stablelm": StableLm(
        RopeMode.NEOX,
        norm=LAYER,
        before=("attn_norm", ""),
        attention=Attention(LAYER_NORMED_HEADS),
    )
}
