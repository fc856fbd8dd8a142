"""Mamba beside attention.

Granite 4 (IBM, 2025): layers are Mamba-2 or attention, mostly without rotation; Granite's factors
and experts. Jamba (arXiv 2403.19887): Mamba or attention without rotation, experts in every second
layer. Falcon-H1 (arXiv 2507.22448): both in every layer, side by side. Nemotron-H (arXiv
2504.03624): a layer is one of Mamba-2, attention without rotation, and a feed-forward layer, which
may be a mixture of experts."""

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
from weft.llm.models.llama import Granite, configure_granite
from weft.llm.models.mamba import Mixer, sizes, sizes2
from weft.llm.models.parts import LAYER, Attention, Mlp, Part, squared_relu
from weft.llm.models.step import Step, recurs
from weft.llm.weights import Row, Weights, maybe


def _layers(c: ModelConfig) -> tuple[bool, ...]:
    """Layers without key/value heads are recurrent."""
    return tuple(n == 0 for n in c.heads_kv)


def configure_granite_hybrid(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the layers that are recurrent, and whether the others rotate."""
    return replace(configure_granite(c, keys), recurrent=sizes2(keys, _layers(c)))


def configure_jamba(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the layers that are recurrent."""
    return replace(c.without_rope(), recurrent=sizes(keys, _layers(c)))


def configure_falcon(c: ModelConfig, keys: Keys) -> ModelConfig:
    """All layers are recurrent and attend."""
    return replace(c, recurrent=sizes2(keys, (True,) * c.n_layer))


class MambaOrAttention(Attention):
    """A mixer of Mamba, or attention if the layer is not recurrent."""

    def rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        return _MIXER.rows(c, il) if recurs(c, il) else super().rows(c, il)

    def __call__(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        if recurs(step.config, il):
            return _MIXER(step, w, il, x)
        return super().__call__(step, w, il, x)


class MambaAndAttention(Attention):
    """The sum of a mixer of Mamba and attention, which read the same input."""

    def rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        yield from super().rows(c, il)
        yield from _MIXER.rows(c, il)

    def __call__(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        return G.add(super().__call__(step, w, il, x), _MIXER(step, w, il, x))


class FalconH1(Architecture):
    """Converters write a norm's name without its end."""

    def block_rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        bare = f"blk.{il}.ffn_norm"
        yield maybe(bare, c.n_embd)
        for row in super().block_rows(c, il):
            yield replace(row, unless=bare) if row.name == f"{bare}.weight" else row

    def normed(self, step: Step, w: Weights, name: str, x: Tensor) -> Tensor:
        if name not in w:
            return super().normed(step, w, name, x)
        return G.mul(G.rms_norm(x, step.config.rms_eps), w[name])


_MIXER = Mixer()


# Nemotron: dense models, and hybrids of Mamba-2 and attention.
#
# In Nemotron-H (arXiv 2504.03624) a layer is one of Mamba-2, attention without rotation, and a
# feed-forward layer, which may be a mixture of experts.


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
    return c


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
    "granitehybrid": Granite(
        RopeMode.NORMAL, configure_granite_hybrid, attention=MambaOrAttention(),
        feed_forward=Experts(shared="added"),
    ),
    "jamba": Architecture(
        RopeMode.NEOX, configure_jamba, attention=MambaOrAttention(),
        feed_forward=Experts(renormalise=False),
    ),
    "falcon-h1": FalconH1(RopeMode.NEOX, configure_falcon, attention=MambaAndAttention()),
    # Nemotron-4 (arXiv 2402.16819, Minitron: 2407.14679): LayerNorm, rotation of a part of each
    # head, grouped-query attention, and squared ReLU (arXiv 2109.08668) in the feed-forward layer.
    "nemotron": Architecture(RopeMode.NEOX, norm=LAYER, feed_forward=Mlp(squared_relu)),
    "nemotron_h": _NEMOTRON,
    "nemotron_h_moe": _NEMOTRON,
}  # fmt: skip
