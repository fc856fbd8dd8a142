"""The tower of Nemotron's models that see: C-RADIO (arXiv 2412.07679) and squares of patches that
become one row. Nemotron Nano 2 VL takes an image in tiles and the whole, as InternVL; the models
after it take an image in its own proportions, with a part of the learned positions.

Patches of a square follow one another, so that merging them is a reshape.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft import graph as G
from weft.errors import ContextError
from weft.graph.size import exact_div
from weft.graph.tensor import Tensor
from weft.llm.models import common
from weft.llm.vision import blocks, internvl, learned, qwen
from weft.llm.vision.config import Family, Tile, TowerConfig, patches_of
from weft.llm.vision.images import Pixels, pillow, require_resized
from weft.llm.weights import Row, Weights, maybe, need

LEAST, MOST = 1024, 13312
"""Patches of an image in its own proportions, if the file does not say."""
WHOLE = "v.position_embd_whole.weight"
"""The learned positions of the largest image; files of tiles have the positions of a tile only."""


def rows(c: TowerConfig) -> Iterator[Row]:
    blocks.require_squares(c)
    yield from blocks.patch_rows(c, bias=False)
    yield need("v.class_embd", c.n_embd, c.n_class)
    yield need("v.position_embd.weight", c.n_embd, c.n_learned)
    if c.n_whole:
        yield need(WHOLE, c.n_embd, c.n_whole)
    for il in range(c.n_layer):
        yield from blocks.block_rows(c, il, fused=True)
        for name in ("ls1", "ls2"):
            yield maybe(f"v.blk.{il}.{name}.weight", c.n_embd)
    for end in ("weight", "bias"):
        yield maybe(f"v.post_ln.{end}", c.n_embd)
    wide = c.n_embd * c.merge**2
    yield need("mm.model.mlp.0.weight", wide)
    yield need("mm.model.mlp.1.weight", wide, c.n_projector)
    yield need("mm.model.mlp.3.weight", c.n_projector, c.n_out)


def limits(c: TowerConfig) -> tuple[int, int]:
    """The least and the most patches of an image."""
    if not c.n_whole:
        return c.side**2, c.side**2
    least, most = (n // c.patch_size**2 for n in (c.least_pixels, c.most_pixels))
    return least or LEAST, most or MOST


def most_squares(c: TowerConfig) -> int:
    """Maximum number of rows of an image."""
    return 2 * max(limits(c)) // c.merge**2 + 1


def inputs(c: TowerConfig) -> dict[str, Tensor]:
    """Patches and their learned positions."""
    n = c.merge**2 * G.Sym("n_squares", 1, most_squares(c)).size
    return {"patches": G.input("patches", (n, c.patch_values), "f32"), **learned.inputs(n)}


def forward(c: TowerConfig, w: Weights, inputs: Mapping[str, Tensor]) -> Tensor:
    n, table = inputs["patches"].ne[1], WHOLE if c.n_whole else "v.position_embd.weight"
    x = learned.added(w, blocks.embed_patches(c, w, inputs["patches"]), inputs, table)
    x = G.concat(w["v.class_embd"], x, 1)
    x = blocks.encode(replace(c, act="gelu_erf"), w, x, c.n_layer)
    x = G.cont(G.view_2d(x, c.n_embd, n, x.nb[1], c.n_class * x.nb[1]))
    if "v.post_ln.weight" in w:
        x = common.layer_norm(w, "v.post_ln", x, c.eps)
    n_rows = exact_div(n, c.merge**2)
    assert n_rows is not None  # the inputs have whole squares
    x = common.norm(w, "mm.model.mlp.0", G.reshape(x, c.n_embd * c.merge**2, n_rows), 1e-5)
    x = G.sqr(G.relu(common.linear(w, "mm.model.mlp.1", x)))
    return common.linear(w, "mm.model.mlp.3", x)


def values(c: TowerConfig, pixels: Pixels) -> dict[str, NDArray[Any]]:
    h, w = (side // (c.patch_size * c.merge) for side in pixels.shape[:2])
    side = math.isqrt(c.n_whole or c.n_learned)
    # positions of a square as large as the longer side, of which an image takes the first
    taps = learned.by_centres(max(h, w) * c.merge, side)
    places = qwen.places(h, w, c.merge)
    return {
        "patches": patches_of(c, pixels, c.merge),
        **learned.values(*places, taps, taps, side),
    }


def size_of(c: TowerConfig, height: int, width: int) -> tuple[int, int]:
    """Height and width of whole squares, near the proportions of an image and within the limits.
    Raises ContextError for an image so long that a line of squares has too many rows."""
    (least, most), m = limits(c), c.merge
    h, w = (round(side / c.patch_size + 0.5) for side in (height, width))
    shrink = min(math.sqrt(most / (h * w)), 1.0)
    h, w = (max(math.floor(side * shrink), 1) for side in (h, w))
    if least < most and h * w < least:
        grow = math.sqrt(least / (h * w))
        h, w = math.ceil(h * grow), math.ceil(w * grow)
    if h % m:
        up = h + m - h % m
        h = up if up * w <= most else max(h - h % m, m)
    if w % m:
        up = w + m - w % m
        w = up if h * up <= most else max(w - w % m, m)
    if h * w > most_squares(c) * m**2:
        raise ContextError(
            f"an image is {width} x {height} pixels; one side is too many times the other: cut it"
        )
    return h * c.patch_size, w * c.patch_size


def sized(c: TowerConfig, pixels: Pixels) -> Any:
    """The image in a size that the tower takes; in its own proportions as floats f32 [height,
    width, 3], which may lie beyond 0 and 255."""
    if not c.n_whole:
        return internvl.INTERNVL.sized(c, pixels)
    height, width = size_of(c, *pixels.shape[:2])
    if pixels.shape[:2] == (height, width):
        return pixels
    require_resized(width, height)
    module = pillow()
    colours = (module.fromarray(pixels[..., i].astype(np.float32)) for i in range(3))
    size = width, height
    how = module.Resampling.BICUBIC
    return np.stack([np.asarray(part.resize(size, how)) for part in colours], -1)


def tiles(c: TowerConfig, pixels: Pixels) -> list[Tile]:
    return [Tile(pixels)] if c.n_whole else internvl.tiles(c, pixels)


def n_rows(c: TowerConfig, height: int, width: int) -> int:
    """Rows of an image of this size."""
    if not c.n_whole:
        return internvl.n_rows(c, height, width)
    h, w = size_of(c, height, width)
    return h * w // (c.patch_size * c.merge) ** 2


NEMOTRON = Family(
    rows=rows, inputs=inputs, forward=forward, sized=sized, values=values, n_rows=n_rows,
    tiles=tiles, merge=2, before="<img>", after="</img>",
)  # fmt: skip
