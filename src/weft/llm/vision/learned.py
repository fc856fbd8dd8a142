"""Learned positions of a square of patches, for images with other numbers of lines and places: each
patch takes the four positions around its own, in shares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft import graph as G
from weft.graph.size import Size
from weft.graph.tensor import Tensor
from weft.llm.weights import Weights

Taps = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]]
"""For each of n places the learned positions before and behind it, and the share of the second."""


def inputs(n: Size) -> dict[str, Tensor]:
    """The inputs of a graph for n patches."""
    out: dict[str, Tensor] = {}
    for i in range(4):
        out[f"corner_{i}"] = G.input(f"corner_{i}", (n,), "i32")
        out[f"share_{i}"] = G.input(f"share_{i}", (n, 1), "f32")
    return out


def added(w: Weights, x: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    """x [n_embd, n] plus the learned positions of its patches."""
    for i in range(4):
        learned = G.get_rows(w["v.position_embd.weight"], inputs[f"corner_{i}"])
        x = G.add(x, G.mul(learned, inputs[f"share_{i}"]))
    return x


def from_end_to_end(n: int, side: int) -> Taps:
    """The first and the last of n places have the first and the last of `side` learned
    positions."""
    at = np.arange(n, dtype=np.float32) * np.float32(side - 1) / np.float32(max(n - 1, 1))
    return _taps(at, side)


def by_centres(n: int, side: int) -> Taps:
    """The centres of n places are spread over the centres of `side` learned ones; what would lie
    beyond the first or the last is that one."""
    at = (np.arange(n, dtype=np.float32) + np.float32(0.5)) * np.float32(side / n)
    return _taps(np.maximum(at - np.float32(0.5), np.float32(0)), side)


def _taps(at: NDArray[np.float32], side: int) -> Taps:
    low = np.minimum(np.floor(at).astype(np.int32), side - 1)
    return low, np.minimum(low + 1, side - 1), at - low


def values(
    y: NDArray[Any], x: NDArray[Any], lines: Taps, places: Taps, side: int
) -> dict[str, NDArray[Any]]:
    """The values of `inputs` for patches in the lines y and the places x."""
    out: dict[str, NDArray[Any]] = {}
    for i in range(4):
        (row, share_y), (column, share_x) = (
            (taps[half][at], (taps[2] if half else 1 - taps[2])[at])
            for taps, at, half in ((lines, y, i // 2), (places, x, i % 2))
        )
        out[f"corner_{i}"] = (row * side + column).astype(np.int32)
        out[f"share_{i}"] = (share_y * share_x)[:, None].astype(np.float32)
    return out
