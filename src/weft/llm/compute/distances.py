"""Buckets of distances between tokens, for which T5 (arXiv 1910.10683) has learned biases: one for
each of the shortest distances, and wider ones up to 128 tokens; what is farther is in the last."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["FARTHEST", "Distances"]

FARTHEST = 128
"""The distance from which on all are in the last bucket."""


class Distances:
    """The buckets of a model; `both` sides of a token have buckets of their own in encoders."""

    def __init__(self, n_buckets: int, *, both: bool) -> None:
        n = n_buckets // 2 if both else n_buckets
        away = np.arange(FARTHEST + 1, dtype=np.float32)
        exact = np.float32(n // 2)
        wider = np.log(np.maximum(away, exact) / exact) / np.float32(np.log(FARTHEST / exact))
        wide = (wider * np.float32(n - n // 2)).astype(np.int32) + n // 2
        before = np.where(away < exact, away, np.minimum(wide, n - 1)).astype(np.int32)
        # tokens behind, which a decoder does not see, share the bucket of no distance
        behind = before[1:] + n if both else np.zeros(FARTHEST, np.int32)
        self._table = np.concatenate([before[::-1], behind]).astype(np.int32)

    def __call__(self, seen: NDArray[np.int32], positions: NDArray[np.int32]) -> NDArray[np.int32]:
        """The bucket [n, n_kv] of each position `seen` [n_kv] from each of `positions` [n]."""
        apart = seen - positions[:, None]
        buckets: NDArray[np.int32] = self._table[np.clip(apart, -FARTHEST, FARTHEST) + FARTHEST]
        return buckets
