"""DeciLM and Nemotron NAS (arXiv 2411.19146): LLaMA's blocks, of which a search over architectures
has changed some: fewer key heads, a matrix in place of attention, or nothing; a feed-forward layer
of another width, or none."""

from __future__ import annotations

from collections.abc import Iterator

from weft import graph as G
from weft.graph import RopeMode
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig
from weft.llm.models.architecture import Architecture, last
from weft.llm.models.common import linear
from weft.llm.models.parts import linear_rows
from weft.llm.models.step import Step
from weft.llm.weights import Row, Weights

__all__ = ["ARCHITECTURES"]


class Deci(Architecture):
    """Layers without heads have no attention, those without key heads a matrix in its place."""

    def block_rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        """Tensors of a layer."""
        if c.n_head(il):
            yield from self.norm.rows(f"blk.{il}.attn_norm", c.n_embd)
            if c.n_head_kv(il):
                yield from self.attention.rows(c, il)
            else:
                yield from linear_rows(f"blk.{il}.attn_output", c.n_embd, c.n_embd)
        if c.n_ff(il):
            yield from self.norm.rows(f"blk.{il}.ffn_norm", c.n_embd)
            yield from self.feed_forward.rows(c, il)

    def block(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        """One layer, from x [n_embd, n_tokens] to the same sizes."""
        c, layer = step.config, w.layer(il)
        if c.n_head(il):
            y = self.normed(step, layer, "attn_norm", x)
            attends = c.n_head_kv(il) > 0
            y = self.attention(step, w, il, y) if attends else linear(layer, "attn_output", y)
            x, y = last(step, il, x, y)
            x = G.add(x, y)
        else:
            (x,) = last(step, il, x)
        if c.n_ff(il):
            y = self.normed(step, layer, "ffn_norm", x)
            x = G.add(x, self.feed_forward(step, w, il, y))
        return x


ARCHITECTURES = {"deci": Deci(RopeMode.NORMAL)}
