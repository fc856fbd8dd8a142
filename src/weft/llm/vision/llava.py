"""The tower of LLaVA (arXiv 2310.03744): CLIP (arXiv 2103.00020) over squares without its last
layers, and a projector of one or two matrices. Images are padded to squares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from weft import graph as G
from weft.errors import FormatError
from weft.graph.tensor import Tensor
from weft.llm.models import common
from weft.llm.vision import blocks
from weft.llm.vision.config import Family, TowerConfig, patches_of
from weft.llm.vision.images import Pixels, resized
from weft.llm.weights import Row, Weights, maybe, need

MOST_SIDE = 8192
"""Maximum number of pixels of a side of an image before it is padded."""


def rows(c: TowerConfig) -> Iterator[Row]:
    """The tensors of a file. Raises FormatError for a tower that cuts images into tiles."""
    if c.tiles:
        raise FormatError(
            "the tower cuts images into tiles (LLaVA 1.6), which is not known; use the mmproj file "
            "of a model like LLaVA 1.5"
        )
    yield from blocks.patch_rows(c)
    yield need("v.class_embd", c.n_embd)
    yield need("v.position_embd.weight", c.n_embd, c.side * c.side + 1)
    for end in ("weight", "bias"):
        yield maybe(f"v.pre_ln.{end}", c.n_embd)
    for il in range(c.n_layer):
        yield from blocks.block_rows(c, il)
    wide = c.n_embd * max(len(c.layers), 1)
    for name, n_in in (("mm.0", wide), ("mm.2", c.n_out)):
        yield (need if name == "mm.0" else maybe)(f"{name}.weight", n_in, c.n_out)
        yield maybe(f"{name}.bias", c.n_out)


def forward(c: TowerConfig, w: Weights, inputs: Mapping[str, Tensor]) -> Tensor:
    x = blocks.embed_patches(c, w, inputs["patches"])
    n = c.side * c.side
    x = G.concat(G.reshape(w["v.class_embd"], c.n_embd, 1), x, 1)
    x = G.add(x, w["v.position_embd.weight"])
    if "v.pre_ln.weight" in w:
        x = common.layer_norm(w, "v.pre_ln", x, c.eps)
    seen: Tensor | None = None
    layers = c.layers or (c.n_layer,)
    for il in range(max(layers) + 1):
        if il in layers:
            seen = x if seen is None else G.concat(seen, x, 0)
        if il < max(layers):
            x = blocks.encode(c, w, x, il + 1, first=il)
    assert seen is not None  # one of the layers was met
    # the row of the class stands first and is left out
    patches = G.view_2d(seen, seen.ne[0], n, seen.nb[1], seen.nb[1])
    x = common.linear(w, "mm.0", G.cont(patches))
    return common.linear(w, "mm.2", G.gelu_erf(x)) if "mm.2.weight" in w else x


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


LLAVA = Family(
    rows=rows, inputs=blocks.square_inputs, forward=forward, sized=sized,
    values=lambda c, pixels: {"patches": patches_of(c, pixels)},
    n_rows=lambda c, height, width: c.side * c.side,
)  # fmt: skip
