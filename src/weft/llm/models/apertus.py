"""Apertus (Swiss AI, arXiv 2509.14233): LLaMA's blocks with an RMS norm of each query and key
head, and a feed-forward layer without a gate. Its activation is xIELU (arXiv 2411.13010) with
parameters of its own in each layer."""

from __future__ import annotations

from dataclasses import replace

from weft import graph as G
from weft.graph import RopeMode
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.models.architecture import Architecture
from weft.llm.models.common import linear
from weft.llm.models.parts import EACH_HEAD, Attention, Mlp
from weft.llm.models.step import Step
from weft.llm.weights import Weights

__all__ = ["ARCHITECTURES"]

_NAMES = ("alpha_n", "alpha_p", "beta", "eps")


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Reads the parameters of the activation."""
    columns = [keys.plain_numbers(f"xielu.{name}", c.n_layer) for name in _NAMES]
    return replace(c, activation=tuple(zip(*columns, strict=True)))


class Xielu(Mlp):
    """down(xielu(up x))."""

    def __call__(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        """The layer, from x [n_embd, n_tokens] to the same sizes."""
        layer = w.layer(il)
        inside = G.xielu(linear(layer, "ffn_up", x), *step.config.activation[il])
        return linear(layer, "ffn_down", inside)


ARCHITECTURES = {
    "apertus": Architecture(
        RopeMode.NEOX, configure, attention=Attention(EACH_HEAD), feed_forward=Xielu()
    )
}
