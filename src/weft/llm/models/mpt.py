"""MPT (MosaicML, 2023): GPT-2's blocks, mostly without biases; queries, keys and values are
clamped.

Positions come from linear biases (ALiBi, arXiv 2108.12409) where `attention.max_alibi_bias` says
so, or are learned. Some files norm queries and keys, or divide what GELU gives (AWQ)."""

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
    """Positions are never rotated; those that have learned them have a table."""
    learned = c.n_ctx_train if "position_embd.weight" in keys.file.tensors else 0
    return replace(c.without_rope(), n_positions=learned)


class ScaledMlp(Mlp):
    """Each element of the inside is divided by its scale, where the file has them."""

    def rows(self, c: ModelConfig, il: int) -> Iterator[Row]:
        """Two matrices, and the scales."""
        yield from super().rows(c, il)
        yield maybe(f"blk.{il}.ffn.act.scales", c.n_ff(il))

    def inner(self, w: Weights, inside: Tensor) -> Tensor:
        """[n_ff, n_tokens] -> the same."""
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
