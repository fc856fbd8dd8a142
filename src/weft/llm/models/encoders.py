"""Encoders made of decoders' blocks: tokens see tokens on both sides, and there are no logits.

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
from weft.llm.models.architecture import Architecture
from weft.llm.models.gemma import configure_gemma3
from weft.llm.models.parts import EACH_HEAD, Attention, FusedGated, Gated, Head, Norm
from weft.llm.models.step import Step
from weft.llm.weights import Row, Weights

__all__ = ["ARCHITECTURES"]


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


ARCHITECTURES = {
    "eurobert": _EURO,
    "gemma-embedding": Architecture(
        RopeMode.NEOX,
        configure_gemma,
        attention=Attention(EACH_HEAD),
        feed_forward=Gated(G.geglu),
        after=("post_attention_norm", "post_ffw_norm"),
        embeds=True,
        head=Head(),
    ),
    "llama-embed": replace(_EURO, rope_mode=RopeMode.NORMAL),
    "modern-bert": ModernBert(
        RopeMode.NEOX,
        configure_modern,
        feed_forward=NamedGated(),
        norm=Norm(centred=True),
        embedding_norm="token_embd_norm",
        embeds=True,
        head=Head(G.gelu_erf),
    ),
    "neo-bert": replace(
        _EURO,
        rope_mode=RopeMode.NORMAL,
        feed_forward=FusedGated(),
        last_norm="enc.output_norm",
        head=Head(),
    ),
}
