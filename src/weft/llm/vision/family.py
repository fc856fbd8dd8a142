"""`Family`: what differs from tower to tower, as data and functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.graph.tensor import Tensor
from weft.llm.vision.config import TowerConfig
from weft.llm.vision.images import Pixels, resized
from weft.llm.weights import Row, Weights
from weft.records import dataclass

__all__ = ["Family", "SizeOf", "Tile", "normalised", "patches_of", "rows_by", "sized_by"]

SizeOf = Callable[[TowerConfig, int, int], tuple[int, int]]
"""The height and width in which a tower takes an image of a height and a width."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A part of an image that the tower sees by itself."""

    pixels: Pixels
    """Pixels in the size that the tower takes."""
    before: str = ""
    after: str = ""
    """Text in front of its rows and behind them."""


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of tower."""

    rows: Callable[[TowerConfig], Iterable[Row]]
    inputs: Callable[[TowerConfig], dict[str, Tensor]]
    forward: Callable[[TowerConfig, Weights, Mapping[str, Tensor]], Tensor]
    """Computes rows [n_out, n] from the inputs."""
    sized: Callable[[TowerConfig, Pixels], Pixels]
    """An image in a size that the tower takes."""
    values: Callable[[TowerConfig, Pixels], dict[str, NDArray[Any]]]
    """Values of the inputs for an image of such a size."""
    n_rows: Callable[[TowerConfig, int, int], int]
    """Number of rows of an image of any height and width."""
    tiles: Callable[[TowerConfig, Pixels], Sequence[Tile]] | None = None
    """The tiles of an image in any size, if the tower sees several."""
    merge: int = 1
    """`TowerConfig.merge`, if the file does not say."""
    before: str = ""
    after: str = ""
    """Text in front of an image and behind it."""
    together: bool = False
    """True if the rows of an image see one another in the decoder."""
    line: Callable[[TowerConfig, int, int], int] | None = None
    """Rows of a line of an image of a height and a width, if a token stands between lines."""
    line_end: str = ""
    """Text of the token between lines."""
    lines: bool = False
    """True if the decoder's positions have height and width (M-RoPE)."""


def sized_by(size_of: SizeOf) -> Callable[[TowerConfig, Pixels], Pixels]:
    """`Family.sized` of a tower that takes an image in the size of `size_of`."""

    def sized(c: TowerConfig, pixels: Pixels) -> Pixels:
        height, width = size_of(c, *pixels.shape[:2])
        return resized(pixels, width, height, "bicubic")

    return sized


def rows_by(size_of: SizeOf) -> Callable[[TowerConfig, int, int], int]:
    """`Family.n_rows` of a tower that makes a row of each `merge` x `merge` patches."""

    def n_rows(c: TowerConfig, height: int, width: int) -> int:
        h, w = size_of(c, height, width)
        return h * w // (c.patch_size * c.merge) ** 2

    return n_rows


def normalised(c: TowerConfig, pixels: Pixels) -> NDArray[np.float32]:
    """Values [height, width, 3] less the mean of each colour, in standard deviations."""
    mean, std = (np.array(values, np.float32) for values in (c.mean, c.std))
    return np.asarray((pixels.astype(np.float32) / np.float32(255) - mean) / std)


def patches_of(c: TowerConfig, pixels: Pixels, merge: int = 1) -> NDArray[np.float32]:
    """The normalised values of an image, a row for each patch, f32 [n_patches, 3 p p], colours
    outermost. Squares of `merge` patches follow one another, row by row."""
    p, m = c.patch_size, merge
    h, w = pixels.shape[0] // (p * m), pixels.shape[1] // (p * m)
    blocks = normalised(c, pixels).reshape(h, m, p, w, m, p, 3).transpose(0, 3, 1, 4, 6, 2, 5)
    return np.ascontiguousarray(blocks.reshape(h * w * m * m, c.patch_values))
