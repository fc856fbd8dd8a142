"""MPT (MosaicML, 2023): GPT-2's blocks, mostly without biases; queries, keys and values are
clamped.

Positions are linear biases (ALiBi, arXiv 2108.12409) if the file has `attention.max_alibi_bias`, or
learned. Some files norm queries and keys, or divide the output of GELU by scales (AWQ)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from weft import graph as G
from weft.graph import RopeMode
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys
from weft.llm.models.architecture import Architecture
from weft.llm.models.parts import LAYER, ClampedAttention, HeadNorm, Mlp
from weft.llm.weights import Row, Weights, maybe

__all__ = ["ARCHITECTURES"]


def configure(c: ModelConfig, keys: Keys) -> ModelConfig:
    """Removes the rotation; positions are learned if the file has a table of them."""
    learned = c.n_ctx_train if "position_embd.weight" in keys.file.tensors else 0
    return replace(c.without_rope(), n_positions=learned)


class ScaledMlp(Mlp):
    """An Mlp that divides the input of the last matrix by scales, if the file has them."""

    def rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        """The two matrices and the scales."""
        yield from super().rows(c, il)
        yield maybe(f"blk.{il}.ffn.act.scales", c.n_ff(il))

    def inner(self, w: Weights, inside: Tensor) -> Tensor:
        """Divides the input of the last matrix, [n_ff, n_tokens], by the scales."""
        return G.div(inside, w["ffn.act.scales"]) if "ffn.act.scales" in w else inside


ARCHITECTURES = {
    "mpt": Architecture(
        RopeMode.NEOX,
        configure,
        norm=LAYER,
        attention=ClampedAttention(HeadNorm(LAYER, whole=True, optional=True)),
        feed_forward=ScaledMlp(),
    )
}
