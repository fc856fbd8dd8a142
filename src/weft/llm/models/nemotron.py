"""Nemotron: dense models, and hybrids of Mamba-2 and attention.

In Nemotron-H (arXiv 2504.03624) a layer is one of Mamba-2, attention without rotation, and a
feed-forward layer, which may be a mixture of experts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from weft import graph as G
from weft.graph import RopeMode
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.models.architecture import Architecture, last
from weft.llm.models.experts import Experts
from weft.llm.models.hybrid import MambaOrAttention, routed
from weft.llm.models.mamba import sizes2
from weft.llm.models.parts import LAYER, Mlp, Part, squared_relu
from weft.llm.models.step import Step
from weft.llm.weights import Row, Weights

__all__ = ["ARCHITECTURES"]


def configure_nemotron(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Layers without heads and without a width are recurrent."""
    # converters do not write the width of dense layers of models that may have experts
    ups = [keys.file.tensors.get(f"blk.{il}.ffn_up.weight") for il in range(c.n_layer)]
    widths = tuple(n or (up.ne[1] if up else 0) for n, up in zip(c.widths, ups, strict=True))
    layers = tuple(kv == 0 and n == 0 for kv, n in zip(c.heads_kv, widths, strict=True))
    c = replace(
        c.without_rope(),
        widths=widths,
        recurrent=sizes2(keys, layers),
        rms_eps=keys.number("attention.layer_norm_rms_epsilon", c.norm_eps),
    )
    if c.moe is not None:
        n_latent = keys.count("moe_latent_size", 0, least=0)
        c = replace(c, moe=replace(c.moe, sigmoid=True, n_latent=n_latent))
    return routed(c, keys)


class OneOfThree(Architecture):
    """A layer is a norm and one part: a mixer, attention, or the feed-forward layer."""

    def block_rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        yield from self.norm.rows(f"blk.{il}.attn_norm", c.n_embd)
        yield from self._part(c, il).rows(c, il)

    def block(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        part = self._part(step.config, il)
        y = part(step, w, il, self.normed(step, w.layer(il), "attn_norm", x))
        return G.add(*last(step, il, x, y))

    def of_next_layer(self) -> Architecture:
        """The layer that drafts attends and has experts, each behind a norm."""
        return Architecture(
            self.rope_mode,
            self.configure,
            attention=self.attention,
            feed_forward=self.feed_forward,
            before=("attn_norm", "post_attention_norm"),
        )

    def _part(self, c: ModelConfig, il: int) -> Part:
        return self.feed_forward if c.n_ff(il) and not c.n_head_kv(il) else self.attention


_NEMOTRON = OneOfThree(
    RopeMode.NEOX,
    configure_nemotron,
    attention=MambaOrAttention(),
    feed_forward=Experts(Mlp(squared_relu), shared="added", balanced=True, plain=squared_relu),
)


ARCHITECTURES = {
    # Nemotron-4 (arXiv 2402.16819, Minitron: 2407.14679): LayerNorm, rotation of a part of each
    # head, grouped-query attention, and squared ReLU (arXiv 2109.08668) in the feed-forward layer.
    "nemotron": Architecture(RopeMode.NEOX, norm=LAYER, feed_forward=Mlp(squared_relu)),
    "nemotron_h": _NEMOTRON,
    "nemotron_h_moe": _NEMOTRON,
}
