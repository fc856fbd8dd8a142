"""The tower of Llama 4: a transformer over tiles of an image and over the whole, with learned
positions beside rotary ones, and squares of patches that become one row. Tokens stand between
tiles, and behind lines of tiles.

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
from weft.graph.tensor import Tensor
from weft.llm.models import common
from weft.llm.vision import blocks, idefics3, qwen
from weft.llm.vision.config import Family, Tile, TowerConfig, patches_of
from weft.llm.vision.images import Pixels, require_resized, resized
from weft.llm.weights import Row, Weights, maybe, need

THETA = 10000.0
OTHER = ".attn_post_norm."
"""The name of the second norm, `ln2`, in files of the reference's newer converters."""
TILES = 16
"""Maximum number of tiles of an image, if the file does not say."""


def rows(c: TowerConfig) -> Iterator[Row]:
    blocks.require_pairs(c)
    blocks.require_squares(c)
    yield need("v.patch_embd.weight", c.patch_values, c.n_embd)
    yield need("v.class_embd", c.n_embd)
    yield need("v.position_embd.weight", c.n_embd, c.side**2 + 1)
    for il in range(c.n_layer):
        for row in blocks.block_rows(c, il):
            other = row.name.replace(".ln2.", OTHER)
            yield replace(row, unless=other) if other != row.name else row
            if other != row.name:
                yield maybe(other, *row.ne)
    for name in ("v.pre_ln", "v.post_ln"):
        yield need(f"{name}.weight", c.n_embd)
        yield need(f"{name}.bias", c.n_embd)
    yield need("mm.model.mlp.1.weight", c.n_embd * c.merge**2, c.n_projector)
    yield need("mm.model.mlp.2.weight", c.n_projector, c.n_fc)
    yield need("mm.model.fc.weight", c.n_fc, c.n_out)


def inputs(c: TowerConfig) -> dict[str, Tensor]:
    """Patches, and for each and the row of the class behind them its number and its line and place,
    which count from 1."""
    n = c.side * c.side
    out = {"patches": G.input("patches", (n, c.patch_values), "f32")}
    for name in ("order", "lines", "places"):
        out[name] = G.input(name, (n + 1,), "i32")
    return out


def forward(c: TowerConfig, w: Weights, inputs: Mapping[str, Tensor]) -> Tensor:
    w = Weights({name.replace(OTHER, ".ln2."): t for name, t in w.items()})
    x = blocks.embed_patches(c, w, inputs["patches"])
    x = G.concat(x, G.reshape(w["v.class_embd"], c.n_embd, 1), 1)
    x = G.add(x, G.get_rows(w["v.position_embd.weight"], inputs["order"]))
    x = common.layer_norm(w, "v.pre_ln", x, c.eps)

    def rotated(x: Tensor) -> Tensor:
        return blocks.rotated_by_sides(c, x, inputs["places"], inputs["lines"], THETA)

    x = blocks.encode(replace(c, act="gelu_erf"), w, x, c.n_layer, rotated=rotated)
    x = common.layer_norm(w, "v.post_ln", x, c.eps)
    x = G.cont(G.view_2d(x, c.n_embd, c.side**2, x.nb[1]))  # without the row of the class
    x = idefics3.merged_rows(c, x)
    for i in (1, 2):
        x = G.gelu_erf(G.mul_mat(w[f"mm.model.mlp.{i}.weight"], x))
    return G.mul_mat(w["mm.model.fc.weight"], x)


def values(c: TowerConfig, pixels: Pixels) -> dict[str, NDArray[Any]]:
    n = c.side // c.merge
    y, x = qwen.places(n, n, c.merge)
    numbers = {"order": (y * c.side + x, c.side**2), "lines": (y + 1, 0), "places": (x + 1, 0)}
    return {
        "patches": patches_of(c, pixels, c.merge),
        **{name: np.append(at, last).astype(np.int32) for name, (at, last) in numbers.items()},
    }


def grid(c: TowerConfig, height: int, width: int) -> tuple[int, int]:
    """Lines and places of the tiles of an image: where it grows least, or else shrinks least; of
    equal ones the fewest tiles."""
    most, side = c.most_tiles or TILES, c.image_size
    grids = [(n // w, w) for n in range(1, most + 1) for w in range(1, n + 1) if n % w == 0]
    scale = [
        min(np.float32(h * side) / np.float32(height), np.float32(w * side) / np.float32(width))
        for h, w in grids
    ]
    best = min((s for s in scale if s >= 1), default=max(scale))
    return min((g for g, s in zip(grids, scale, strict=True) if s == best), key=math.prod)


def fitted(c: TowerConfig, height: int, width: int) -> tuple[int, int]:
    """Height and width of an image in front of its tiles, which are black beyond it; it grows to
    one tile at most."""
    high, wide = (n * c.image_size for n in grid(c, height, width))
    high, wide = min(max(height, c.image_size), high), min(max(width, c.image_size), wide)
    if wide / width < high / height:
        return max(min(math.floor(height * (wide / width)), high), 1), wide
    return high, max(min(math.floor(width * (high / height)), wide), 1)


def tiles(c: TowerConfig, pixels: Pixels) -> list[Tile]:
    """The tiles of an image, line by line, and the whole if there are several."""
    (n_lines, n_places), side = grid(c, *pixels.shape[:2]), c.image_size
    h, w = fitted(c, *pixels.shape[:2])
    require_resized(n_places * side, n_lines * side)
    filled = np.zeros((n_lines * side, n_places * side, 3), np.uint8)
    filled[:h, :w] = resized(pixels, w, h, "bilinear")
    if n_lines * n_places == 1:
        return [Tile(filled, "<|image|>")]
    out = []
    for y in range(n_lines):
        for x in range(n_places):
            part = np.ascontiguousarray(filled[y * side :, x * side :][:side, :side])
            end = "<|tile_x_separator|>" if x < n_places - 1 else "<|tile_y_separator|>"
            out.append(Tile(part, after=end))
    return [*out, Tile(resized(pixels, side, side, "bilinear"), "<|image|>")]


def n_rows(c: TowerConfig, height: int, width: int) -> int:
    """Rows of an image of this size, without the tokens between tiles."""
    n = math.prod(grid(c, height, width))
    return (n + (n > 1)) * (c.side // c.merge) ** 2


LLAMA4 = Family(
    rows=rows, inputs=inputs, forward=forward, sized=lambda c, pixels: pixels, values=values,
    n_rows=n_rows, tiles=tiles, merge=2, before="<|image_start|>", after="<|image_end|>",
)  # fmt: skip
