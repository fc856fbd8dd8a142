"""Arctic (Snowflake, 2024): beside attention and a small dense feed-forward layer, as wide as the
model, a mixture of experts reads the input of the block.

    h = x + attention(norm(x));  h + dense(norm(h)) + experts(norm(x))
"""

from __future__ import annotations

from collections.abc import Iterator

from weft import graph as G
from weft.graph import RopeMode
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig
from weft.llm.models.architecture import Architecture, last
from weft.llm.models.experts import Experts
from weft.llm.models.parts import Gated
from weft.llm.models.step import Step
from weft.llm.weights import Row, Weights

__all__ = ["ARCHITECTURES"]

_DENSE = Gated()


class Arctic(Architecture):
    """A block with a dense layer and experts."""

    def block_rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        """Tensors of a layer."""
        yield from super().block_rows(c, il)
        yield from self.norm.rows(f"blk.{il}.ffn_norm_exps", c.n_embd)
        yield from _DENSE.sized_rows(c, il, c.n_embd)

    def block(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        """One layer, from x [n_embd, n_tokens] to the same sizes."""
        layer = w.layer(il)
        y = self.attention(step, w, il, self.normed(step, layer, "attn_norm", x))
        x, y = last(step, il, x, y)
        h = G.add(x, y)
        h = G.add(h, _DENSE(step, w, il, self.normed(step, layer, "ffn_norm", h)))
        return G.add(
            h, self.feed_forward(step, w, il, self.normed(step, layer, "ffn_norm_exps", x))
        )


ARCHITECTURES = {"arctic": Arctic(RopeMode.NORMAL, feed_forward=Experts(dense=None))}
