"""Talkie (2026), a model of texts before 1931: no norm has gains, but queries have one number for
each head, behind the rotation and the norm; each layer adds the normed embeddings times a number of
its own, and logits are scaled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from weft import graph as G
from weft.graph import RopeMode
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.models import common
from weft.llm.models.architecture import last
from weft.llm.models.grok import Grok
from weft.llm.models.parts import Attention, Norm
from weft.llm.models.step import Step
from weft.llm.weights import Row, Weights, need

__all__ = ["ARCHITECTURES"]

_NORM = Norm(gains=False)


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets that norms of heads are behind the rotation."""
    return replace(c, heads_last=True)


class ScaledHeads(Attention):
    """Attention with normed queries and keys, and a number for each head of queries."""

    def rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        """The projections, and the numbers of heads."""
        yield from super().rows(c, il)
        yield need(f"blk.{il}.attn_q_norm.weight", 1, c.n_head(il))

    def norm_heads(
        self, c: ModelConfig, w: Weights, q: Tensor, k: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Norms queries and keys, and scales queries."""
        q, k = (_NORM(c, w, "", x) for x in (q, k))
        return G.mul(q, w["attn_q_norm.weight"]), k, v


class Talkie(Grok):
    """Layers add the embeddings."""

    def block_rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        """Tensors of a layer."""
        yield from super().block_rows(c, il)
        yield need(f"blk.{il}.layer_output_scale.weight", 1)

    def forward(self, step: Step, w: Weights) -> Tensor:
        """Computes logits [n_vocab, n_outputs] from tokens."""
        x = first = self.embed(step, w)
        for il in range(step.config.n_layer):
            x, (skip,) = self.block(step, w, il, x), last(step, il, first)
            skip = G.mul(skip, w.layer(il)["layer_output_scale.weight"])
            x = common.steered(step, il, G.add(x, skip))
        return self.logits(step, w, x)


ARCHITECTURES = {
    "talkie": Talkie(
        RopeMode.NEOX,
        configure,
        attention=ScaledHeads(),
        norm=_NORM,
        embedding_norm="token_embd_norm",
    )
}
