"""The towers of MiniCPM-V 2.5 to 4.5 and MiniCPM-o (arXiv 2408.01800): SigLIP (arXiv 2303.15343)
over an image and its slices, and learned queries that attend to the patches, so that every part of
an image becomes as many rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft import graph as G
from weft.graph.tensor import Tensor
from weft.llm.models import common
from weft.llm.vision import blocks, minicpmv, slices
from weft.llm.vision.config import Family, Tile, TowerConfig, patches_of
from weft.llm.vision.images import Pixels
from weft.llm.weights import Row, Weights, maybe, need

HEAD = 128
"""Width of a head of the queries."""
BASE = 10000.0
OLDEST = 2
"""The version of MiniCPM-V 2.5, whose images have no numbers and whose slices are images."""


def rows(c: TowerConfig) -> Iterator[Row]:
    yield from blocks.patch_rows(c)
    yield need("v.position_embd.weight", c.n_embd, c.n_learned)
    for il in range(c.n_layer):
        yield from blocks.block_rows(c, il)
    for name, n in (("v.post_ln", c.n_embd), *((f"resampler.ln_{x}", c.n_out) for x in _NORMS)):
        yield need(f"{name}.weight", n)
        yield need(f"{name}.bias", n)
    yield need("resampler.query", c.n_out, c.n_queries[0])
    yield maybe("resampler.pos_embed_k", c.n_out, 70 * 70)  # which is computed
    yield need("resampler.kv.weight", c.n_embd, c.n_out)
    for name in ("q", "k", "v", "out"):
        yield need(f"resampler.attn.{name}.weight", c.n_out, c.n_out)
        yield need(f"resampler.attn.{name}.bias", c.n_out)
    yield need("resampler.proj.weight", c.n_out, c.n_out)


_NORMS = ("q", "kv", "post")


def inputs(c: TowerConfig) -> dict[str, Tensor]:
    """Patches, the learned position of each, and sines and cosines of its line and place."""
    n = G.Sym("n_patches", 1, slices.n_patches(c)).size
    return {
        "patches": G.input("patches", (n, c.patch_values), "f32"),
        "places": G.input("places", (n,), "i32"),
        "waves": G.input("waves", (n, c.n_out), "f32"),
    }


def forward(c: TowerConfig, w: Weights, inputs: Mapping[str, Tensor]) -> Tensor:
    x = blocks.embed_patches(c, w, inputs["patches"])
    x = G.add(x, G.get_rows(w["v.position_embd.weight"], inputs["places"]))
    x = common.layer_norm(w, "v.post_ln", blocks.encode(c, w, x, c.n_layer), c.eps)
    v = common.layer_norm(w, "resampler.ln_kv", G.mul_mat(w["resampler.kv.weight"], x), c.eps)
    k = G.add(v, inputs["waves"])
    query = G.cast(w["resampler.query"], "f32")
    q = common.layer_norm(w, "resampler.ln_q", query, c.eps)
    q, k, v = (
        G.permute(_in_heads(c, common.linear(w, f"resampler.attn.{name}", y)), 0, 2, 1, 3)
        for name, y in (("q", q), ("k", k), ("v", v))
    )
    y = G.flash_attn_ext(q, k, v, scale=1 / math.sqrt(HEAD))
    y = common.linear(w, "resampler.attn.out", G.reshape(y, c.n_out, c.n_queries[0]))
    return G.mul_mat(
        w["resampler.proj.weight"], common.layer_norm(w, "resampler.ln_post", y, c.eps)
    )


def _in_heads(c: TowerConfig, x: Tensor) -> Tensor:
    return G.reshape(x, HEAD, c.n_out // HEAD, x.ne[1])


def waves(n: int, places: NDArray[Any]) -> NDArray[np.float32]:
    """The sines and the cosines, f32 [len(places), n], of places at n / 2 frequencies."""
    powers = np.arange(n // 2, dtype=np.float32) / np.float32(n // 2)
    turns = np.outer(places.astype(np.float32), np.float32(1) / np.float32(BASE) ** powers)
    return np.concatenate([np.sin(turns), np.cos(turns)], axis=1)


def values(c: TowerConfig, pixels: Pixels) -> dict[str, NDArray[Any]]:
    h, w = (side // c.patch_size for side in pixels.shape[:2])
    y, x = np.divmod(np.arange(h * w), w)
    return {
        "patches": patches_of(c, pixels),
        "places": minicpmv.nearest(c, h, w).reshape(-1),
        "waves": np.concatenate([waves(c.n_out // 2, part) for part in (x, y)], axis=1),
    }


def tiles(c: TowerConfig, pixels: Pixels) -> list[Tile]:
    """The whole of an image and its slices."""
    if c.version == OLDEST:
        return slices.tiles(c, pixels, "<image>", "</image>", all_in="slice")
    return slices.tiles(c, pixels, "<slice>", "</slice>")


RESAMPLER = Family(
    rows=rows, inputs=inputs, forward=forward, sized=lambda c, pixels: pixels, values=values,
    n_rows=lambda c, height, width: (
        c.n_queries[0] * len(slices.n_squares(c, height, width))
    ),
    tiles=tiles,
    before_of=lambda c: "" if c.version == OLDEST else minicpmv.NUMBER,
)  # fmt: skip
