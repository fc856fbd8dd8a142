"""The tower of LLaVA (arXiv 2310.03744) and LLaVA-NeXT: CLIP (arXiv 2103.00020) or SigLIP (arXiv
2303.15343) over squares without the last layers, and a projector of one or two matrices. LLaVA pads
images to squares; LLaVA-NeXT and Granite Vision 3 cut them into tiles (`anyres.py`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from weft import graph as G
from weft.graph.tensor import Tensor
from weft.llm.models import common
from weft.llm.vision import anyres, blocks
from weft.llm.vision.config import Family, Tile, TowerConfig, patches_of
from weft.llm.vision.images import Pixels, resized
from weft.llm.weights import Row, Weights, maybe, need

MOST_SIDE = 8192
"""Maximum number of pixels of a side of an image before it is padded."""


def rows(c: TowerConfig) -> Iterator[Row]:
    """The tensors of a file."""
    yield from blocks.patch_rows(c)
    yield maybe("v.class_embd", c.n_embd)  # SigLIP has none
    yield need("v.position_embd.weight", c.n_embd, c.side * c.side + _n_class(c))
    for end in ("weight", "bias"):
        yield maybe(f"v.pre_ln.{end}", c.n_embd)
    for il in range(c.n_layer):
        yield from blocks.block_rows(c, il)
    wide = c.n_embd * max(len(c.layers), 1)
    for name, n_in in (("mm.0", wide), ("mm.2", c.n_out)):
        yield (need if name == "mm.0" else maybe)(f"{name}.weight", n_in, c.n_out)
        yield maybe(f"{name}.bias", c.n_out)
    if c.pinpoints:
        yield need(_NEWLINE, c.n_out, unless=_OLD_NEWLINE)
        yield maybe(_OLD_NEWLINE, c.n_out)


_NEWLINE, _OLD_NEWLINE = "v.image_newline", "model.image_newline"


def _n_class(c: TowerConfig) -> int:
    """Number of rows in front of the patches: 1 for CLIP."""
    return min(c.n_class, 1)


def forward(c: TowerConfig, w: Weights, inputs: Mapping[str, Tensor]) -> Tensor:
    x = blocks.embed_patches(c, w, inputs["patches"])
    n, first = c.side * c.side, _n_class(c)
    if first:
        x = G.concat(G.reshape(w["v.class_embd"], c.n_embd, 1), x, 1)
    x = G.add(x, w["v.position_embd.weight"])
    if "v.pre_ln.weight" in w:
        x = common.layer_norm(w, "v.pre_ln", x, c.eps)
    # the reference's old converter knows no name for SigLIP's GELU and writes CLIP's
    own = replace(c, act="gelu") if not first and c.act == "gelu_quick" else c
    seen: dict[int, Tensor] = {}
    layers = c.layers or (c.n_layer,)
    for il in range(max(layers) + 1):
        seen[il] = x
        if il < max(layers):
            x = blocks.encode(own, w, x, il + 1, first=il)
    x = seen[layers[0]]
    for il in layers[1:]:
        x = G.concat(x, seen[il], 0)
    # the row of the class stands first and is left out
    patches = G.view_2d(x, x.ne[0], n, x.nb[1], first * x.nb[1])
    x = common.linear(w, "mm.0", G.cont(patches))
    x = common.linear(w, "mm.2", G.gelu_erf(x)) if "mm.2.weight" in w else x
    if not c.pinpoints:
        return x
    end = w[_NEWLINE if _NEWLINE in w else _OLD_NEWLINE]
    return G.concat(x, G.reshape(end, c.n_out, 1), 1)


def sized(c: TowerConfig, pixels: Pixels) -> Pixels:
    """The image in the middle of a square of the mean colour, in the tower's size."""
    height, width = pixels.shape[:2]
    if max(height, width) > MOST_SIDE:  # a square of a long line would not fit into memory
        shrink = MOST_SIDE / max(height, width)
        height, width = (max(int(side * shrink), 1) for side in (height, width))
        pixels = resized(pixels, width, height, "bicubic")
    side = max(height, width)
    square = np.empty((side, side, 3), np.uint8)
    square[:] = [int(min(max(mean, 0.0), 1.0) * 255) for mean in c.mean]
    y, x = (side - height) // 2, (side - width) // 2
    square[y : y + height, x : x + width] = pixels
    return resized(square, c.image_size, c.image_size, "bicubic")


def tiles(c: TowerConfig, pixels: Pixels) -> list[Tile]:
    """The tiles of an image; without a list of shapes it is seen at once."""
    return anyres.tiles(c, pixels) if c.pinpoints else [Tile(sized(c, pixels))]


def arranged(c: TowerConfig, height: int, width: int) -> NDArray[np.int64]:
    if c.pinpoints:
        return anyres.arranged(c, c.side, height, width)
    return np.arange(c.side * c.side)


def n_rows(c: TowerConfig, height: int, width: int) -> int:
    """Rows of an image of this size."""
    return anyres.n_rows(c, c.side, height, width) if c.pinpoints else c.side * c.side


LLAVA = Family(
    rows=rows, inputs=blocks.square_inputs, forward=forward, sized=lambda c, pixels: pixels,
    values=lambda c, pixels: {"patches": patches_of(c, pixels)}, n_rows=n_rows, tiles=tiles,
    arranged=arranged,
)  # fmt: skip
