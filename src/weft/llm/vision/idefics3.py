"""The tower of Idefics3 (arXiv 2408.12637) and SmolVLM (arXiv 2504.05299): SigLIP over tiles of an
image and over the whole, and squares of patches that become one row. Names of lines and places
stand in front of tiles.

Patches of a square follow one another, so that merging them is a reshape.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft import graph as G
from weft.graph.tensor import Tensor
from weft.llm.models import common
from weft.llm.vision import blocks, qwen
from weft.llm.vision.config import Family, Tile, TowerConfig, patches_of
from weft.llm.vision.images import Pixels, resized
from weft.llm.weights import Row, Weights, need

MOST_SIDE = 4096
"""Maximum number of pixels of a side of an image before it is cut."""
TILES = 4
"""Tiles of the longer side, if the file says nothing else."""
_AROUND = "<fake_token_around_image>"


def rows(c: TowerConfig) -> Iterator[Row]:
    yield from blocks.patch_rows(c)
    yield need("v.position_embd.weight", c.n_embd, c.side * c.side)
    for il in range(c.n_layer):
        yield from blocks.block_rows(c, il)
    yield need("v.post_ln.weight", c.n_embd)
    yield need("v.post_ln.bias", c.n_embd)
    yield need("mm.model.fc.weight", c.n_embd * c.merge**2, c.n_out)


def inputs(c: TowerConfig) -> dict[str, Tensor]:
    """Patches of a square image, and the number of each, line by line."""
    n = c.side * c.side
    return {
        "patches": G.input("patches", (n, c.patch_values), "f32"),
        "places": G.input("places", (n,), "i32"),
    }


def merged_rows(c: TowerConfig, x: Tensor) -> Tensor:
    """Rows [n_embd m m, n / m m] of rows [n_embd, n] of patches."""
    return G.reshape(x, c.n_embd * c.merge**2, (c.side // c.merge) ** 2)


def forward(c: TowerConfig, w: Weights, inputs: Mapping[str, Tensor]) -> Tensor:
    x = blocks.embed_patches(c, w, inputs["patches"])
    x = G.add(x, G.get_rows(w["v.position_embd.weight"], inputs["places"]))
    x = common.layer_norm(w, "v.post_ln", blocks.encode(c, w, x, c.n_layer), c.eps)
    return G.mul_mat(w["mm.model.fc.weight"], merged_rows(c, x))


def values(c: TowerConfig, pixels: Pixels) -> dict[str, NDArray[Any]]:
    n = c.side // c.merge
    y, x = qwen.places(n, n, c.merge)
    places = (y * c.side + x).astype(np.int32)
    return {"patches": patches_of(c, pixels, c.merge), "places": places}


def sizes_of(c: TowerConfig, height: int, width: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Height and width of an image that is as long as the file says, and of the next larger one of
    whole tiles."""
    longest, ratio = c.whole_size or TILES * c.image_size, width / height
    if width >= height:
        w, h = longest, int(longest / ratio)
        h += h % 2
    else:
        h, w = longest, int(longest * ratio)
        w += w % 2
    h, w = max(h, 1), max(w, 1)
    if max(h, w) > MOST_SIDE:
        ratio = w / h
        short = int(MOST_SIDE / ratio if w >= h else MOST_SIDE * ratio) or 1
        h, w = (short, MOST_SIDE) if w >= h else (MOST_SIDE, short)
    side, ratio = c.image_size, w / h
    if w >= h:
        wide = math.ceil(w / side) * side
        return (h, w), (math.ceil(int(wide / ratio) / side) * side, wide)
    high = math.ceil(h / side) * side
    return (h, w), (high, math.ceil(int(high * ratio) / side) * side)


def tiles(c: TowerConfig, pixels: Pixels) -> list[Tile]:
    """The tiles of an image, line by line, and the whole."""
    (h, w), (height, width) = sizes_of(c, *pixels.shape[:2])
    pixels = resized(pixels, w, h, "lanczos")
    pixels = resized(pixels, width, height, "lanczos")
    side = c.image_size
    whole = resized(pixels, side, side, "lanczos")
    if height == width == side:
        return [Tile(whole, f"{_AROUND}<global-img>", _AROUND)]
    n_lines, n_places = height // side, width // side
    out = []
    for y in range(n_lines):
        for x in range(n_places):
            tile = pixels[y * side : (y + 1) * side, x * side : (x + 1) * side]
            end = "\n" if x == n_places - 1 else ""
            out.append(Tile(tile, f"{_AROUND}<row_{y + 1}_col_{x + 1}>", end))
    return [*out, Tile(whole, f"\n{_AROUND}<global-img>", _AROUND)]


def n_rows(c: TowerConfig, height: int, width: int) -> int:
    """Rows of an image of this size, without the names of tiles."""
    side = c.image_size
    _, (h, w) = sizes_of(c, height, width)
    n = (h // side) * (w // side)
    return (n + (n > 1)) * (c.side // c.merge) ** 2


IDEFICS3 = Family(
    rows=rows, inputs=inputs, forward=forward,
    sized=lambda c, pixels: resized(pixels, c.image_size, c.image_size, "lanczos"), values=values,
    n_rows=n_rows, tiles=tiles, merge=2,
)  # fmt: skip
