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
from weft.llm.models.architecture import Architecture
from weft.llm.models.experts import Experts
from weft.llm.models.llama import Granite, configure_granite
from weft.llm.models.mamba import Mixer, sizes, sizes2
from weft.llm.models.parts import Attention
from weft.llm.models.recurrence import recurs
from weft.llm.models.step import Step
from weft.llm.weights import Row, Weights, maybe

__all__ = ["ARCHITECTURES", "MambaOrAttention", "routed"]


def _layers(c: ModelConfig) -> tuple[bool, ...]:
    """Layers without key/value heads are recurrent."""
    return tuple(n == 0 for n in c.heads_kv)


def configure_granite_hybrid(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the layers that are recurrent, and whether the others rotate."""
    return replace(configure_granite(c, keys), recurrent=sizes2(keys, _layers(c)))


def configure_jamba(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the layers that are recurrent, and those that have experts."""
    return routed(replace(c.without_rope(), recurrent=sizes(keys, _layers(c))), keys)


def routed(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the layers that have experts: those with a router, for no key says it."""
    if c.moe is None:
        return c
    routers = [f"blk.{il}.ffn_gate_inp.weight" for il in range(c.n_layer)]
    dense = tuple(il for il, name in enumerate(routers) if name not in keys.file.tensors)
    return replace(c, moe=replace(c.moe, dense=dense))


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


ARCHITECTURES = {
    "granitehybrid": Granite(
        RopeMode.NORMAL,
        configure_granite_hybrid,
        attention=MambaOrAttention(),
        feed_forward=Experts(shared="added"),
    ),
    "jamba": Architecture(
        RopeMode.NEOX,
        configure_jamba,
        attention=MambaOrAttention(),
        feed_forward=Experts(renormalise=False),
    ),
    "falcon-h1": FalconH1(RopeMode.NEOX, configure_falcon, attention=MambaAndAttention()),
}
