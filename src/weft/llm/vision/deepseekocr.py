"""The towers of DeepSeek-OCR (arXiv 2510.18234), Unlimited-OCR and DeepSeek-OCR 2: SAM's encoder
over tiles of an image and over the whole, and a second encoder over what it makes. The second one
is CLIP, whose rows stand side by side with SAM's, or Qwen2 with a row for each learned query.

Behind the rows of a tile come learned ones, that end a line of the image (not in DeepSeek-OCR 2),
and that end the image. `arranged` puts the rows of all tiles into the order of the image's lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft import graph as G
from weft.graph.size import Size, exact_div
from weft.graph.tensor import Tensor
from weft.llm.models import common
from weft.llm.vision import blocks, sam
from weft.llm.vision.config import Family, Tile, TowerConfig
from weft.llm.vision.images import Pixels, resized
from weft.llm.weights import Row, Weights, maybe, need

TILES = (2, 9)
"""Minimum and maximum number of tiles of a large image, if the file says nothing else."""
GREY = 127
"""The value of the three colours beside an image that is not a square."""
THETA = 1_000_000.0
_SMALL, _LARGE = "v.resample_query_768.weight", "v.resample_query_1024.weight"


def _rows(c: TowerConfig) -> Iterator[Row]:
    yield from sam.rows(c)
    yield need("v.view_seperator", c.n_out)
    yield need("mm.model.fc.bias", c.n_out)


def rows(c: TowerConfig) -> Iterator[Row]:
    yield from _rows(c)
    yield need("v.class_embd", c.n_embd)
    yield need("v.position_embd.weight", c.n_embd, c.n_learned)
    yield maybe("v.patch_embd.weight", 14, 14, 3, c.n_embd)  # SAM's rows are the patches
    for name in ("v.pre_ln", *(f"v.blk.{il}.{ln}" for il in range(c.n_layer) for ln in _NORMS)):
        yield need(f"{name}.weight", c.n_embd)
        yield need(f"{name}.bias", c.n_embd)
    for il in range(c.n_layer):
        for name, n_in, n_out in (
            ("attn_qkv", c.n_embd, 3 * c.n_embd), ("attn_out", c.n_embd, c.n_embd),
            ("ffn_up", c.n_embd, c.n_ff), ("ffn_down", c.n_ff, c.n_embd),
        ):  # fmt: skip
            yield need(f"v.blk.{il}.{name}.weight", n_in, n_out)
            yield need(f"v.blk.{il}.{name}.bias", n_out)
    yield need("v.image_newline", c.n_out)
    yield need("mm.model.fc.weight", 2 * c.n_embd, c.n_out)


_NORMS = ("ln1", "ln2")


def inputs(c: TowerConfig) -> dict[str, Tensor]:
    """SAM's inputs, and the shares of CLIP's learned positions."""
    out, t = sam.inputs(c)
    return out | {"clip_lines": G.input("clip_lines", (t, isqrt(c.n_learned - 1)), "f32")}


def _quarter(inputs: Mapping[str, Tensor]) -> Size:
    """Number of rows of each side of the square that SAM's encoder makes."""
    out = exact_div(inputs["lines"].ne[1], 4)
    assert out is not None  # the inputs have whole squares
    return out


def forward(c: TowerConfig, w: Weights, inputs: Mapping[str, Tensor]) -> Tensor:
    t, c = _quarter(inputs), replace(c, eps=1e-5)
    seen = sam.forward(c, w, inputs, t)
    side = isqrt(c.n_learned - 1)
    learned = G.cast(w["v.position_embd.weight"], "f32")
    first, others = (
        G.cont(G.view_2d(learned, c.n_embd, n, learned.nb[1], start * learned.nb[1]))
        for start, n in ((0, 1), (1, side * side))
    )
    others = sam.resampled(G.reshape(others, c.n_embd, side, side), inputs["clip_lines"])
    x = G.concat(G.reshape(w["v.class_embd"], c.n_embd, 1), seen, 1)
    x = common.layer_norm(w, "v.pre_ln", G.add(x, G.concat(first, others, 1)), c.eps)
    for il in range(c.n_layer):
        layer = Weights(dict(w), f"v.blk.{il}.")
        y = common.linear(layer, "attn_qkv", common.layer_norm(layer, "ln1", x, c.eps))
        y = blocks.attention(c, *blocks.split_qkv(c, y, x.ne[1]))
        x = G.add(x, common.linear(layer, "attn_out", y))
        y = common.linear(layer, "ffn_up", common.layer_norm(layer, "ln2", x, c.eps))
        x = G.add(x, common.linear(layer, "ffn_down", G.gelu_quick(y))).named(f"v.l_out-{il}")
    x = G.cont(G.view_2d(x, c.n_embd, t * t, x.nb[1], x.nb[1]))
    x = common.linear(w, "mm.model.fc", G.concat(x, seen, 0))
    return _ended(c, w, x, "v.image_newline", "v.view_seperator")


def _ended(c: TowerConfig, w: Weights, x: Tensor, *names: str) -> Tensor:
    """Rows x [n_out, n] with the learned rows of these names behind them."""
    for name in names:
        x = G.concat(x, G.reshape(w[name], c.n_out, 1), 1)
    return x


def values(c: TowerConfig, pixels: Pixels) -> dict[str, NDArray[Any]]:
    t = pixels.shape[0] // (4 * c.patch_size)
    return sam.values(c, pixels) | {"clip_lines": sam.cubic(t, isqrt(c.n_learned - 1))}


# --- DeepSeek-OCR 2 ---------------------------------------------------------------------------


def rows2(c: TowerConfig) -> Iterator[Row]:
    yield from _rows(c)
    d = c.n_embd // c.n_head
    for il in range(c.n_layer):
        at = f"v.blk.{il}"
        for name, n in (("attn_q", c.n_embd), ("attn_k", d * c.n_kv), ("attn_v", d * c.n_kv)):
            yield need(f"{at}.{name}.weight", c.n_embd, n)
            yield maybe(f"{at}.{name}.bias", n)
        yield need(f"{at}.attn_out.weight", c.n_embd, c.n_embd)
        for name in ("ffn_gate", "ffn_up"):
            yield need(f"{at}.{name}.weight", c.n_embd, c.n_ff)
        yield need(f"{at}.ffn_down.weight", c.n_ff, c.n_embd)
        for name in _NORMS:
            yield need(f"{at}.{name}.weight", c.n_embd)
    yield need("v.post_ln.weight", c.n_embd)
    for name, n in zip((_SMALL, _LARGE), c.n_queries, strict=True):
        yield need(name, c.n_embd, n)
    yield need("mm.model.fc.weight", c.n_embd, c.n_out)


def inputs2(c: TowerConfig) -> dict[str, Tensor]:
    """SAM's inputs, the queries, and the mask and positions of all rows."""
    out, t = sam.inputs(c)
    n_queries = G.Sym("n_queries", 1, max(c.n_queries)).size
    n = t * t + n_queries
    return out | {
        "queries": G.input("queries", (n_queries,), "i32"),
        "positions": G.input("positions", (n,), "i32"),
        "mask": G.input("mask", (n, n), "f16"),
    }


def forward2(c: TowerConfig, w: Weights, inputs: Mapping[str, Tensor]) -> Tensor:
    t, d = _quarter(inputs), c.n_embd // c.n_head
    small, large = (G.cast(w[name], "f32") for name in (_SMALL, _LARGE))
    queries = G.get_rows(G.concat(small, large, 1), inputs["queries"])
    x = G.concat(sam.forward(c, w, inputs, t), queries, 1)
    n, n_seen = x.ne[1], t * t

    def rotated(x: Tensor) -> Tensor:
        return G.rope(x, inputs["positions"], mode="neox", n_dims=d, freq_base=THETA)

    for il in range(c.n_layer):
        layer = Weights(dict(w), f"v.blk.{il}.")
        y = common.norm(layer, "ln1", x, c.eps)
        q, k, v = (
            G.reshape(common.linear(layer, f"attn_{name}", y), d, n_head, n)
            for name, n_head in (("q", c.n_head), ("k", c.n_kv), ("v", c.n_kv))
        )
        y = blocks.attention(c, rotated(q), rotated(k), v, inputs["mask"])
        x = G.add(x, common.linear(layer, "attn_out", y))
        y = common.norm(layer, "ln2", x, c.eps)
        y = G.swiglu(common.linear(layer, "ffn_gate", y), common.linear(layer, "ffn_up", y))
        x = G.add(x, common.linear(layer, "ffn_down", y)).named(f"v.l_out-{il}")
    x = common.norm(w, "v.post_ln", x, c.eps)
    x = G.cont(G.view_2d(x, c.n_embd, n - n_seen, x.nb[1], n_seen * x.nb[1]))
    return _ended(c, w, common.linear(w, "mm.model.fc", x), "v.view_seperator")


def values2(c: TowerConfig, pixels: Pixels) -> dict[str, NDArray[Any]]:
    n_seen, (small, large) = (pixels.shape[0] // (4 * c.patch_size)) ** 2, c.n_queries
    queries = np.arange(small) if n_seen <= small else small + np.arange(large)
    n = n_seen + len(queries)
    seen = np.tri(n, dtype=bool)
    seen[:n_seen, :n_seen] = True
    return sam.values(c, pixels) | {
        "queries": queries.astype(np.int32),
        "positions": np.arange(n, dtype=np.int32),
        "mask": np.where(seen, 0, -np.inf).astype(np.float16),
    }


# --- tiles ------------------------------------------------------------------------------------


def tile_size(c: TowerConfig) -> int:
    """Pixels of each side of a tile."""
    if c.n_queries[0]:
        return isqrt(c.n_queries[0]) * 4 * c.patch_size
    return c.image_size * 5 // 8


def grid_of(c: TowerConfig, height: int, width: int) -> tuple[int, int]:
    """Lines and places of the tiles of an image; (0, 0): it is not cut."""
    side = tile_size(c)
    if max(height, width) <= side:
        return 0, 0
    least, most = c.least_tiles or TILES[0], c.most_tiles or TILES[1]
    wanted, best, apart = width / height, (1, 1), np.inf
    grids = ((x, y) for x in range(1, most + 1) for y in range(1, most // x + 1))
    for x, y in sorted((g for g in grids if g[0] * g[1] >= least), key=lambda g: g[0] * g[1]):
        error = abs(wanted - x / y)
        larger = error == apart and width * height > 0.5 * side * side * x * y
        if error < apart or larger:
            best, apart = (y, x), error
    return best


def tiles(c: TowerConfig, pixels: Pixels) -> list[Tile]:
    """The tiles of an image, line by line, and the whole, with grey beside it."""
    height, width = pixels.shape[:2]
    n_lines, n_places = grid_of(c, height, width)
    side, out = tile_size(c), []
    if n_lines:
        large = resized(pixels, n_places * side, n_lines * side, "bicubic")
        for y in range(0, n_lines * side, side):
            out += [
                Tile(large[y : y + side, x : x + side]) for x in range(0, n_places * side, side)
            ]
    scale = c.image_size / max(height, width)
    h, w = (max(round(edge * scale), 1) for edge in (height, width))
    whole = np.full((c.image_size, c.image_size, 3), GREY, np.uint8)
    top, left = (c.image_size - h) // 2, (c.image_size - w) // 2
    whole[top : top + h, left : left + w] = resized(pixels, w, h, "bicubic")
    return [*out, Tile(whole)]


def arranged(c: TowerConfig, height: int, width: int) -> NDArray[np.int64]:
    """The numbers, among the rows of all tiles, of the rows of an image of this size: the lines of
    its tiles, each with its end, the lines of the whole, and the end of the image."""
    n_lines, n_places = grid_of(c, height, width)
    small, large = (side // (4 * c.patch_size) for side in (tile_size(c), c.image_size))
    of_tile = small * small + 2
    start = n_lines * n_places * of_tile
    end = start + large * large
    parts = []
    for first, n, (h, w), size in (
        (0, small, (n_lines, n_places), of_tile), (start, large, (1, 1), 0),
    ):  # fmt: skip
        tile = first + np.arange(h * w).reshape(h, 1, w, 1) * size
        at = tile + (np.arange(n)[:, None, None] * n + np.arange(n))
        at = at.reshape(h * n, w * n)
        parts.append(np.hstack([at, np.full((h * n, 1), end)]).reshape(-1))
    return np.concatenate([*parts, [end + 1]])


def arranged2(c: TowerConfig, height: int, width: int) -> NDArray[np.int64]:
    """The same numbers for DeepSeek-OCR 2: the rows of each tile, the rows of the whole, and the
    end of the image."""
    n_lines, n_places = grid_of(c, height, width)
    (small, large), n = c.n_queries, n_lines * n_places
    of_tiles = np.arange(n)[:, None] * (small + 1) + np.arange(small)
    return np.concatenate([of_tiles.reshape(-1), n * (small + 1) + np.arange(large + 1)])


DEEPSEEKOCR = Family(
    rows=rows, inputs=inputs, forward=forward, sized=lambda c, pixels: pixels, values=values,
    n_rows=lambda c, height, width: len(arranged(c, height, width)), tiles=tiles,
    arranged=arranged,
)  # fmt: skip
DEEPSEEKOCR2 = Family(
    rows=rows2, inputs=inputs2, forward=forward2, sized=lambda c, pixels: pixels, values=values2,
    n_rows=lambda c, height, width: len(arranged2(c, height, width)), tiles=tiles,
    arranged=arranged2,
)  # fmt: skip
