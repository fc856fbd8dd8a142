"""The tower of MiniCPM-V 4.6: SigLIP (arXiv 2303.15343) over an image and its slices, with learned
positions of the nearest places. Behind one of the layers, the patches of each square of 2 by 2 see
one another and become one, and so do squares behind the last layer.

Patches of a square follow one another, and so do squares of a square, so that merging is a reshape.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft import graph as G
from weft.graph.size import Size, exact_div
from weft.graph.tensor import Tensor
from weft.llm.models import common
from weft.llm.vision import blocks, qwen, slices
from weft.llm.vision.config import Family, TowerConfig, patches_of
from weft.llm.vision.images import Pixels
from weft.llm.weights import Row, Weights, maybe, need

SQUARE = 4
"""Number of patches of a square."""
NUMBER = "<image_id>{number}</image_id>"
"""Text in front of an image."""
_MERGER = "v.vit_merger"


def rows(c: TowerConfig) -> Iterator[Row]:
    yield from blocks.patch_rows(c)
    yield need("v.position_embd.weight", c.n_embd, c.n_learned)
    for il in range(c.n_layer):
        yield from blocks.block_rows(c, il)
    wide = c.n_embd * SQUARE
    if c.merge == 4:
        for name, n_in, n_out in (
            *((f"attn_{name}", c.n_embd, c.n_embd) for name in ("q", "k", "v", "out")),
            ("ds_ffn_up", wide, c.n_ff * SQUARE), ("ds_ffn_down", c.n_ff * SQUARE, c.n_embd),
        ):  # fmt: skip
            yield need(f"{_MERGER}.{name}.weight", n_in, n_out)
            yield maybe(f"{_MERGER}.{name}.bias", n_out)
        for name, n in ((f"{_MERGER}.ln1", c.n_embd), (f"{_MERGER}.ds_ln", wide)):
            yield need(f"{name}.weight", n)
            yield need(f"{name}.bias", n)
    for end in ("weight", "bias"):
        yield need(f"v.post_ln.{end}", c.n_embd)
        yield need(f"mm.input_norm.{end}", wide)
    for name, n_in, n_out in (("mm.up", wide, c.n_projector), ("mm.down", c.n_projector, c.n_out)):
        yield need(f"{name}.weight", n_in, n_out)
        yield maybe(f"{name}.bias", n_out)


def inputs(c: TowerConfig) -> dict[str, Tensor]:
    """Patches, and the learned position of each."""
    n = c.merge**2 * G.Sym("n_rows", 1, slices.n_patches(c)).size
    return {
        "patches": G.input("patches", (n, c.patch_values), "f32"),
        "places": G.input("places", (n,), "i32"),
    }


def forward(c: TowerConfig, w: Weights, inputs: Mapping[str, Tensor]) -> Tensor:
    x = blocks.embed_patches(c, w, inputs["patches"])
    x = G.add(x, G.get_rows(w["v.position_embd.weight"], inputs["places"]))
    n_before = c.merge_behind + 1 if c.merge == 4 else 0
    if n_before:
        x = _merged(c, w, blocks.encode(c, w, x, n_before))
    x = common.layer_norm(w, "v.post_ln", blocks.encode(c, w, x, c.n_layer, n_before), c.eps)
    x = common.layer_norm(w, "mm.input_norm", _squares(x), 1e-6)
    return common.linear(w, "mm.down", G.gelu_erf(common.linear(w, "mm.up", x)))


def _squares(x: Tensor) -> Tensor:
    """Rows [4 n_embd, n / 4] of rows [n_embd, n]."""
    return G.reshape(x, x.ne[0] * SQUARE, _quarter(x.ne[1]))


def _quarter(n: Size) -> Size:
    out = exact_div(n, SQUARE)
    assert out is not None  # the inputs have whole squares
    return out


def _merged(c: TowerConfig, w: Weights, x: Tensor) -> Tensor:
    """A row [n_embd, n / 4] of each square of rows x [n_embd, n], which see one another first."""
    n, d = _quarter(x.ne[1]), c.n_embd // c.n_head
    y = common.layer_norm(w, f"{_MERGER}.ln1", x, c.eps)
    q, k, v = (
        G.permute(
            G.reshape(common.linear(w, f"{_MERGER}.attn_{name}", y), d, c.n_head, SQUARE, n),
            0, 2, 1, 3,
        )
        for name in "qkv"
    )  # fmt: skip
    y = G.reshape(G.flash_attn_ext(q, k, v, scale=1 / math.sqrt(d)), c.n_embd, x.ne[1])
    x = _squares(G.add(common.linear(w, f"{_MERGER}.attn_out", y), x))
    parts = [G.cont(G.view_2d(x, c.n_embd, n, x.nb[1], i * c.n_embd * 4)) for i in range(SQUARE)]
    mean = G.scale(G.add(G.add(parts[0], parts[1]), G.add(parts[2], parts[3])), 1 / SQUARE)
    y = common.layer_norm(w, f"{_MERGER}.ds_ln", x, c.eps)
    y = G.gelu(common.linear(w, f"{_MERGER}.ds_ffn_up", y))
    return G.add(common.linear(w, f"{_MERGER}.ds_ffn_down", y), mean)


def order(h: int, w: int, merge: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The line and the place of each of h by w patches, square after square; with a `merge` of 4
    the squares of a square follow one another, too."""
    if merge < 4:
        return qwen.places(h // 2, w // 2, 2)
    lines, places = qwen.places(h // 4, w // 4, 2)
    y = 2 * lines[:, None] + np.array([0, 0, 1, 1])
    x = 2 * places[:, None] + np.array([0, 1, 0, 1])
    return y.reshape(-1), x.reshape(-1)


def nearest(c: TowerConfig, h: int, w: int) -> NDArray[np.int32]:
    """The number of the learned position of each of h by w patches, i32 [h, w]."""
    side = isqrt(c.n_learned)
    lines, places = (np.arange(n) * side // n for n in (h, w))
    return (lines[:, None] * side + places).astype(np.int32)


def values(c: TowerConfig, pixels: Pixels) -> dict[str, NDArray[Any]]:
    h, w = (side // c.patch_size for side in pixels.shape[:2])
    y, x = order(h, w, c.merge)
    return {"patches": patches_of(c, pixels)[y * w + x], "places": nearest(c, h, w)[y, x]}


MINICPMV46 = Family(
    rows=rows, inputs=inputs, forward=forward, sized=lambda c, pixels: pixels, values=values,
    n_rows=lambda c, height, width: sum(slices.n_squares(c, height, width)),
    tiles=partial(slices.tiles, before="<slice>", after="</slice>"), merge=4,
    before=NUMBER,
)  # fmt: skip
