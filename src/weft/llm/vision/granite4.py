"""The tower of Granite 4 Vision (IBM, 2026): SigLIP (arXiv 2303.15343) over LLaVA 1.6's tiles, and
a Q-Former over windows of patches for each of several layers of the text model, which adds these
rows (DeepStack, arXiv 2406.04334). Queries begin with means of patches of a layer of the tower, or
with one corner of each 2 x 2 patches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft import graph as G
from weft.bounds import POOLED_SHARES
from weft.errors import FormatError
from weft.graph.tensor import Tensor
from weft.llm.models import common
from weft.llm.senses import qformer
from weft.llm.vision import anyres, blocks
from weft.llm.vision.config import Family, TowerConfig, patches_of
from weft.llm.vision.images import Pixels
from weft.llm.weights import Row, Weights, maybe, need, pair

HEAD = 64
"""Width of a head of the queries."""
EPS = 1e-6


def rows(c: TowerConfig) -> Iterator[Row]:
    """The tensors of a file. Raises FormatError for windows that do not fill an image."""
    n_queries, n_patches = c.windows
    halves = n_patches == 2 * n_queries or max(c.corners, default=-1) < 0
    if not 0 < n_queries <= n_patches or c.side % n_patches or not halves:
        raise FormatError(
            f"windows of {n_patches} patches and {n_queries} queries each side do not fit an image "
            f"of {c.side} patches, or a corner of each 2 x 2; convert the model again"
        )
    alike = len(c.corners) == len(c.layers) > 0
    if not c.pinpoints or c.n_embd % HEAD or not alike:
        raise FormatError(
            "the tower needs shapes of tiles, a width that is a multiple of 64, and a corner for "
            "each layer that a projector sees; convert the model again"
        )
    if min(c.corners) < 0 and c.side**2 * side(c) ** 2 > POOLED_SHARES:
        raise FormatError(
            f"means of {c.side} x {c.side} patches would have more than {POOLED_SHARES} shares; "
            "the tower is damaged, convert the model again"
        )
    if max(c.layers) >= c.n_layer:
        raise FormatError(
            f"a projector sees layer {max(c.layers)}, but the tower has {c.n_layer}; convert the "
            "model again"
        )
    yield from blocks.patch_rows(c)
    yield need("v.position_embd.weight", c.n_embd, c.side**2)
    for il in range(c.n_layer):
        yield from blocks.block_rows(c, il)
    for end in ("weight", "bias"):
        yield maybe(f"v.post_ln.{end}", c.n_embd)  # no projector sees what is behind it
    yield need("v.image_newline", c.n_out)
    for i in range(len(c.layers)):
        at = f"v.proj_blk.{i}"
        yield need(f"{at}.img_pos", c.n_embd, n_patches**2)
        yield need(f"{at}.query", c.n_embd, n_queries**2)
        for name in ("norm", "post_norm"):
            yield from pair(f"{at}.{name}", c.n_embd)
        yield from qformer.rows(at, c.n_embd, c.n_projector)
        yield from pair(f"{at}.linear", c.n_embd, c.n_out)


def side(c: TowerConfig) -> int:
    """Rows of each side of a tile."""
    return c.side // c.windows[1] * c.windows[0]


def inputs(c: TowerConfig) -> dict[str, Tensor]:
    """Patches; their numbers window by window; in the same order the numbers of the patches in each
    wanted corner, and the shares of the patches in each mean; the numbers of rows line by line."""
    n, n_rows = c.side**2, side(c) ** 2
    out = blocks.square_inputs(c) | {
        "windows": G.input("windows", (n,), "i32"),
        "raster": G.input("raster", (n_rows,), "i32"),
    }
    for corner in sorted(set(c.corners)):
        if corner >= 0:
            out[f"corner_{corner}"] = G.input(f"corner_{corner}", (n_rows,), "i32")
        else:
            out["means"] = G.input("means", (n_rows, n), "f32")
    return out


def forward(c: TowerConfig, w: Weights, inputs: Mapping[str, Tensor]) -> Tensor:
    x = blocks.embed_patches(c, w, inputs["patches"])
    x = G.add(x, w["v.position_embd.weight"])
    seen: dict[int, Tensor] = {}
    for il in range(max(c.layers) + 1):
        x = seen[il] = blocks.encode(c, w, x, il + 1, first=il)
    streams = [_projected(c, w, i, seen[layer], inputs) for i, layer in enumerate(c.layers)]
    end = line = G.reshape(w["v.image_newline"], c.n_out, 1)
    out = streams[0]
    for stream in streams[1:]:
        out, line = G.concat(out, stream, 0), G.concat(line, end, 0)
    return G.concat(out, line, 1)


def _projected(
    c: TowerConfig, w: Weights, i: int, x: Tensor, inputs: Mapping[str, Tensor]
) -> Tensor:
    """The rows [n_out, n] of a projector of a layer's rows x [n_embd, n_patches]."""
    own, corner = Weights(dict(w), f"v.proj_blk.{i}."), c.corners[i]
    n_queries, n_patches = (n * n for n in c.windows)
    n = c.side**2 // n_patches
    x = common.layer_norm(own, "norm", x, EPS)
    if corner < 0:
        y = G.mul_mat(G.cont(G.transpose(x)), inputs["means"])
    else:
        y = G.get_rows(x, inputs[f"corner_{corner}"])
    y = _added(own, "query", y, n_queries, n)
    y = common.layer_norm(own, "post_norm", y, qformer.EPS)
    x = _added(own, "img_pos", G.get_rows(x, inputs["windows"]), n_patches, n)
    y = qformer.layer(own, y, x, c.n_embd // HEAD, n_queries, n_patches, n)
    return common.linear(own, "linear", G.get_rows(y, inputs["raster"]))


def _added(w: Weights, name: str, x: Tensor, n_rows: int, n: int) -> Tensor:
    """Rows x [n_embd, n_rows n] with the same learned ones added in each window."""
    width = x.ne[0]
    learned = G.reshape(G.cast(w[name], "f32"), width, n_rows, 1)
    return G.reshape(G.add(G.reshape(x, width, n_rows, n), learned), width, n_rows * n)


def order(n: int, window: int) -> NDArray[np.int64]:
    """The numbers of n x n places, window by window."""
    at = np.arange(n * n).reshape(n // window, window, n // window, window)
    return at.transpose(0, 2, 1, 3).reshape(-1)


def means(n: int, n_out: int) -> NDArray[np.float32]:
    """The shares [n_out, n] of n places in means over n_out parts, which may overlap."""
    out = np.zeros((n_out, n), np.float32)
    for i in range(n_out):
        first, end = i * n // n_out, math.ceil((i + 1) * n / n_out)
        out[i, first:end] = 1 / (end - first)
    return out


def values(c: TowerConfig, pixels: Pixels) -> dict[str, NDArray[Any]]:
    n_out, (n_queries, n_patches) = side(c), c.windows
    queries = order(n_out, n_queries)
    out: dict[str, NDArray[Any]] = {
        "patches": patches_of(c, pixels),
        "windows": order(c.side, n_patches).astype(np.int32),
        "raster": np.argsort(queries).astype(np.int32),
    }
    y, x = queries // n_out, queries % n_out
    for corner in sorted(set(c.corners)):
        if corner >= 0:
            at = (2 * y + corner // 2) * c.side + 2 * x + corner % 2
            out[f"corner_{corner}"] = at.astype(np.int32)
        else:
            shares = means(c.side, n_out)
            out["means"] = np.kron(shares, shares)[queries]
    return out


GRANITE4 = Family(
    rows=rows, inputs=inputs, forward=forward, sized=lambda c, pixels: pixels, values=values,
    n_rows=lambda c, height, width: anyres.n_rows(c, side(c), height, width), tiles=anyres.tiles,
    arranged=lambda c, height, width: anyres.arranged(c, side(c), height, width),
)  # fmt: skip
