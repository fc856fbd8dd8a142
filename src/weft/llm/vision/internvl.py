"""InternVL's tower (arXiv 2404.16821, 2504.10479): tiles in a grid near the proportions of an
image, and the whole; layers are scaled, and squares of patches become one row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from weft import graph as G
from weft.graph.tensor import Tensor
from weft.llm.models import common
from weft.llm.vision import blocks, idefics3
from weft.llm.vision.config import Family, Tile, TowerConfig
from weft.llm.vision.images import Pixels, resized
from weft.llm.weights import Row, Weights, maybe, need

TILES = (1, 12)
"""Minimum and maximum number of tiles of an image, if the file does not say."""


def rows(c: TowerConfig) -> Iterator[Row]:
    yield from blocks.patch_rows(c)
    yield need("v.class_embd", c.n_embd)
    yield need("v.position_embd.weight", c.n_embd, c.side * c.side + 1)
    for il in range(c.n_layer):
        at = f"v.blk.{il}"
        for row in blocks.block_rows(c, il):
            yield maybe(row.name, *row.ne) if row.name.endswith((".ln1.bias", ".ln2.bias")) else row
        for name in ("ls1", "ls2"):
            yield need(f"{at}.{name}.weight", c.n_embd)
        for name in ("attn_q_norm", "attn_k_norm"):
            yield maybe(f"{at}.{name}.weight", c.n_embd)
    wide = c.n_embd * c.merge**2
    yield need("mm.model.mlp.0.weight", wide)
    yield need("mm.model.mlp.0.bias", wide)
    for number, n_in in ((1, wide), (3, c.n_out)):
        yield need(f"mm.model.mlp.{number}.weight", n_in, c.n_out)
        yield maybe(f"mm.model.mlp.{number}.bias", c.n_out)


def forward(c: TowerConfig, w: Weights, inputs: Mapping[str, Tensor]) -> Tensor:
    learned, n = w["v.position_embd.weight"], c.side * c.side
    x = blocks.embed_patches(c, w, inputs["patches"])
    of_patches = G.view_2d(learned, c.n_embd, n, learned.nb[1], learned.nb[1])
    x = G.add(x, G.get_rows(of_patches, inputs["places"]))
    first = G.add(G.reshape(w["v.class_embd"], c.n_embd), G.view_1d(learned, c.n_embd))
    x = G.concat(G.reshape(first, c.n_embd, 1), x, 1)
    exact = replace(c, act="gelu_erf") if c.act == "gelu" else c
    x = blocks.encode(exact, w, x, c.n_layer)
    x = G.cont(G.view_2d(x, c.n_embd, n, x.nb[1], x.nb[1]))  # without the row of the class
    x = idefics3.merged_rows(c, x)
    x = common.layer_norm(w, "mm.model.mlp.0", x, 1e-5)
    return common.linear(w, "mm.model.mlp.3", G.gelu_erf(common.linear(w, "mm.model.mlp.1", x)))


def grid(c: TowerConfig, height: int, width: int) -> tuple[int, int]:
    """Lines and places of the tiles of an image: the grid nearest to its proportions; of equal
    ones the largest that is not more than twice as large as the image."""
    least, most = c.least_tiles or TILES[0], c.most_tiles or TILES[1]
    sides = range(1, most + 1)
    grids = [(w, h) for w in sides for h in sides if least <= w * h <= most]
    best, apart = (1, 1), float("inf")
    for w, h in sorted(grids, key=lambda g: g[0] * g[1]):
        other = abs(width / height - w / h)
        larger = other == apart and width * height > 0.5 * c.image_size**2 * w * h
        if other < apart or larger:
            best, apart = (w, h), other
    return best[1], best[0]


def tiles(c: TowerConfig, pixels: Pixels) -> list[Tile]:
    """The tiles of an image, line by line, and the whole if there are several."""
    side = c.image_size
    n_lines, n_places = grid(c, *pixels.shape[:2])
    large = resized(pixels, n_places * side, n_lines * side, "bicubic")
    out = [
        Tile(large[y * side : (y + 1) * side, x * side : (x + 1) * side])
        for y in range(n_lines)
        for x in range(n_places)
    ]
    return out if len(out) == 1 else [*out, Tile(resized(pixels, side, side, "bicubic"))]


def n_rows(c: TowerConfig, height: int, width: int) -> int:
    """Rows of an image of this size."""
    n_lines, n_places = grid(c, height, width)
    n = n_lines * n_places
    return (n + (n > 1)) * (c.side // c.merge) ** 2


INTERNVL = Family(
    rows=rows, inputs=idefics3.inputs, forward=forward,
    sized=lambda c, pixels: resized(pixels, c.image_size, c.image_size, "bicubic"),
    values=idefics3.values, n_rows=n_rows, tiles=tiles, merge=2, before="<img>", after="</img>",
)  # fmt: skip
