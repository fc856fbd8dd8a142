"""LoRA adapters (arXiv 2106.09685): low-rank sums beside the matrices of a model.

An adapted matrix W computes W x + B (s * (A x)). The A of all adapters are stacked, and so are the
B, so that each matrix costs two small products, however many adapters there are. `s` has a number
for every row of A and every token: the scale of the adapter for that token, or 0. Texts with
different adapters, or none, so share a batch and a plan.

The matrices of experts have one A and one B for each expert. Embeddings add B (s * A[token]).
`adapter_files.py` reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from weft.graph.tensor import Tensor
from weft.llm.scaled_files import ScaledSet, made_leaf
from weft.records import dataclass

F32 = NDArray[np.float32]
EMBEDDINGS = "token_embd.weight"
"""The matrix of which a token takes a row."""


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """An adapter whose matrices fit the model."""

    name: str
    path: Path
    scale: float
    """The scale where a text names no adapters."""
    rank: int
    """The greatest rank of its matrices."""
    pairs: dict[str, tuple[F32, F32]]
    """By the name of the matrix, A [..., rank, n_in] and B [..., n_out, rank], with B times
    alpha / rank. Of the embeddings A is [n_vocab, rank]."""

    @property
    def n_rows(self) -> int:
        """The number of scales of a token, one for each row of A."""
        return self.rank

    def arrays(self) -> Iterator[tuple[str, F32]]:
        """All matrices, with the name of what they change."""
        for name, pair in self.pairs.items():
            for part in pair:
                yield name, part


class Adapters(ScaledSet[Adapter]):
    """The adapters of a model, in the order in which they were given."""

    WHAT = "adapter"
    INPUT = "adapter_scales"

    def leaves(self) -> dict[str, Tensor]:
        """The stacked matrices as leaves: NAME.lora_a [n_in, n_rows] and NAME.lora_b [n_rows,
        n_out] for each adapted matrix NAME, of experts one behind the other; of the embeddings
        NAME.lora_a is [n_rows, n_vocab]. An adapter that leaves a matrix alone has zeros."""
        leaves: dict[str, Tensor] = {}
        for name in {name: None for adapter in self.all for name in adapter.pairs}:
            pairs = [adapter.pairs.get(name) for adapter in self.all]
            axis = -1 if name == EMBEDDINGS else -2
            leaves[f"{name}.lora_a"] = self._stacked(f"{name}.lora_a", pairs, 0, axis)
            leaves[f"{name}.lora_b"] = self._stacked(f"{name}.lora_b", pairs, 1, -1)
        return leaves

    def _stacked(
        self, name: str, pairs: Sequence[tuple[F32, F32] | None], which: int, axis: int
    ) -> Tensor:
        """A or B of all adapters, side by side along their ranks, the dimension `axis`."""
        shape = list(next(pair[which].shape for pair in pairs if pair is not None))
        shape[axis] = self.n_rows
        whole = np.zeros(shape, np.float32)
        rows = np.moveaxis(whole, axis, 0)
        start = 0
        for adapter, pair in zip(self.all, pairs, strict=True):
            if pair is not None:
                part = np.moveaxis(pair[which], axis, 0)
                rows[start : start + len(part)] = part
            start += adapter.rank
        return made_leaf(name, whole)
