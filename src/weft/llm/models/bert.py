"""BERT (arXiv 1810.04805): an encoder. Tokens see tokens on both sides, there are no logits, and
norms follow the residual sums of attention and feed-forward layer. Token types are all 0, "sentence
A"; DistilBERT (arXiv 1910.01108) has none.

Nomic BERT (arXiv 2402.01613) rotates instead of learning positions, and gates its feed-forward
layer with SiLU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from weft import graph as G
from weft.graph import RopeMode
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.models import common
from weft.llm.models.architecture import Architecture, Configure, last
from weft.llm.models.parts import LAYER, Gated, Mlp, Part
from weft.llm.models.step import Step
from weft.llm.weights import Row, Weights, maybe

__all__ = ["ARCHITECTURES"]


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets learned positions, which nomic-bert does not have."""
    return replace(c.without_rope(), n_positions=c.n_ctx_train)


class Bert(Architecture):
    """A norm follows each sum; the output is the embedding of every token."""

    def outer_rows(self, c: ModelConfig) -> Iterator[Row]:
        """Tensors outside the layers."""
        yield from super().outer_rows(c)
        if c.n_token_types:
            yield maybe("token_types.weight", c.n_embd, c.n_token_types)

    def block_rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        """Tensors of a layer."""
        yield from super().block_rows(c, il)
        for name in ("attn_output_norm", "layer_output_norm"):
            yield from self.norm.rows(f"blk.{il}.{name}", c.n_embd)

    def embed(self, step: Step, w: Weights) -> Tensor:
        """The normed sum of the embeddings of tokens, type 0 and positions: [n_embd, n_tokens]."""
        x = common.embed(step, w)
        if "token_types.weight" in w:
            x = G.add(x, G.view_1d(w["token_types.weight"], step.config.n_embd, 0))
        return self.normed(step, w, self.embedding_norm, common.add_positions(step, w, x))

    def block(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        """One layer, from x [n_embd, n_tokens] to the same sizes."""
        layer = w.layer(il)
        x, y = last(step, il, x, self.attention(step, w, il, x))
        x = self.normed(step, layer, "attn_output_norm", G.add(x, y))
        y = self.feed_forward(step, w, il, x)
        return self.normed(step, layer, "layer_output_norm", G.add(x, y))

    def logits(self, step: Step, w: Weights, x: Tensor) -> Tensor:
        """The embeddings [n_embd, n_outputs] themselves."""
        return x.named("result_norm")


def _bert(feed_forward: Part, configure: Configure = lambda c, keys: c) -> Bert:
    return Bert(
        RopeMode.NEOX,
        configure,
        feed_forward=feed_forward,
        norm=LAYER,
        before=("", ""),
        embedding_norm="token_embd_norm",
        last_norm="",
        embeds=True,
    )


ARCHITECTURES = {"bert": _bert(Mlp(), configure), "nomic-bert": _bert(Gated())}
