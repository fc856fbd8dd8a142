"""BERT, and encoders made of decoders' blocks: tokens see tokens on both sides, and there are no
logits.

LLaMA's blocks: EuroBERT (arXiv 2503.05500), NeoBERT (arXiv 2502.19587), whose gate and up are one
matrix, and Llama-Embed-Nemotron (arXiv 2511.07025). EmbeddingGemma (arXiv 2509.20354) has Gemma 3's
blocks, and dense layers behind the pooling. ModernBERT (arXiv 2412.13663) has LayerNorm without
biases, and no norm in front of its first attention. A window has a half on each side of a token.
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
from weft.llm.models.gemma import configure_gemma3
from weft.llm.models.parts import (
    EACH_HEAD,
    LAYER,
    Attention,
    FusedGated,
    Gated,
    Head,
    HeadNorm,
    Mlp,
    Norm,
    Part,
)
from weft.llm.models.step import Step
from weft.llm.weights import Row, Weights, maybe


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets that texts are seen on both sides, which not all files say."""
    return replace(c, causal=False)


def configure_gemma(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets Gemma 3's windows, rotations and scale."""
    return configure(configure_gemma3(c, keys), keys)


def configure_modern(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets windows, with a rotation of their own, and the pooling in front of a classifier, which
    old files do not state."""
    c = configure(c, keys)
    if c.classifier_pooling == "none":
        c = replace(c, classifier_pooling="mean")
    if not c.sliding_window:
        return c
    windowed, local = keys.windowed(3, c.n_layer, first=True), keys.local_rope(c)
    return replace(c, windowed=windowed, ropes=tuple(local if w else c.rope for w in windowed))


class ModernBert(Architecture):
    """LayerNorm in front of all parts but the first."""

    def block_rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        rows = super().block_rows(c, il)
        first = "blk.0.attn_norm.weight"
        return (replace(row, optional=True) if row.name == first else row for row in rows)

    def normed(self, step: Step, w: Weights, name: str, x: Tensor) -> Tensor:
        """Applies the norm called `name` to x, if there is one."""
        return super().normed(step, w, name if f"{name}.weight" in w else "", x)


class NamedGated(FusedGated):
    """A gated feed-forward layer with the activation that the file names; the default is GELU."""

    def __call__(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        return _ACTS.get(step.config.hidden_act, _ACTS["gelu"])(step, w, il, x)


_ACTS = {
    "gelu": FusedGated(G.geglu_erf),
    "gelu_new": FusedGated(G.geglu),
    "gelu_pytorch_tanh": FusedGated(G.geglu),
    "silu": FusedGated(G.swiglu),
}


_EURO = Architecture(RopeMode.NEOX, configure, embeds=True)


# BERT (arXiv 1810.04805): an encoder. Tokens see tokens on both sides, there are no logits, and
# norms follow the residual sums of attention and feed-forward layer. DistilBERT (arXiv 1910.01108)
# has no token types, and another activation in its classifier.
#
# Nomic BERT (arXiv 2402.01613) rotates instead of learning positions, and gates its feed-forward
# layer with SiLU; its second version (arXiv 2502.07972) has experts without a gate in every second
# layer. Jina's second BERT (arXiv 2310.19923) has ALiBi on both sides, the third (arXiv 2409.10173)
# rotates.


def configure_bert(c: ModelConfig, keys: Keys) -> ModelConfig:
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
    dense = tuple(range(0, c.n_layer, 2))
    return replace(c, moe=replace(require_experts(c), dense=dense, renormalise=False))


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
        x = common.embed(step, w)
        if step.types is not None:
            x = G.add(x, G.get_rows(w["token_types.weight"], step.types))
        elif "token_types.weight" in w:
            x = G.add(x, G.view_1d(w["token_types.weight"], step.config.n_embd, 0))
        return self.normed(step, w, self.embedding_norm, common.add_positions(step, w, x))

    def block(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        layer = w.layer(il)
        x, y = last(step, il, x, self.attention(step, w, il, x))
        y = self.normed(step, layer, "attn_output_norm", G.add(x, y)).named(f"ffn_inp-{il}")
        if "attn_norm_2.weight" in layer:  # Jina's code model adds its input a second time
            y = self.normed(step, layer, "attn_norm_2", G.add(x, y))
        x = G.add(y, self.feed_forward(step, w, il, y))
        return self.normed(step, layer, "layer_output_norm", x)


class BertHead(Head):
    """BERT's classifier; DistilBERT, which has no token types, has ReLU in it."""

    def activate(self, w: Weights, x: Tensor) -> Tensor:
        return self.act(x) if "token_types.weight" in w else G.relu(x)


_SPLIT, _FUSED = Gated(G.geglu_erf), FusedGated(G.geglu_erf)


class JinaGated:
    """A feed-forward layer whose gate is a matrix of its own, or the first half of `ffn_up`."""

    def rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        return (_FUSED if c.fused_gate else _SPLIT).rows(c, il)

    def __call__(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        return (_FUSED if step.config.fused_gate else _SPLIT)(step, w, il, x)


def _bert(feed_forward: Part, configure_bert: Configure = lambda c, keys: c) -> Bert:
    return Bert(
        RopeMode.NEOX,
        configure_bert,
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
    "eurobert": _EURO,
    "gemma-embedding": Architecture(
        RopeMode.NEOX, configure_gemma, attention=Attention(EACH_HEAD), feed_forward=Gated(G.geglu),
        after=("post_attention_norm", "post_ffw_norm"), embeds=True, head=Head(),
    ),
    "llama-embed": replace(_EURO, rope_mode=RopeMode.NORMAL),
    "modern-bert": ModernBert(
        RopeMode.NEOX, configure_modern, feed_forward=NamedGated(), norm=Norm(centred=True),
        embedding_norm="token_embd_norm", embeds=True, head=Head(G.gelu_erf),
    ),
    "neo-bert": replace(
        _EURO, rope_mode=RopeMode.NORMAL, feed_forward=FusedGated(), last_norm="enc.output_norm",
        head=Head(),
    ),
    # files of BERT stand for the tanh form of GELU
    "bert": _bert(Mlp(), configure_bert),
    "jina-bert-v2": replace(
        _bert(JinaGated(), configure_jina),
        attention=Attention(HeadNorm(LAYER, whole=True, optional=True)),
    ),
    "jina-bert-v3": _bert(_ERF),
    "nomic-bert": _bert(Gated()),
    "nomic-bert-moe": _bert(Experts(_ERF, plain=G.gelu_erf), configure_experts),
}  # fmt: skip
