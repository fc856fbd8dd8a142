"""The tower of LFM2-VL (arXiv 2511.23404): SigLIP 2 (arXiv 2502.14786) over images in their own
proportions, whose learned positions are interpolated; large images come in tiles, and the whole
behind them.

Patches of a square follow one another, so that merging them is a reshape.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft import graph as G
from weft.graph.size import exact_div
from weft.graph.tensor import Tensor
from weft.llm.models import common
from weft.llm.vision import blocks, internvl, qwen
from weft.llm.vision.config import Family, Tile, TowerConfig, patches_of
from weft.llm.vision.images import Pixels, resized
from weft.llm.weights import Row, Weights, maybe, need

LEAST, MOST = 64, 256
"""Rows of an image that is not cut."""
TILE = 512
"""Pixels of each side of a tile."""
TILES = (2, 10)
"""Minimum and maximum number of tiles of a large image."""
TOLERANCE = 2
"""Factor by which an image may exceed `MOST` rows without being cut."""


def rows(c: TowerConfig) -> Iterator[Row]:
    yield from blocks.patch_rows(c)
    yield need("v.position_embd.weight", c.n_embd, c.side * c.side)
    for il in range(c.n_layer):
        yield from blocks.block_rows(c, il)
    wide = c.n_embd * c.merge**2
    for end in ("weight", "bias"):
        yield need(f"v.post_ln.{end}", c.n_embd)
        yield maybe(f"mm.input_norm.{end}", wide)
    for name, n_in, n_out in (("mm.1", wide, c.n_projector), ("mm.2", c.n_projector, c.n_out)):
        yield need(f"{name}.weight", n_in, n_out)
        yield maybe(f"{name}.bias", n_out)


def unit(c: TowerConfig) -> int:
    """Pixels of each side of a row's square."""
    return c.patch_size * c.merge


def inputs(c: TowerConfig) -> dict[str, Tensor]:
    """Patches, and for each the shares of the learned positions."""
    most = max(MOST, (TILE // unit(c)) ** 2)
    n = c.merge**2 * G.Sym("n_rows", 1, most).size
    return {
        "patches": G.input("patches", (n, c.patch_values), "f32"),
        "shares": G.input("shares", (n, c.side * c.side), "f32"),
    }


def forward(c: TowerConfig, w: Weights, inputs: Mapping[str, Tensor]) -> Tensor:
    learned = G.cont(G.transpose(G.cast(w["v.position_embd.weight"], "f32")))
    x = blocks.embed_patches(c, w, inputs["patches"])
    x = G.add(x, G.mul_mat(learned, inputs["shares"]))
    x = common.layer_norm(w, "v.post_ln", blocks.encode(c, w, x, c.n_layer), c.eps)
    n_rows = exact_div(x.ne[1], c.merge**2)
    assert n_rows is not None  # the inputs have whole squares
    x = G.reshape(x, c.n_embd * c.merge**2, n_rows)
    if "mm.input_norm.weight" in w:
        x = common.layer_norm(w, "mm.input_norm", x, 1e-5)
    return common.linear(w, "mm.2", G.gelu_erf(common.linear(w, "mm.1", x)))


def shares_of(n: int, side: int) -> NDArray[np.float32]:
    """How much each of `side` learned positions counts at each of `n` places, f32 [n, side]:
    linear, and over all that a place covers if there are fewer places than positions."""
    scale = side / n
    centre = (np.arange(n)[:, None] + 0.5) * scale
    apart = np.abs(np.arange(side) + 0.5 - centre) / max(scale, 1.0)
    shares = np.maximum(1 - apart, 0)
    return np.asarray(shares / shares.sum(axis=1, keepdims=True), np.float32)


def values(c: TowerConfig, pixels: Pixels) -> dict[str, NDArray[Any]]:
    h, w = (side // unit(c) for side in pixels.shape[:2])
    y, x = qwen.places(h, w, c.merge)
    lines, columns = shares_of(h * c.merge, c.side), shares_of(w * c.merge, c.side)
    shares = lines[y][:, :, None] * columns[x][:, None, :]
    return {
        "patches": patches_of(c, pixels, c.merge),
        "shares": np.ascontiguousarray(shares.reshape(len(shares), -1)),
    }


def size_of(c: TowerConfig, height: int, width: int) -> tuple[int, int]:
    """Height and width of the whole of an image."""
    square = unit(c) ** 2
    return qwen.size_of(
        replace(c, least_pixels=LEAST * square, most_pixels=MOST * square), height, width
    )


def grid(c: TowerConfig, height: int, width: int) -> tuple[int, int]:
    """Lines and places of the tiles of an image; (1, 1): it is not cut."""
    h, w = (max(round(side / unit(c)) * unit(c), c.patch_size) for side in (height, width))
    if h * w <= MOST * unit(c) ** 2 * TOLERANCE:
        return 1, 1
    tiled = replace(c, image_size=TILE, least_tiles=TILES[0], most_tiles=TILES[1])
    return internvl.grid(tiled, height, width)


def tiles(c: TowerConfig, pixels: Pixels) -> list[Tile]:
    """The tiles of an image, line by line, and the whole."""
    height, width = size_of(c, *pixels.shape[:2])
    whole = resized(pixels, width, height, "bilinear")
    n_lines, n_places = grid(c, *pixels.shape[:2])
    if n_lines * n_places == 1:
        return [Tile(whole)]
    large = resized(pixels, n_places * TILE, n_lines * TILE, "bilinear")
    out = [
        Tile(
            large[y * TILE : (y + 1) * TILE, x * TILE : (x + 1) * TILE],
            f"<|img_row_{y + 1}_col_{x + 1}|>",
        )
        for y in range(n_lines)
        for x in range(n_places)
    ]
    return [*out, Tile(whole, "<|img_thumbnail|>")]


def n_rows(c: TowerConfig, height: int, width: int) -> int:
    """Rows of an image of this size, without the names of tiles."""
    h, w = size_of(c, height, width)
    n_lines, n_places = grid(c, height, width)
    n = n_lines * n_places
    return h * w // unit(c) ** 2 + (n if n > 1 else 0) * (TILE // unit(c)) ** 2


LFM2 = Family(
    rows=rows, inputs=inputs, forward=forward, sized=lambda c, pixels: pixels, values=values,
    n_rows=n_rows, tiles=tiles, merge=2, before="<|image_start|>", after="<|image_end|>",
)  # fmt: skip
