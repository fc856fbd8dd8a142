"""Tiles as LLaVA 1.6 cuts them (LLaVA-NeXT; arXiv 2310.03744 has the model before): the whole of an
image, and its tiles in the shape of a list that loses the fewest pixels. Lines of patches run
through all tiles of a line, without the patches that only filling up made, and a learned row ends
each line.

The tower appends this learned row to the rows of every tile; `arranged` puts all rows into order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.llm.vision.config import Tile, TowerConfig
from weft.llm.vision.images import Pixels, require_resized, resized


def grid(c: TowerConfig, height: int, width: int) -> tuple[int, int]:
    """Lines and places of the tiles of an image: the shape in which it keeps the largest number of
    pixels, and among equal ones the shape that is filled up least."""
    best, most, least = c.pinpoints[0], 0, 0
    for high, wide in c.pinpoints:
        scale = min(wide / width, high / height)
        kept = min(int(width * scale) * int(height * scale), width * height)
        wasted = high * wide - kept
        if kept > most or (kept == most > 0 and wasted < least):
            best, most, least = (high, wide), kept, wasted
    return best[0] // c.image_size, best[1] // c.image_size


def fitted(high: int, wide: int, height: int, width: int) -> tuple[int, int]:
    """Height and width of an image that grows or shrinks to fit into `high` x `wide` pixels."""
    by_width, by_height = wide / width, high / height
    if by_width < by_height:
        return min(_ceil(height * by_width), high), wide
    return high, min(_ceil(width * by_height), wide)


def _ceil(value: float) -> int:
    return int(np.ceil(value))


def tiles(c: TowerConfig, pixels: Pixels) -> list[Tile]:
    """The whole of an image, whose proportions change, and its tiles, line by line. The image
    stands in the middle of the tiles, and black fills them up."""
    side, (height, width) = c.image_size, pixels.shape[:2]
    high, wide = (n * side for n in grid(c, height, width))
    require_resized(wide, high)
    h, w = fitted(high, wide, height, width)
    filled = np.zeros((high, wide, 3), np.uint8)
    y, x = (high - h) // 2, (wide - w) // 2
    filled[y : y + h, x : x + w] = resized(pixels, w, h, "bicubic")
    parts = [
        np.ascontiguousarray(filled[y : y + side, x : x + side])
        for y in range(0, high, side)
        for x in range(0, wide, side)
    ]
    return [Tile(resized(pixels, side, side, "bicubic")), *map(Tile, parts)]


class _Kept(NamedTuple):
    """The rows of the tiles' lines that stay, as numbers of lines and places from 0."""

    n_lines: int
    n_places: int
    lines: range
    places: range


def _kept(c: TowerConfig, side: int, height: int, width: int) -> _Kept:
    """The rows that stay, of tiles with `side` rows each way."""
    n_lines, n_places = grid(c, height, width)
    high, wide = n_lines * side, n_places * side
    lines, places = range(high), range(wide)
    if width / height > wide / high:
        filled = (high - int(round(height * (wide / width), 7))) // 2
        lines = lines[filled : high - filled]
    else:
        filled = (wide - int(round(width * (high / height), 7))) // 2
        places = places[filled : wide - filled]
    return _Kept(n_lines, n_places, lines, places)


def n_rows(c: TowerConfig, side: int, height: int, width: int) -> int:
    """Rows of an image of this size, of tiles with `side` rows each way."""
    kept = _kept(c, side, height, width)
    return side * side + len(kept.lines) * (len(kept.places) + 1)


def arranged(c: TowerConfig, side: int, height: int, width: int) -> NDArray[np.int64]:
    """The numbers, among the rows of the whole and of all tiles, of the rows of an image: the
    whole, and the lines, each with its end. Each tile has `side` rows each way and a row for
    ends of lines."""
    kept, n = _kept(c, side, height, width), side * side
    y, x = np.array(kept.lines, np.int64)[:, None], np.array(kept.places, np.int64)[None]
    tile = 1 + y // side * kept.n_places + x // side
    at = tile * (n + 1) + y % side * side + x % side
    ends = np.full((len(kept.lines), 1), n, np.int64)
    return np.concatenate([np.arange(n), np.hstack([at, ends]).reshape(-1)])
