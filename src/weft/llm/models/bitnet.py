"""BitNet b1.58 (arXiv 2402.17764): LLaMA's blocks with ternary matrices, and one more norm in front
of each block's last matrix (SubLN, arXiv 2210.06423). The output is tied to the embedding."""

from __future__ import annotations

from collections.abc import Iterator

from weft.graph import RopeMode
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig
from weft.llm.models.architecture import Architecture
from weft.llm.models.parts import RMS, Attention, Gated
from weft.llm.models.step import Step
from weft.llm.weights import Row, Weights

__all__ = ["ARCHITECTURES"]


class SubNormedAttention(Attention):
    """Attention with a norm in front of the output matrix."""

    def rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        """The projections and the norm."""
        yield from super().rows(c, il)
        yield from RMS.rows(f"blk.{il}.attn_sub_norm", c.n_head(il) * c.head_dim_v)

    def output(self, step: Step, w: Weights, y: Tensor) -> Tensor:
        """The output projection, from y [dv * n_head, n_tokens] to [n_embd, n_tokens]."""
        return super().output(step, w, RMS(step.config, w, "attn_sub_norm", y))


class SubNormedGated(Gated):
    """A gated feed-forward layer with one more norm: down(norm(silu(gate x) * up x))."""

    def rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        """The three matrices and the norm."""
        yield from super().rows(c, il)
        yield from RMS.rows(f"blk.{il}.ffn_sub_norm", c.n_ff(il))

    def inner(self, step: Step, w: Weights, inside: Tensor) -> Tensor:
        """Norms the input of the last matrix, [n_ff, n_tokens]."""
        return RMS(step.config, w, "ffn_sub_norm", inside)


ARCHITECTURES = {
    "bitnet": Architecture(
        RopeMode.NEOX, attention=SubNormedAttention(), feed_forward=SubNormedGated()
    )
}
