"""The tower of PaddleOCR-VL (arXiv 2510.14528): SigLIP over images in their own proportions, with
learned positions that are interpolated beside rotary ones; squares of patches are merged behind the
last layer.

Patches of a square follow one another, so that merging them is a reshape.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft import graph as G
from weft.graph.size import exact_div
from weft.graph.tensor import Tensor
from weft.llm.models import common
from weft.llm.vision import blocks, learned, qwen
from weft.llm.vision.config import Family, TowerConfig, limited, rows_by, sized_by
from weft.llm.vision.images import Pixels
from weft.llm.weights import Row, Weights, need

LEAST, MOST = 384 * 384, 1536 * 1536
"""Pixels of an image, if the file says nothing else."""


def rows(c: TowerConfig) -> Iterator[Row]:
    blocks.require_pairs(c)
    yield from blocks.patch_rows(c)
    yield need("v.position_embd.weight", c.n_embd, c.n_learned)
    for il in range(c.n_layer):
        yield from blocks.block_rows(c, il)
    wide = c.n_embd * c.merge**2
    for end in ("weight", "bias"):
        yield need(f"v.post_ln.{end}", c.n_embd)
        yield need(f"mm.input_norm.{end}", c.n_embd)
    for name, n_out in (("mm.1", wide), ("mm.2", c.n_out)):
        yield need(f"{name}.weight", wide, n_out)
        yield need(f"{name}.bias", n_out)


def inputs(c: TowerConfig) -> dict[str, Tensor]:
    out = qwen.inputs(limited(c, LEAST, MOST))
    return out | learned.inputs(out["patches"].ne[1])


def forward(c: TowerConfig, w: Weights, inputs: Mapping[str, Tensor]) -> Tensor:
    x = learned.added(w, blocks.embed_patches(c, w, inputs["patches"]), inputs)
    rotated = partial(qwen.rotated, c, inputs["positions"])
    x = blocks.encode(c, w, x, c.n_layer, rotated=rotated)
    x = common.layer_norm(w, "v.post_ln", x, c.eps)
    x = common.layer_norm(w, "mm.input_norm", x, 1e-5)
    n_rows = exact_div(x.ne[1], c.merge**2)
    assert n_rows is not None  # the inputs have whole squares
    x = G.reshape(x, c.n_embd * c.merge**2, n_rows)
    return common.linear(w, "mm.2", G.gelu_erf(common.linear(w, "mm.1", x)))


def values(c: TowerConfig, pixels: Pixels) -> dict[str, NDArray[Any]]:
    out = qwen.values(c, pixels)
    n, side = len(out["patches"]), isqrt(c.n_learned)
    y, x = np.split(out["positions"][: 2 * n], 2)
    lines, places = (learned.by_centres(edge // c.patch_size, side) for edge in pixels.shape[:2])
    return out | learned.values(y, x, lines, places, side)


def size_of(c: TowerConfig, height: int, width: int) -> tuple[int, int]:
    """Height and width of whole squares, near the proportions of an image and within the limits;
    a side of less than a square grows first."""
    unit = c.patch_size * c.merge
    if height < unit:
        height, width = unit, round(width * unit / height)
    if width < unit:
        height, width = round(height * unit / width), unit
    return qwen.size_of(limited(c, LEAST, MOST), height, width)


PADDLEOCR = Family(
    rows=rows, inputs=inputs, forward=forward, sized=sized_by(size_of), values=values,
    n_rows=rows_by(size_of), merge=2, before="<|IMAGE_START|>", after="<|IMAGE_END|>", lines=True,
)  # fmt: skip
