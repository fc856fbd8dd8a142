"""The tower of HunyuanOCR (arXiv 2511.19575): a transformer over images in their own proportions
whose learned positions are interpolated. Squares of patches are merged by a convolution. A learned
row ends each line of the image, and others stand in front of all rows and behind them.

Patches of a square follow one another, so that merging them is a product.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft import graph as G
from weft.graph.tensor import Tensor
from weft.llm.models import common
from weft.llm.vision import blocks, learned, qwen
from weft.llm.vision.config import Family, TowerConfig, limited, patches_of, sized_by
from weft.llm.vision.images import Pixels
from weft.llm.weights import Row, Weights, maybe, need

LEAST, MOST = 512 * 512, 2048 * 2048
"""Pixels of an image, if the file says nothing else."""


def rows(c: TowerConfig) -> Iterator[Row]:
    yield from blocks.patch_rows(c)
    yield need("v.position_embd.weight", c.n_embd, c.n_learned)
    for il in range(c.n_layer):
        yield from blocks.block_rows(c, il)
    yield need("mm.pre_norm.weight", c.n_embd)
    yield need("mm.0.weight", c.merge, c.merge, c.n_embd, 2 * c.n_embd)
    yield need("mm.2.weight", 1, 1, 2 * c.n_embd, 4 * c.n_embd)
    yield need("mm.model.fc.weight", 4 * c.n_embd, c.n_out)
    for name, n in (("mm.0", 2 * c.n_embd), ("mm.2", 4 * c.n_embd), ("mm.model.fc", c.n_out)):
        yield maybe(f"{name}.bias", n)
    yield need("v.image_newline", 4 * c.n_embd)
    yield maybe("v.view_seperator", c.n_out)  # between images of a video
    for name in ("mm.image_begin", "mm.image_end", "mm.post_norm.weight"):
        yield need(name, c.n_out)


def inputs(c: TowerConfig) -> dict[str, Tensor]:
    """Patches with their learned positions, and the order of rows and ends of lines."""
    unit = c.merge**2
    most = qwen.most_rows(limited(c, LEAST, MOST))
    n = unit * G.Sym("n_squares", 1, most).size
    return {
        "patches": G.input("patches", (n, c.patch_values), "f32"),
        "order": G.input("order", (G.Sym("n_ordered", 1, 2 * most + 2).size,), "i32"),
        **learned.inputs(n),
    }


def forward(c: TowerConfig, w: Weights, inputs: Mapping[str, Tensor]) -> Tensor:
    x = learned.added(w, blocks.embed_patches(c, w, inputs["patches"]), inputs)
    x = blocks.encode(replace(c, act="gelu_erf"), w, x, c.n_layer)
    x = common.norm(w, "mm.pre_norm", x, c.eps)
    x = blocks.merged(w["mm.0.weight"], x)
    x = G.gelu_erf(_biased(w, "mm.0", x))
    x = G.mul_mat(G.reshape(w["mm.2.weight"], 2 * c.n_embd, 4 * c.n_embd), x)
    x = G.concat(_biased(w, "mm.2", x), G.reshape(w["v.image_newline"], 4 * c.n_embd, 1), 1)
    x = common.linear(w, "mm.model.fc", G.get_rows(x, inputs["order"]))
    begin, end = (G.reshape(w[f"mm.image_{name}"], c.n_out, 1) for name in ("begin", "end"))
    return common.norm(w, "mm.post_norm", G.concat(G.concat(begin, x, 1), end, 1), c.eps)


def _biased(w: Weights, name: str, x: Tensor) -> Tensor:
    return G.add(x, w[f"{name}.bias"]) if f"{name}.bias" in w else x


def values(c: TowerConfig, pixels: Pixels) -> dict[str, NDArray[Any]]:
    side = isqrt(c.n_learned)
    h, w = (edge // (c.patch_size * c.merge) for edge in pixels.shape[:2])
    lines, places = (learned.by_centres(n * c.merge, side) for n in (h, w))
    order = np.full((h, w + 1), h * w, np.int32)
    order[:, :w] = np.arange(h * w).reshape(h, w)
    return {
        "patches": patches_of(c, pixels, c.merge),
        "order": order.reshape(-1),
        **learned.values(*qwen.places(h, w, c.merge), lines, places, side),
    }


def size_of(c: TowerConfig, height: int, width: int) -> tuple[int, int]:
    return qwen.size_of(limited(c, LEAST, MOST), height, width)


def n_rows(c: TowerConfig, height: int, width: int) -> int:
    """Rows of an image of this size, those in front of it, behind it and behind lines included."""
    h, w = (side // (c.patch_size * c.merge) for side in size_of(c, height, width))
    return h * (w + 1) + 2


HUNYUAN = Family(
    rows=rows, inputs=inputs, forward=forward, sized=sized_by(size_of), values=values,
    n_rows=n_rows, merge=2, before="<｜hy_place▁holder▁no▁100｜>",
    after="<｜hy_place▁holder▁no▁101｜>", lines=True, framed=True,
)  # fmt: skip
