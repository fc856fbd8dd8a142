"""BERT (arXiv 1810.04805): an encoder. Tokens see tokens on both sides, there are no logits, and
norms follow the residual sums of attention and feed-forward layer. DistilBERT (arXiv 1910.01108)
has no token types, and another activation in its classifier.

Nomic BERT (arXiv 2402.01613) rotates instead of learning positions, and gates its feed-forward
layer with SiLU; its second version (arXiv 2502.07972) has experts without a gate in every second
layer. Jina's second BERT (arXiv 2310.19923) has ALiBi on both sides, the third (arXiv 2409.10173)
rotates.
"""

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
from weft.llm.models.experts import Experts, require_experts
from weft.llm.models.parts import (
    LAYER,
    Attention,
    FusedGated,
    Gated,
    Head,
    HeadNorm,
    Mlp,
    Part,
)
from weft.llm.models.step import Step
from weft.llm.weights import Row, Weights, maybe

__all__ = ["ARCHITECTURES"]


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets learned positions, which only BERT itself has."""
    return replace(c.without_rope(), n_positions=c.n_ctx_train)


def configure_jina(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets biases in place of the rotation, which no key has, and where the gate is."""
    info = keys.file.tensors.get("blk.0.ffn_up.weight")
    fused = info is not None and info.ne[1] == 2 * c.n_ff()
    return replace(c.without_rope(), alibi_bias=8.0, fused_gate=fused)


def configure_experts(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the layers with experts, which are every second one."""
    period = keys.count("moe_every_n_layers")
    if period != 2:
        raise keys.bad("moe_every_n_layers", period, "2; others are not supported")
    return replace(c, moe=replace(require_experts(c), step=2, renormalise=False))


class Bert(Architecture):
    """A norm follows each sum; the output is the embedding of every token."""

    def outer_rows(self, c: ModelConfig) -> Iterator[Row]:
        yield from super().outer_rows(c)
        if c.n_token_types:
            yield maybe("token_types.weight", c.n_embd, c.n_token_types)

    def block_rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        yield from super().block_rows(c, il)
        for name in ("attn_output_norm", "layer_output_norm"):
            yield from self.norm.rows(f"blk.{il}.{name}", c.n_embd)
        yield from self.norm.rows(f"blk.{il}.attn_norm_2", c.n_embd, optional=True)

    def embed(self, step: Step, w: Weights) -> Tensor:
        """The normed sum of the embeddings of tokens, types and positions: [n_embd, n_tokens]."""
        x = common.embed(step, w)
        if step.types is not None:
            x = G.add(x, G.get_rows(w["token_types.weight"], step.types))
        elif "token_types.weight" in w:
            x = G.add(x, G.view_1d(w["token_types.weight"], step.config.n_embd, 0))
        return self.normed(step, w, self.embedding_norm, common.add_positions(step, w, x))

    def block(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        layer = w.layer(il)
        x, y = last(step, il, x, self.attention(step, w, il, x))
        y = self.normed(step, layer, "attn_output_norm", G.add(x, y))
        if "attn_norm_2.weight" in layer:  # Jina's code model adds its input a second time
            y = self.normed(step, layer, "attn_norm_2", G.add(x, y))
        x = G.add(y, self.feed_forward(step, w, il, y))
        return self.normed(step, layer, "layer_output_norm", x)


class BertHead(Head):
    """BERT's classifier; DistilBERT, which has no token types, has ReLU in it."""

    def activate(self, w: Weights, x: Tensor) -> Tensor:
        """The activation of the first layer."""
        return self.act(x) if "token_types.weight" in w else G.relu(x)


_SPLIT, _FUSED = Gated(G.geglu_erf), FusedGated(G.geglu_erf)


class JinaGated:
    """A feed-forward layer whose gate is a matrix of its own, or the first half of `ffn_up`."""

    def rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        """The matrices."""
        return (_FUSED if c.fused_gate else _SPLIT).rows(c, il)

    def __call__(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        """The layer, from x [n_embd, n_tokens] to the same sizes."""
        return (_FUSED if step.config.fused_gate else _SPLIT)(step, w, il, x)


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
        head=BertHead(),
    )


_ERF = Mlp(G.gelu_erf)

ARCHITECTURES = {
    # files of BERT stand for the tanh form of GELU
    "bert": _bert(Mlp(), configure),
    "jina-bert-v2": replace(
        _bert(JinaGated(), configure_jina),
        attention=Attention(HeadNorm(LAYER, whole=True, optional=True)),
    ),
    "jina-bert-v3": _bert(_ERF),
    "nomic-bert": _bert(Gated()),
    "nomic-bert-moe": _bert(Experts(_ERF, plain=G.gelu_erf), configure_experts),
}
