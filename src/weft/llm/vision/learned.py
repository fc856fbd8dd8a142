"""Learned positions of a square of patches, for images with other numbers of lines and places: each
patch takes the positions around its own in shares: two of each side, or four."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft import graph as G
from weft.graph.size import Size
from weft.graph.tensor import Tensor
from weft.llm.weights import Weights

Taps = tuple[NDArray[np.int32], NDArray[np.float32]]
"""For each of n places the learned positions around it [n, n_taps], and their shares."""
CUBIC = -0.75
"""The parameter of the cubic kernel (Keys 1981) that PyTorch takes."""


def inputs(n: Size, n_taps: int = 2) -> dict[str, Tensor]:
    """The inputs of a graph for n patches, which take `n_taps` positions of each side."""
    out: dict[str, Tensor] = {}
    for i in range(n_taps**2):
        out[f"corner_{i}"] = G.input(f"corner_{i}", (n,), "i32")
        out[f"share_{i}"] = G.input(f"share_{i}", (n, 1), "f32")
    return out


def added(
    w: Weights, x: Tensor, inputs: Mapping[str, Tensor], name: str = "v.position_embd.weight"
) -> Tensor:
    """x [n_embd, n] plus the learned positions of its patches, from the tensor `name`."""
    table, i = w[name], 0
    if table.ne[2] != 1:  # lines and places are apart
        table = G.reshape(table, table.ne[0], table.ne[1] * table.ne[2])
    while f"corner_{i}" in inputs:
        x = G.add(x, G.mul(G.get_rows(table, inputs[f"corner_{i}"]), inputs[f"share_{i}"]))
        i += 1
    return x


def from_end_to_end(n: int, side: int) -> Taps:
    """The first and the last of n places have the first and the last of `side` learned
    positions."""
    at = np.arange(n, dtype=np.float32) * np.float32(side - 1) / np.float32(max(n - 1, 1))
    return _linear(at, side)


def by_centres(n: int, side: int) -> Taps:
    """The centres of n places are spread over the centres of `side` learned ones; what would lie
    beyond the first or the last is that one."""
    return _linear(np.maximum(_centres(n, side), np.float32(0)), side)


def by_cubes(n: int, side: int) -> Taps:
    """Four positions for each place as in `by_centres`, with the shares of a cubic kernel."""
    at = _centres(n, side)
    first = np.floor(at)
    ids, shares = [], []
    for tap in range(-1, 3):
        d = np.abs(at - first - np.float32(tap))
        near = ((CUBIC + 2) * d - (CUBIC + 3)) * d * d + 1
        far = ((CUBIC * d - 5 * CUBIC) * d + 8 * CUBIC) * d - 4 * CUBIC
        ids.append(np.clip(first.astype(np.int32) + tap, 0, side - 1))
        shares.append(np.where(d <= 1, near, far).astype(np.float32))
    return np.stack(ids, 1), np.stack(shares, 1)


def _centres(n: int, side: int) -> NDArray[np.float32]:
    at = (np.arange(n, dtype=np.float32) + np.float32(0.5)) * np.float32(side / n)
    return np.asarray(at - np.float32(0.5))


def _linear(at: NDArray[np.float32], side: int) -> Taps:
    low = np.minimum(np.floor(at).astype(np.int32), side - 1)
    share = (at - low).astype(np.float32)
    ids = np.stack([low, np.minimum(low + 1, side - 1)], 1)
    return ids, np.stack([1 - share, share], 1)


def values(
    y: NDArray[Any], x: NDArray[Any], lines: Taps, places: Taps, side: int
) -> dict[str, NDArray[Any]]:
    """The values of `inputs` for patches in the lines y and the places x."""
    out: dict[str, NDArray[Any]] = {}
    n_taps = lines[0].shape[1]
    for i in range(n_taps**2):
        (row, share_y), (column, share_x) = (
            (ids[at, tap], shares[at, tap])
            for (ids, shares), at, tap in ((lines, y, i // n_taps), (places, x, i % n_taps))
        )
        out[f"corner_{i}"] = (row * side + column).astype(np.int32)
        out[f"share_{i}"] = (share_y * share_x)[:, None].astype(np.float32)
    return out
