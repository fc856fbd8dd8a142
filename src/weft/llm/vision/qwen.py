"""The towers of Qwen2-VL (arXiv 2409.12191), Qwen2.5-VL (arXiv 2502.13923) and EXAONE 4.5: images
in their own proportions, rotary positions by height and width, and squares of patches that become
one row. In Qwen2.5-VL and EXAONE 4.5 most layers see windows of the image only; EXAONE 4.5 has
fewer heads of keys and values.

Patches of a square follow one another, so that merging them is a reshape; windows are a mask.
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
from weft.errors import ContextError
from weft.graph.size import exact_div
from weft.graph.tensor import Tensor
from weft.llm.models import common
from weft.llm.vision import blocks
from weft.llm.vision.config import Family, TowerConfig, patches_of, rows_by, sized_by
from weft.llm.vision.images import Pixels
from weft.llm.weights import Row, Weights, maybe, need

LEAST, MOST = 4, 1280
"""Rows of an image, if the file says nothing else."""
LONGEST = 200
"""Maximum length of an image in units of its breadth."""
WINDOW = 112
"""Pixels of each side of a window."""


def rows(c: TowerConfig, *, gated: bool, fused: bool = False) -> Iterator[Row]:
    blocks.require_pairs(c)
    for name in ("weight", "weight.1"):
        yield need(f"v.patch_embd.{name}", c.patch_size, c.patch_size, 3, c.n_embd)
    for il in range(c.n_layer):
        for row in blocks.block_rows(c, il, fused=fused):
            if gated and row.name.endswith((".ln1.bias", ".ln2.bias")):
                continue
            if fused and ".attn_qkv." in row.name:
                n = c.n_embd + 2 * _n_kv(c)
                row = replace(row, ne=(*row.ne[:-1], n))
            yield row
        if gated:
            yield need(f"v.blk.{il}.ffn_gate.weight", c.n_embd, c.n_ff)
            yield maybe(f"v.blk.{il}.ffn_gate.bias", c.n_ff)
    yield need("v.post_ln.weight", c.n_embd)
    if not gated:
        yield need("v.post_ln.bias", c.n_embd)
    wide = c.n_embd * c.merge**2
    for name, n in (("mm.0", wide), ("mm.2", c.n_out)):
        yield need(f"{name}.weight", wide, n)
        yield maybe(f"{name}.bias", n)


def limits(c: TowerConfig) -> tuple[int, int]:
    """The least and the most pixels of an image."""
    square = (c.patch_size * c.merge) ** 2
    return c.least_pixels or LEAST * square, c.most_pixels or MOST * square


def most_rows(c: TowerConfig) -> int:
    """Maximum number of rows of an image: its area, a single line of the longest image, or the area
    of an image that is enlarged, with squares at its ends."""
    unit, (least, most) = c.patch_size * c.merge, limits(c)
    line = math.isqrt(LONGEST * most) // unit + 1
    grown = least // unit**2 + math.isqrt(least) // unit * (math.isqrt(LONGEST) + 2) + LONGEST
    return max(most // unit**2, line, grown)


def inputs(c: TowerConfig) -> dict[str, Tensor]:
    """Patches, their positions, and the mask of windows."""
    n = c.merge**2 * G.Sym("n_rows", 1, most_rows(c)).size
    out = {
        "patches": G.input("patches", (n, c.patch_values), "f32"),
        "positions": G.input("positions", (4 * n,), "i32"),
    }
    if c.full_every:
        out["mask"] = G.input("mask", (n, n), "f16")
    return out


def forward(c: TowerConfig, w: Weights, inputs: Mapping[str, Tensor], *, gated: bool) -> Tensor:
    patches, n = inputs["patches"], inputs["patches"].ne[1]
    x = embed_frames(c, w, patches)
    d = c.n_embd // c.n_head

    def normed(layer: Weights, name: str, x: Tensor) -> Tensor:
        return (common.norm if gated else common.layer_norm)(layer, name, x, c.eps)

    for il in range(c.n_layer):
        layer = Weights(dict(w), f"v.blk.{il}.")
        y = normed(layer, "ln1", x)
        if "attn_qkv.weight" in layer:
            q, k, v = _split(c, common.linear(layer, "attn_qkv", y))
        else:
            q, k, v = (
                G.reshape(common.linear(layer, f"attn_{name}", y), d, c.n_head, n) for name in "qkv"
            )
        mask = inputs["mask"] if c.full_every and (il + 1) % c.full_every else None
        y = attention(c, q, k, v, inputs, mask)
        x = G.add(x, common.linear(layer, "attn_out", y))
        y = normed(layer, "ln2", x)
        up = common.linear(layer, "ffn_up", y)
        if gated:
            up = G.swiglu(common.linear(layer, "ffn_gate", y), up)
        else:
            up = blocks.ACT[c.act](up)
        x = G.add(x, common.linear(layer, "ffn_down", up)).named(f"v.l_out-{il}")
    x = normed(w, "v.post_ln", x)
    unit = c.merge**2
    n_rows = exact_div(n, unit)
    assert n_rows is not None  # the inputs have whole squares
    x = G.reshape(x, c.n_embd * unit, n_rows)
    return common.linear(w, "mm.2", G.gelu_erf(common.linear(w, "mm.0", x)))


def _n_kv(c: TowerConfig) -> int:
    """Elements of the keys of all heads."""
    return c.n_embd // c.n_head * c.n_kv


def _split(c: TowerConfig, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [d, n_head, n], keys and values [d, n_kv, n] of y, which has them in order."""
    d, size, n_kv = c.n_embd // c.n_head, y.dtype.bytes, c.n_kv
    starts = (0, c.n_head), (c.n_embd, n_kv), (c.n_embd + _n_kv(c), n_kv)
    q, k, v = (
        G.view_3d(y, d, heads, y.ne[1], d * size, y.nb[1], start * size) for start, heads in starts
    )
    return q, k, v


def embed_frames(c: TowerConfig, w: Weights, patches: Tensor) -> Tensor:
    """Rows [n_embd, n_patches] of patches; the two frames of a moment are the same image."""
    kernels = (w["v.patch_embd.weight"], w["v.patch_embd.weight.1"])
    first, second = (
        G.mul_mat(G.reshape(kernel, c.patch_values, c.n_embd), patches) for kernel in kernels
    )
    return G.add(first, second)


def attention(
    c: TowerConfig,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    inputs: Mapping[str, Tensor],
    mask: Tensor | None = None,
) -> Tensor:
    """Attention of q, k and v [d, n_head, n], rotated by height and width."""
    q, k = (rotated(c, inputs["positions"], x) for x in (q, k))
    return blocks.attention(c, q, k, v, mask)


def rotated(c: TowerConfig, positions: Tensor, x: Tensor) -> Tensor:
    """Queries or keys x [d, n_head, n], rotated by the heights and widths `positions` [4 n]."""
    d = c.n_embd // c.n_head
    return G.rope(x, positions, mode=G.RopeMode.VISION, n_dims=d // 2, sections=(d // 4,) * 4)


def size_of(c: TowerConfig, height: int, width: int) -> tuple[int, int]:
    """Height and width of whole squares, near the proportions of an image and within the limits.
    Raises ContextError for an image that is `LONGEST` times as long as wide."""
    if max(height, width) > LONGEST * min(height, width):
        raise ContextError(
            f"an image is {width} x {height} pixels; one side is more than {LONGEST} times the "
            "other"
        )
    unit, (least, most) = c.patch_size * c.merge, limits(c)
    h, w = (max(round(side / unit), 1) * unit for side in (height, width))
    if h * w > most:
        shrink = math.sqrt(height * width / most)
        h, w = (max(math.floor(side / shrink / unit), 1) * unit for side in (height, width))
    elif h * w < least:
        grow = math.sqrt(least / (height * width))
        h, w = (math.ceil(side * grow / unit) * unit for side in (height, width))
    return h, w


def places(h: int, w: int, merge: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The line and the place of each patch of h by w squares of `merge` patches each side, square
    after square."""
    y = np.arange(h * merge).reshape(h, 1, merge, 1)
    x = np.arange(w * merge).reshape(1, w, 1, merge)
    shape = (h, w, merge, merge)
    return np.broadcast_to(y, shape).reshape(-1), np.broadcast_to(x, shape).reshape(-1)


def values(c: TowerConfig, pixels: Pixels) -> dict[str, NDArray[Any]]:
    m = c.merge
    h, w = (side // (c.patch_size * m) for side in pixels.shape[:2])
    y, x = places(h, w, m)
    out: dict[str, NDArray[Any]] = {
        "patches": patches_of(c, pixels, m),
        "positions": np.concatenate([y, x, y, x]).astype(np.int32),
    }
    if c.full_every:
        side = WINDOW // c.patch_size // m * m  # patches
        window = y // side * (w * m) + x // side
        seen = window[:, None] == window
        out["mask"] = np.where(seen, 0, -np.inf).astype(np.float16)
    return out


def _family(*, gated: bool, fused: bool = False) -> Family:
    return Family(
        rows=partial(rows, gated=gated, fused=fused),
        inputs=inputs,
        forward=partial(forward, gated=gated),
        sized=sized_by(size_of),
        values=values,
        n_rows=rows_by(size_of),
        merge=2,
        before="<|vision_start|>",
        after="<|vision_end|>",
        lines=True,
    )


QWEN2VL, QWEN25VL = _family(gated=False), _family(gated=True)
EXAONE45 = replace(
    _family(gated=True, fused=True), before="<vision>", after="</vision>", lines=False
)
