"""LoRA adapters (arXiv 2106.09685): low-rank sums beside the matrices of a model.

An adapted matrix W computes W x + B (s * (A x)). The A of all adapters are stacked, and so are the
B, so that each matrix costs two small products, however many adapters there are. `s` has a number
for every row of A and every token: the scale of the adapter for that token, or 0. Texts with
different adapters, or none, so share a batch and a plan.

The matrices of experts have one A and one B for each expert. Embeddings add B (s * A[token]).
`adapter_files.py` reads them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from weft.dtype import find_dtype
from weft.errors import ContextError
from weft.graph.tensor import Buffer, Tensor
from weft.records import dataclass

__all__ = ["EMBEDDINGS", "Adapter", "Adapters", "Chosen"]

F32 = NDArray[np.float32]
EMBEDDINGS = "token_embd.weight"
"""The matrix of which a token takes a row."""
Chosen = str | Mapping[str, float] | Sequence[str]
"""The adapters of a text: a name, a list of names, or scales by name."""


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


class Adapters:
    """The adapters of a model, in the order in which they were given."""

    def __init__(self, adapters: Sequence[Adapter]) -> None:
        self.all = tuple(adapters)
        self.n_rows = sum(adapter.rank for adapter in self.all)
        """Rows of A of all adapters, each with its greatest rank."""

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
        return _leaf(name, whole)

    def row(self, chosen: Chosen | None = None) -> F32:
        """The scales [n_rows] of a text with the adapters `chosen`; None: with all, at the scales
        that they were given with.

        Raises ContextError for an unknown name and for a scale that is no number."""
        scales = {a.name: a.scale for a in self.all} if chosen is None else self._scales(chosen)
        parts = [np.full(a.rank, scales.get(a.name, 0.0), np.float32) for a in self.all]
        return np.concatenate(parts)

    def _scales(self, chosen: Chosen) -> dict[str, float]:
        names = [chosen] if isinstance(chosen, str) else chosen
        scales = {n: names[n] if isinstance(names, Mapping) else 1.0 for n in names}
        known = [a.name for a in self.all]
        for name, scale in scales.items():
            if name not in known:
                raise ContextError(f"there is no adapter {name!r}; loaded are {', '.join(known)}")
            if not isinstance(scale, int | float) or not math.isfinite(scale):
                raise ContextError(f"the scale of adapter {name} is {scale!r}; it must be a number")
        return scales

    def fingerprint(self, rows: F32) -> str:
        """Tells adapters and the scales `rows` apart from others, in saved states."""
        digest = hashlib.sha256(rows.tobytes())
        for adapter in self.all:
            digest.update(adapter.name.encode())
            for name, pair in adapter.pairs.items():
                digest.update(name.encode())
                for part in pair:
                    digest.update(part.tobytes())
        return digest.hexdigest()[:16]


def _leaf(name: str, array: F32) -> Tensor:
    ne = (*array.shape[::-1], 1)[:3]
    data = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
    return Tensor(find_dtype("f32"), (*ne, 1), name=name, buffer=Buffer("weights", data=data))
