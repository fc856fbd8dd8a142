"""Grok, and models whose logits are scaled and capped as Grok's are."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from weft import graph as G
from weft.graph import RopeMode
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.models import common
from weft.llm.models.architecture import Architecture, last
from weft.llm.models.experts import Experts
from weft.llm.models.parts import EACH_HEAD, RMS, Attention, Gated, Norm
from weft.llm.models.step import Step
from weft.llm.weights import Row, Weights, maybe, need

# Grok (xAI, 2024): norms in front of attention and experts and behind them, capped scores, and
# constants for embeddings and logits. Grok 2 adds a dense layer to the experts.
#
#     experts:  (dense(x) + mixture(x)) / sqrt(2), where there is a dense layer


_DENSE = Gated(G.geglu)


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets constants; where files have none, Grok 1 has them."""
    rope = replace(c.rope, beta_fast=keys.number("rope.scaling.yarn_beta_fast", 8.0))
    return replace(
        c,
        rope=rope,
        attn_scale=keys.number("attention.output_scale", 128**-0.5),
        attn_softcap=keys.number("attn_logit_softcapping", 30.0),
        embedding_scale=keys.number("embedding_scale", math.sqrt(6144)),
        logit_scale=keys.number("logit_scale", 1 / math.sqrt(3)),
    )


class NormedExperts(Experts):
    """Experts beside a dense layer, if there is one, and the norm behind them."""

    def rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        """The experts, the dense layer and the norm, which has two names."""
        yield from super().rows(c, il)
        for name, *sizes in (
            ("gate", c.n_embd, c.n_ff(il)),
            ("up", c.n_embd, c.n_ff(il)),
            ("down", c.n_ff(il), c.n_embd),
        ):
            yield maybe(f"blk.{il}.ffn_{name}.weight", *sizes)
        yield maybe(f"blk.{il}.layer_output_norm.weight", c.n_embd)
        yield need(f"blk.{il}.post_ffw_norm.weight", c.n_embd,
                   unless=f"blk.{il}.layer_output_norm.weight")  # fmt: skip

    def __call__(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        layer, y = w.layer(il), super().__call__(step, w, il, x)
        if "ffn_up.weight" in layer:
            y = G.scale(G.add(_DENSE(step, w, il, x), y), math.sqrt(0.5))
        name = "layer_output_norm" if "layer_output_norm.weight" in layer else "post_ffw_norm"
        return RMS(step.config, layer, name, y)


class Grok(Architecture):
    """Logits are scaled, and capped if the model has a cap."""

    def logits(self, step: Step, w: Weights, x: Tensor) -> Tensor:
        c, y = step.config, super().logits(step, w, x)
        y = G.scale(y, c.logit_scale) if c.logit_scale else y
        return common.soft_cap(y, c.final_softcap) if c.final_softcap else y


# Muse Glimmer (Meta, 2026): AFMoE's blocks with a dense feed-forward layer. Embeddings are normed,
# the norms behind attention and feed-forward layer have a smaller epsilon, and logits are scaled
# and capped. Three of four layers see only a sliding window, and those alone rotate.


_EPS_BEHIND = 1e-8


def configure_muse(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets windows and the layers that rotate: those with a window, unless
    `attention.rope_pattern` says which."""
    windowed = keys.windowed(4, c.n_layer)
    rotates = keys.flags("attention.rope_pattern", c.n_layer) or windowed
    local = replace(c.rope, freq_base=keys.local_rope(c).freq_base)
    none = replace(c.rope, n_dims=0)
    return replace(
        c,
        windowed=windowed if c.sliding_window else (),
        ropes=tuple(local if r else none for r in rotates),
    )


class Muse(Grok):
    """Embeddings and results are normed, with epsilons of their own."""

    def embed(self, step: Step, w: Weights) -> Tensor:
        return G.rms_norm(super().embed(step, w), step.config.rms_eps)

    def normed(self, step: Step, w: Weights, name: str, x: Tensor) -> Tensor:
        if name in self.after and name:
            return common.norm(w, name, x, _EPS_BEHIND)
        return super().normed(step, w, name, x)


# Talkie (2026), a model of texts before 1931: no norm has gains, but queries have one number for
# each head, behind the rotation and the norm; each layer adds the normed embeddings times a number
# of its own, and logits are scaled.


_NORM = Norm(gains=False)


def configure_talkie(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets that norms of heads are behind the rotation."""
    return replace(c, heads_last=True)


class ScaledHeads(Attention):
    """Attention with normed queries and keys, and a number for each head of queries."""

    def rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        yield from super().rows(c, il)
        yield need(f"blk.{il}.attn_q_norm.weight", 1, c.n_head(il))

    def norm_heads(
        self, c: ModelConfig, w: Weights, q: Tensor, k: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        q, k = (_NORM(c, w, "", x) for x in (q, k))
        return G.mul(q, w["attn_q_norm.weight"]), k, v


class Talkie(Grok):
    """Layers add the embeddings."""

    def block_rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        yield from super().block_rows(c, il)
        yield need(f"blk.{il}.layer_output_scale.weight", 1)

    def forward(self, step: Step, w: Weights) -> Tensor:
        x = first = self.embed(step, w)
        for il in range(step.config.n_layer):
            x, (skip,) = self.block(step, w, il, x), last(step, il, first)
            skip = G.mul(skip, w.layer(il)["layer_output_scale.weight"])
            x = common.steered(step, il, G.add(x, skip))
        return self.logits(step, w, x)


ARCHITECTURES = {
    "grok": Grok(
        RopeMode.NEOX, configure, feed_forward=NormedExperts(dense=None, act=G.geglu),
        after=("attn_output_norm", ""),
    ),
    "muse-glimmer": Muse(
        RopeMode.NORMAL, configure_muse, attention=Attention(EACH_HEAD, gate=G.sigmoid),
        after=("post_attention_norm", "post_ffw_norm"),
    ),
    "talkie": Talkie(
        RopeMode.NEOX, configure_talkie, attention=ScaledHeads(), norm=_NORM,
        embedding_norm="token_embd_norm",
    ),
}  # fmt: skip
