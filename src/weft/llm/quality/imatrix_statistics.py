"""Figures of an importance matrix: how its values are distributed in each tensor.

The values are mean squares of inputs; experts that saw no token are left out. By the definitions of
`llama-imatrix --show-statistics`, in f64.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import FormatError
from weft.frontends.gguf.imatrix_file import Imatrix, ImatrixEntry
from weft.records import dataclass

__all__ = ["LayerStatistics", "TensorStatistics", "imatrix_statistics", "layer_statistics"]

_NO_INPUT = 1e-5
"""Mean square up to which a column is inactive."""


@dataclass(frozen=True, slots=True)
class TensorStatistics:
    """Figures of one tensor of weights."""

    name: str
    layer: int | None
    n: int
    """Number of values: columns, times experts that saw tokens."""
    total: float
    minimum: float
    maximum: float
    mean: float
    deviation: float
    active: float
    """Share of values above 1e-5."""
    entropy: float
    """Entropy of the values as shares of their total, in bits."""
    entropy_share: float
    """`entropy` as a share of its maximum."""
    far: float
    """Share of values that lie more than one deviation above the mean."""
    cosine: float
    """Cosine between the sums of this layer and of the layer before; 0 if there is none before."""

    def as_dict(self) -> dict[str, Any]:
        """The figures as plain data, for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class LayerStatistics:
    """Means of a layer's tensors, weighted by their values."""

    layer: int
    total: float
    far: float
    cosine: float


def imatrix_statistics(imatrix: Imatrix) -> list[TensorStatistics]:
    """The figures of each tensor, by kind of tensor, those with the largest totals first.

    Raises FormatError if no tensor has values, or some are not finite."""
    rows = []
    for name, entry in imatrix.entries.items():
        values = _means(entry)
        if values.size:
            rows.append(_figures(name, values, _cosine(imatrix, name, entry)))
    if not rows:
        raise FormatError("the importance matrix has no values: all its counts are 0")
    return sorted(rows, key=lambda row: (_kind(row.name), -row.total))


def layer_statistics(rows: Iterable[TensorStatistics]) -> list[LayerStatistics]:
    """The means of each layer, in order."""
    layers: dict[int, list[TensorStatistics]] = {}
    for row in rows:
        if row.layer is not None:
            layers.setdefault(row.layer, []).append(row)
    found = []
    for layer, own in sorted(layers.items()):
        n = sum(row.n for row in own)
        total, far, cosine = (
            sum(row.n * getattr(row, field) for row in own) / n
            for field in ("total", "far", "cosine")
        )
        found.append(LayerStatistics(layer, total, far, cosine))
    return found


def _means(entry: ImatrixEntry) -> NDArray[np.float64]:
    seen = entry.counts > 0
    sums = entry.sums.astype(np.float64)[seen]
    means = (sums / entry.counts[seen][:, None]).ravel()
    if not np.isfinite(means).all():
        raise FormatError("the importance matrix has values that are not finite; measure it again")
    return means


def _figures(name: str, values: NDArray[np.float64], cosine: float) -> TensorStatistics:
    n, total = values.size, float(values.sum())
    deviation = float(values.std())
    entropy = 0.0
    if total > 0:
        shares = values[values > 0] / total
        entropy = -float((shares * np.log2(shares)).sum())
    far = float(((values - values.mean()) / deviation > 1).mean()) if deviation > 0 else 0.0
    layer = re.search(r"blk\.(\d+)\.", name)
    return TensorStatistics(
        name=name,
        layer=int(layer[1]) if layer else None,
        n=n,
        total=total,
        minimum=float(values.min()),
        maximum=float(values.max()),
        mean=total / n,
        deviation=deviation,
        active=float((np.abs(values) > _NO_INPUT).mean()),
        entropy=entropy,
        entropy_share=entropy / math.log2(n) if n > 1 else 0.0,
        far=far,
        cosine=cosine,
    )


def _cosine(imatrix: Imatrix, name: str, entry: ImatrixEntry) -> float:
    layer = re.search(r"blk\.(\d+)\.", name)
    if not layer:
        return 0.0
    before = f"{name[: layer.start(1)]}{int(layer[1]) - 1}{name[layer.end(1) :]}"
    if before not in imatrix.entries:
        return 0.0
    one = entry.sums.astype(np.float64).ravel()
    other = imatrix.entries[before].sums.astype(np.float64).ravel()
    size = float(np.sqrt((one @ one) * (other @ other))) if one.size == other.size else 0.0
    return float(one @ other) / size if size else 0.0


def _kind(name: str) -> str:
    """The part of a name before `.weight`, e.g. attn_q."""
    parts = name.split(".")
    return parts[parts.index("weight") - 1] if "weight" in parts[1:] else name
