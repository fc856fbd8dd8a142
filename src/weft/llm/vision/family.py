"""`Family`: what differs from tower to tower, as data and two functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from weft.graph.tensor import Tensor
from weft.llm.vision.config import TowerConfig
from weft.llm.vision.pictures import Pixels, resized
from weft.llm.weights import Row, Weights
from weft.records import dataclass

__all__ = ["Family", "Fixed", "Sizing", "patches_of"]


class Sizing(Protocol):
    """Makes the pixels of an image those of whole patches."""

    def __call__(self, c: TowerConfig, pixels: Pixels) -> Pixels:
        """The image in a size that the tower takes."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """Every image becomes a square of the same size."""

    resampling: str

    def __call__(self, c: TowerConfig, pixels: Pixels) -> Pixels:
        """See `Sizing`."""
        return resized(pixels, c.image_size, c.image_size, self.resampling)


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of tower."""

    rows: Callable[[TowerConfig], Iterable[Row]]
    """The tensors of a file."""
    forward: Callable[[TowerConfig, Weights, Tensor], Tensor]
    """From patches [3 p p, n_patches] to rows [n_out, n]."""
    sizing: Sizing
    merge: int = 1
    """`TowerConfig.merge`, if the file does not say."""
    before: str = ""
    after: str = ""
    """Text in front of an image and behind it."""
    together: bool = False
    """True if the rows of an image see one another in the decoder."""


def patches_of(c: TowerConfig, pixels: Pixels) -> NDArray[np.float32]:
    """The normalised values of an image [height, width, 3], a row for each patch, row by row:
    f32 [n_patches, 3 p p], colours outermost."""
    p = c.patch_size
    mean, std = (np.array(values, np.float32) for values in (c.mean, c.std))
    values = (pixels.astype(np.float32) / np.float32(255) - mean) / std
    h, w = pixels.shape[0] // p, pixels.shape[1] // p
    blocks = values.reshape(h, p, w, p, 3).transpose(0, 2, 4, 1, 3)
    return np.ascontiguousarray(blocks.reshape(h * w, c.patch_values))
