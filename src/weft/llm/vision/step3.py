"""The tower of Step3-VL (arXiv 2601.09668) and Step 3.7: the perception encoder (arXiv 2504.13181)
over windows of an image and over the whole, with learned positions that are interpolated beside
rotary ones, and two convolutions that each halve the sides.

A convolution is a product of the rows that its window sees, which are gathered by number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft import graph as G
from weft.errors import FormatError
from weft.graph.tensor import Tensor
from weft.llm.models import common
from weft.llm.vision import blocks, learned
from weft.llm.vision.config import Family, Tile, TowerConfig, patches_of
from weft.llm.vision.images import Pixels, resized
from weft.llm.weights import Row, Weights, maybe, need

THETA = 10000.0
TILE = 504
"""Pixels of the side of a window in the size that the tower takes, if the file does not say."""
WHOLE = 3024
"""Maximum number of pixels of a side of an image, if the file does not say."""
MOST_SIDE = 8192
"""Maximum number of pixels of a side of an image that is filled up to a square."""


def rows(c: TowerConfig) -> Iterator[Row]:
    """The tensors of a file. Raises FormatError for sides that two convolutions cannot halve."""
    for side in (c.image_size, _tile(c)):
        if c.merge != 4 or side % (c.patch_size * c.merge):
            raise FormatError(
                f"the tower takes images of {side} pixels each side in patches of {c.patch_size} "
                f"and merges {c.merge} each way; sides must be multiples of 4 patches"
            )
    blocks.require_pairs(c)
    yield from blocks.patch_rows(c)
    yield need("v.position_embd.weight", c.n_embd, c.side * c.side)
    for end in ("weight", "bias"):
        yield need(f"v.pre_ln.{end}", c.n_embd)
    for il in range(c.n_layer):
        yield from blocks.block_rows(c, il, fused=True)
        for name in ("ls1", "ls2"):
            yield maybe(f"v.blk.{il}.{name}.weight", c.n_embd)
    for i in range(2):
        n = c.n_embd << i
        yield need(f"mm.{i}.weight", 3, 3, n, 2 * n)
        yield maybe(f"mm.{i}.bias", 2 * n)
    yield need("mm.model.fc.weight", 4 * c.n_embd, c.n_out)
    yield maybe("mm.model.fc.bias", c.n_out)


def inputs(c: TowerConfig) -> dict[str, Tensor]:
    """Patches, the line and the place of each, its learned positions, and for each of the two
    convolutions the numbers of the rows in its windows, with 0 for those beyond the ends."""
    most = (max(c.image_size, _tile(c)) // (c.patch_size * c.merge)) ** 2
    n = G.Sym("n_rows", 1, most).size
    out = {
        "patches": G.input("patches", (16 * n, c.patch_values), "f32"),
        "lines": G.input("lines", (16 * n,), "i32"),
        "places": G.input("places", (16 * n,), "i32"),
    }
    for i, n_out in enumerate((4 * n, n)):
        out[f"windows_{i}"] = G.input(f"windows_{i}", (9 * n_out,), "i32")
        out[f"inside_{i}"] = G.input(f"inside_{i}", (9 * n_out, 1), "f32")
    return out | learned.inputs(16 * n)


def forward(c: TowerConfig, w: Weights, inputs: Mapping[str, Tensor]) -> Tensor:
    x = learned.added(w, blocks.embed_patches(c, w, inputs["patches"]), inputs)
    x = common.layer_norm(w, "v.pre_ln", x, c.eps)

    def rotated(x: Tensor) -> Tensor:
        return blocks.rotated_by_sides(c, x, inputs["places"], inputs["lines"], THETA)

    x = blocks.encode(c, w, x, c.n_layer, rotated=rotated)
    for i in range(2):
        seen = G.mul(G.get_rows(x, inputs[f"windows_{i}"]), inputs[f"inside_{i}"])
        x = blocks.merged(w[f"mm.{i}.weight"], seen)
        x = G.add(x, w[f"mm.{i}.bias"]) if f"mm.{i}.bias" in w else x
    return common.linear(w, "mm.model.fc", x)


def windows(n: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The rows that windows of 3 by 3 with steps of 2 see in n by n rows, and 1 for those that are
    not beyond the ends."""
    at = np.arange(0, n, 2)[:, None] + np.arange(-1, 2)
    y, x = at[:, None, :, None], at[None, :, None, :]
    inside = (y >= 0) & (y < n) & (x >= 0) & (x < n)
    rows = np.where(inside, y * n + x, 0)
    return rows.reshape(-1).astype(np.int32), inside.reshape(-1, 1).astype(np.float32)


def values(c: TowerConfig, pixels: Pixels) -> dict[str, NDArray[Any]]:
    n = pixels.shape[0] // c.patch_size
    y, x = (at.reshape(-1) for at in np.indices((n, n)))
    taps = learned.by_centres(n, c.side)
    out: dict[str, NDArray[Any]] = {
        "patches": patches_of(c, pixels),
        "lines": y.astype(np.int32),
        "places": x.astype(np.int32),
        **learned.values(y, x, taps, taps, c.side),
    }
    for i in range(2):
        out[f"windows_{i}"], out[f"inside_{i}"] = windows(n >> i)
    return out


def _tile(c: TowerConfig) -> int:
    """Pixels of the side of a window in the size that the tower takes."""
    return c.tile_size or TILE


def layout(c: TowerConfig, height: int, width: int) -> tuple[bool, int, int, int, int, int]:
    """True for an image that is filled up to a square, and its height and width then and within
    the limits; the side of its windows (0: there are none), and the height and width of the image
    that is cut into them."""
    square = min(height, width) < 32 and max(height, width) > 4 * min(height, width)
    if square:
        height = width = max(height, width)
    limit = c.whole_size or WHOLE
    if max(height, width) > limit:
        scale = limit / max(height, width)
        height, width = max(int(height * scale), 1), max(int(width * scale), 1)
    short, long = min(height, width), max(height, width)
    window = _tile(c)
    if long <= c.image_size:
        window = short if long / short > 1.5 else 0
    elif long / short > 4:
        window = min(short, window)

    def cut(side: int) -> int:
        """Whole windows; a fifth of one more is a whole one."""
        if not window or side < window:
            return side
        return window * (side // window + (side % window > 0.2 * window))

    return square, height, width, window, cut(height), cut(width)


def tiles(c: TowerConfig, pixels: Pixels) -> list[Tile]:
    """The windows of an image, line by line, and the whole."""
    square, height, width, window, h, w = layout(c, *pixels.shape[:2])
    if square:
        shrink = min(MOST_SIDE / max(pixels.shape[:2]), 1.0)
        y, x = (max(int(side * shrink), 1) for side in pixels.shape[:2])
        pixels = _filled(resized(pixels, x, y, "bilinear"))
    whole = resized(resized(pixels, width, height, "bilinear"), c.image_size, c.image_size)
    out = []
    if window:
        side, pixels = _tile(c), resized(pixels, w, h, "bilinear")
        for y in range(0, h, window):
            for x in range(0, w, window):
                part = np.ascontiguousarray(pixels[y : y + window, x : x + window])
                ends_line = x + window >= w and y + window < h
                end = "<patch_end><patch_newline>" if ends_line else "<patch_end>"
                out.append(Tile(resized(part, side, side, "bilinear"), "<patch_start>", end))
    return [*out, Tile(whole, "<im_start>", "<im_end>")]


def _filled(pixels: Pixels) -> Pixels:
    """The image in the corner of a black square."""
    side = max(pixels.shape[:2])
    out = np.zeros((side, side, 3), np.uint8)
    out[: pixels.shape[0], : pixels.shape[1]] = pixels
    return out


def n_rows(c: TowerConfig, height: int, width: int) -> int:
    """Rows of an image of this size, without the names of windows."""
    *_, window, h, w = layout(c, height, width)
    n = math.ceil(h / window) * math.ceil(w / window) if window else 0
    whole, part = (side // (c.patch_size * c.merge) for side in (c.image_size, _tile(c)))
    return n * part**2 + whole**2


STEP3 = Family(
    rows=rows, inputs=inputs, forward=forward,
    sized=lambda c, pixels: pixels, values=values,
    n_rows=n_rows, tiles=tiles, merge=4,
)  # fmt: skip
