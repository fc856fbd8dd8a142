"""Grok (xAI, 2024): norms in front of attention and experts and behind them, capped scores, and
constants for embeddings and logits. Grok 2 adds a dense layer to the experts.

    experts:  (dense(x) + mixture(x)) / sqrt(2), where there is a dense layer
"""

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
from weft.llm.models.architecture import Architecture
from weft.llm.models.experts import Experts
from weft.llm.models.parts import RMS, Gated
from weft.llm.models.step import Step
from weft.llm.weights import Row, Weights, maybe, need

__all__ = ["ARCHITECTURES"]

_DENSE = Gated(G.geglu)


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets constants; where files have none, they are those of Grok 1."""
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
        """The experts, from x [n_embd, n_tokens] to the same sizes."""
        layer, y = w.layer(il), super().__call__(step, w, il, x)
        if "ffn_up.weight" in layer:
            y = G.scale(G.add(_DENSE(step, w, il, x), y), math.sqrt(0.5))
        name = "layer_output_norm" if "layer_output_norm.weight" in layer else "post_ffw_norm"
        return RMS(step.config, layer, name, y)


class Grok(Architecture):
    """Logits are scaled, and capped if the model has a cap."""

    def logits(self, step: Step, w: Weights, x: Tensor) -> Tensor:
        """The logits [n_vocab, n_outputs]."""
        c, y = step.config, super().logits(step, w, x)
        y = G.scale(y, c.logit_scale) if c.logit_scale else y
        return common.soft_cap(y, c.final_softcap) if c.final_softcap else y


ARCHITECTURES = {
    "grok": Grok(
        RopeMode.NEOX,
        configure,
        feed_forward=NormedExperts(dense=None, act=G.geglu),
        after=("attn_output_norm", ""),
    )
}
