"""The towers of Kimi-VL (arXiv 2504.07491) and Kimi K2.5: a transformer over images in their own
proportions, with learned positions that are interpolated by a cubic kernel beside rotary ones;
squares of patches are merged behind the last layer. An image is filled up to whole squares.

Patches of a square follow one another, so that merging them is a reshape.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft import graph as G
from weft.graph.size import exact_div
from weft.graph.tensor import Tensor
from weft.llm.models import common
from weft.llm.vision import blocks, learned, qwen
from weft.llm.vision.config import Family, TowerConfig, patches_of, rows_by
from weft.llm.vision.images import Pixels, require_resized, resized
from weft.llm.weights import Row, Weights, maybe, need

THETA = 10000.0
EPS = 1e-5
"""The epsilon of the norms in layers; a file has the epsilon in front of the projector."""
MOST, MOST_FUSED = 4096, 16384
"""Maximum number of patches of an image in Kimi-VL and in Kimi K2.5, if the file does not say."""
MOST_SIDE = 512
"""Maximum number of patches of a side."""


def rows(c: TowerConfig, *, fused: bool) -> Iterator[Row]:
    blocks.require_pairs(c)
    yield from blocks.patch_rows(c)
    n = c.n_learned
    yield need("v.position_embd.weight", c.n_embd, *((n, n) if fused else (n,)))
    for il in range(c.n_layer):
        yield from blocks.block_rows(c, il, fused=fused)
    wide = c.n_embd * c.merge**2
    for name, n in (("v.post_ln", c.n_embd), ("mm.input_norm", c.n_embd)):
        yield need(f"{name}.weight", n)
        yield need(f"{name}.bias", n)
    for name, n in (("mm.1", wide), ("mm.2", c.n_out)):
        yield need(f"{name}.weight", wide, n)
        yield maybe(f"{name}.bias", n)


def inputs(c: TowerConfig, *, fused: bool) -> dict[str, Tensor]:
    """Patches, the line and the place of each, and its learned positions."""
    unit = c.merge**2
    # a line and a place of patches at the ends are filled up
    most = (_most(c, fused) + 3 * (unit + 1) * MOST_SIDE) // unit
    n = unit * G.Sym("n_squares", 1, most).size
    return {
        "patches": G.input("patches", (n, c.patch_values), "f32"),
        "lines": G.input("lines", (n,), "i32"),
        "places": G.input("places", (n,), "i32"),
        **learned.inputs(n, 4),
    }


def forward(c: TowerConfig, w: Weights, inputs: Mapping[str, Tensor], *, fused: bool) -> Tensor:
    x = learned.added(w, blocks.embed_patches(c, w, inputs["patches"]), inputs)

    def rotated(x: Tensor) -> Tensor:
        """Places rotate the even pairs of a head, lines the odd ones; the rows of fused matrices
        have the even pairs in front."""
        if not fused:
            x = even_first(c, x)
        return blocks.rotated_by_sides(c, x, inputs["places"], inputs["lines"], THETA)

    x = blocks.encode(replace(c, eps=EPS), w, x, c.n_layer, rotated=rotated)
    x = common.layer_norm(w, "v.post_ln", x, EPS)
    x = common.layer_norm(w, "mm.input_norm", x, c.eps)
    n_rows = exact_div(x.ne[1], c.merge**2)
    assert n_rows is not None  # the inputs have whole squares
    x = G.reshape(x, c.n_embd * c.merge**2, n_rows)
    return common.linear(w, "mm.2", G.gelu_erf(common.linear(w, "mm.1", x)))


def even_first(c: TowerConfig, x: Tensor) -> Tensor:
    """Heads x [d, n_head, n] with their even pairs in front of their odd ones. Scores of queries
    and keys stay the same."""
    d, n = c.n_embd // c.n_head, x.ne[2]
    x = G.permute(G.reshape(x, 2, 2, d // 4, c.n_head * n), 0, 2, 1, 3)
    return G.reshape(G.cont(x), d, c.n_head, n)


def values(c: TowerConfig, pixels: Pixels, *, fused: bool) -> dict[str, NDArray[Any]]:
    side = c.n_learned if fused else math.isqrt(c.n_learned)
    h, w = (side // (c.patch_size * c.merge) for side in pixels.shape[:2])
    y, x = qwen.places(h, w, c.merge)
    lines, places = (learned.by_cubes(n * c.merge, side) for n in (h, w))
    return {
        "patches": patches_of(c, pixels, c.merge),
        "lines": y.astype(np.int32),
        "places": x.astype(np.int32),
        **learned.values(y, x, lines, places, side),
    }


def _most(c: TowerConfig, fused: bool) -> int:
    """Maximum number of patches of an image."""
    return c.most_pixels // c.patch_size**2 or (MOST_FUSED if fused else MOST)


def shrunk(c: TowerConfig, height: int, width: int, *, fused: bool) -> tuple[int, int]:
    """Height and width of an image within the limits, before it is filled up."""
    p = c.patch_size
    n = max(height // p, 1) * max(width // p, 1)
    most = MOST_SIDE * p
    scale = min(1.0, math.sqrt(_most(c, fused) / n), most / height, most / width)
    h, w = (min(max(int(side * scale), 1), most) for side in (height, width))
    return h, w


def size_of(c: TowerConfig, height: int, width: int, *, fused: bool) -> tuple[int, int]:
    """Height and width of the whole squares that an image is filled up to."""
    unit = c.patch_size * c.merge
    h, w = (-(-side // unit) * unit for side in shrunk(c, height, width, fused=fused))
    return h, w


def sized(c: TowerConfig, pixels: Pixels, *, fused: bool) -> Pixels:
    """The image within the limits, and black behind its ends."""
    h, w = shrunk(c, *pixels.shape[:2], fused=fused)
    height, width = size_of(c, *pixels.shape[:2], fused=fused)
    require_resized(width, height)
    out = np.zeros((height, width, 3), np.uint8)
    out[:h, :w] = resized(pixels, w, h, "bicubic")
    return out


def _family(before: str, *, fused: bool) -> Family:
    return Family(
        rows=partial(rows, fused=fused), inputs=partial(inputs, fused=fused),
        forward=partial(forward, fused=fused), sized=partial(sized, fused=fused),
        values=partial(values, fused=fused),
        n_rows=rows_by(partial(size_of, fused=fused)), merge=2, before=before,
        after="<|media_end|>",
    )  # fmt: skip


KIMIVL = _family("<|media_start|>image<|media_content|>", fused=False)
KIMIK25 = _family("<|media_begin|>image<|media_content|>", fused=True)
