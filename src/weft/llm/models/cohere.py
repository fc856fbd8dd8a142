"""Command R (Cohere, 2024): attention and a gated feed-forward layer side by side behind one
LayerNorm without bias; logits are scaled. Command R+ norms each query and key head.

Command R7B and A (cohere2) have no such norms; three of four layers see only a sliding window, and
those alone rotate (arXiv 2501.18795). North (cohere2moe) has a mixture of experts behind the first
layers, which rotate as well. PLaMo (Preferred Networks, 2023) has an RMS norm and plain logits."""

from __future__ import annotations

from dataclasses import replace

from weft import graph as G
from weft.graph import RopeMode
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.models.architecture import Architecture, Configure, last
from weft.llm.models.experts import Experts, require_experts
from weft.llm.models.parts import LAYER, LAYER_NORMED_HEADS, RMS, Attention, Norm
from weft.llm.models.step import Step
from weft.llm.weights import Weights

__all__ = ["ARCHITECTURES"]


def configure_windows(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the layers of cohere2 that have a window, which are those that rotate."""
    windowed = keys.windowed(4, c.n_layer)
    none = replace(c.rope, n_dims=0)
    return replace(c, windowed=windowed, ropes=tuple(c.rope if w else none for w in windowed))


def configure_experts(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets windows, of which the first layer of four has none, and the layers that rotate. Files
    with an epsilon of RMS norms have such norms: the other epsilon is then 0. Raises FormatError
    for a file without experts."""
    moe = require_experts(c)
    if f"{c.arch}.attention.layer_norm_rms_epsilon" in keys.file.metadata:
        c = replace(c, norm_eps=0.0)
    windowed = keys.windowed(4, c.n_layer, first=True)
    none = replace(c.rope, n_dims=0)
    rotates = (w or moe.is_dense(il) for il, w in enumerate(windowed))
    return replace(c, windowed=windowed, ropes=tuple(c.rope if r else none for r in rotates))


class CommandR(Architecture):
    """Attention and feed-forward layer read the same normed input; logits are scaled."""

    def block(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        normed = self.normed(step, w.layer(il), "attn_norm", x)
        y = self.attention(step, w, il, normed)
        x, y, normed = last(step, il, x, y, normed)
        return G.add(G.add(self.feed_forward(step, w, il, normed), x), y)

    def logits(self, step: Step, w: Weights, x: Tensor) -> Tensor:
        """The scaled logits [n_vocab, n_outputs]."""
        return G.scale(super().logits(step, w, x), step.config.logit_scale or 1.0)


class North(CommandR):
    """All norms are RMS norms if LayerNorm has no epsilon."""

    def normed(self, step: Step, w: Weights, name: str, x: Tensor) -> Tensor:
        rms = name and step.config.norm_eps == 0.0
        return RMS(step.config, w, name, x) if rms else super().normed(step, w, name, x)


def _command_r(configure: Configure = lambda c, keys: c) -> CommandR:
    return CommandR(
        RopeMode.NORMAL,
        configure,
        norm=LAYER,
        before=("attn_norm", ""),
        attention=Attention(LAYER_NORMED_HEADS),
    )


ARCHITECTURES = {
    "command-r": _command_r(),
    "cohere2": _command_r(configure_windows),
    "cohere2moe": North(
        RopeMode.NORMAL,
        configure_experts,
        norm=Norm(centred=True),
        before=("attn_norm", ""),
        feed_forward=Experts(shared="averaged", renormalise=False),
    ),
    "plamo": CommandR(RopeMode.NEOX, before=("attn_norm", "")),
}
