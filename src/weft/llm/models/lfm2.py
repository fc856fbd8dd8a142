"""LFM2 (Liquid AI, arXiv 2511.23404): layers without key/value heads are gated short convolutions;
the others are attention with an RMS norm of each query and key head. A gated feed-forward layer
follows both, which may be a mixture of experts (lfm2moe).

    b, c, x = in(u)
    out(c * conv(b * x))
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from weft import graph as G
from weft.graph import RopeMode
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig, RecurrentConfig
from weft.llm.config_keys import Keys
from weft.llm.models.architecture import Architecture
from weft.llm.models.common import linear
from weft.llm.models.experts import Experts
from weft.llm.models.parts import EACH_HEAD, Attention, linear_rows
from weft.llm.models.recurrence import convolve, require_recurrent
from weft.llm.models.step import Step
from weft.llm.weights import Row, Weights, need

__all__ = ["ARCHITECTURES"]


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Sets the layers that are convolutions."""
    r = RecurrentConfig(
        layers=tuple(n == 0 for n in c.heads_kv),
        d_conv=keys.count("shortconv.l_cache", least=2),
        n_channels=c.n_embd,
    )
    return replace(c, recurrent=r)


class ConvolutionOrAttention(Attention):
    """A gated short convolution, or attention if the layer has key/value heads."""

    def rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        """The weights of the convolution or of attention."""
        r = require_recurrent(c)
        if not r.layers[il]:
            yield from super().rows(c, il)
            return
        yield from linear_rows(f"blk.{il}.shortconv.in_proj", c.n_embd, 3 * c.n_embd)
        yield need(f"blk.{il}.shortconv.conv.weight", r.d_conv, c.n_embd)
        yield from linear_rows(f"blk.{il}.shortconv.out_proj", c.n_embd, c.n_embd)

    def __call__(self, step: Step, w: Weights, il: int, x: Tensor) -> Tensor:
        """The convolution or attention, from x [n_embd, n_tokens] to the same sizes."""
        if not require_recurrent(step.config).layers[il]:
            return super().__call__(step, w, il, x)
        layer, n = w.layer(il), step.config.n_embd
        bcx = linear(layer, "shortconv.in_proj", x)
        b, c, inner = (
            G.cont(G.view_2d(bcx, n, bcx.ne[1], bcx.nb[1], i * n * bcx.dtype.bytes))
            for i in range(3)
        )
        y = convolve(step, il, G.mul(b, inner), layer["shortconv.conv.weight"])
        return linear(layer, "shortconv.out_proj", G.mul(c, y))


_LFM2 = Architecture(
    RopeMode.NEOX,
    configure,
    attention=ConvolutionOrAttention(EACH_HEAD),
    feed_forward=Experts(balanced=True),
    last_norm="token_embd_norm",  # the last norm has the name of the embedding's
)

ARCHITECTURES = {"lfm2": _LFM2, "lfm2moe": _LFM2}
