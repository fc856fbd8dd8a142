"""Gemma 4's tower (Google, 2026): images in their own proportions, a learned and a rotary position
for place and line, and squares of patches that are averaged. Values are normed, and the inputs and
outputs of matrices may have bounds.

Patches of a square follow one another, so that averaging them is a sum over neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft import graph as G
from weft.errors import ContextError, FormatError
from weft.graph.size import exact_div
from weft.graph.tensor import Tensor
from weft.llm.models import common
from weft.llm.vision import blocks, qwen
from weft.llm.vision.config import Family, TowerConfig, patches_of, rows_by, sized_by
from weft.llm.vision.images import Pixels
from weft.llm.weights import Row, Weights, maybe, need

MOST = 280
"""Rows of an image, if the file says nothing else."""
THETA = 100.0
POSITIONS = 10240
BOUNDS = ("input_min", "input_max", "output_min", "output_max")
_MATRICES = ("attn_q", "attn_k", "attn_v", "attn_out", "ffn_gate", "ffn_up", "ffn_down")


def rows(c: TowerConfig) -> Iterator[Row]:
    d, n_positions = c.n_embd // c.n_head, c.n_positions or POSITIONS
    yield from blocks.patch_rows(c, bias=False)
    yield need("v.position_embd.weight", c.n_embd, n_positions, 2)
    for il in range(c.n_layer):
        at = f"v.blk.{il}"
        for name in ("ln1", "ln2", "attn_post_norm", "ffn_post_norm"):
            yield need(f"{at}.{name}.weight", c.n_embd)
        for name in ("attn_q_norm", "attn_k_norm"):
            yield need(f"{at}.{name}.weight", d)
        for name in _MATRICES:
            n_in = c.n_ff if name == "ffn_down" else c.n_embd
            n_out = c.n_ff if name in ("ffn_gate", "ffn_up") else c.n_embd
            yield need(f"{at}.{name}.weight", n_in, n_out)
            for bound in BOUNDS:
                yield maybe(f"{at}.{name}.{bound}", 1)
        yield maybe(f"{at}.out_scale.weight", 1)
    for name in ("v.std_bias", "v.std_scale"):
        yield maybe(name, c.n_embd)
    yield need("mm.input_projection.weight", c.n_embd, c.n_out)


def most_rows(c: TowerConfig) -> int:
    """Maximum number of rows of an image."""
    return max(c.most_pixels // (c.patch_size * c.merge) ** 2, 1) if c.most_pixels else MOST


def inputs(c: TowerConfig) -> dict[str, Tensor]:
    """Patches, and the place and the line of each."""
    n = c.merge**2 * G.Sym("n_rows", 1, most_rows(c)).size
    return {
        "patches": G.input("patches", (n, c.patch_values), "f32"),
        "places": G.input("places", (n,), "i32"),
        "lines": G.input("lines", (n,), "i32"),
    }


def forward(c: TowerConfig, w: Weights, inputs: Mapping[str, Tensor]) -> Tensor:
    n, d = inputs["patches"].ne[1], c.n_embd // c.n_head

    def rotated(x: Tensor) -> Tensor:
        """The first half of a head is for places, the second for lines."""
        for i, name in enumerate(("places", "lines")):
            x = G.rope(
                x, inputs[name], mode="neox", n_dims=d // 2, n_offset=i * (d // 2), freq_base=THETA
            )
        return x

    x = placed(c, w, inputs, blocks.embed_patches(c, w, inputs["patches"]))
    for il in range(c.n_layer):
        layer = Weights(dict(w), f"v.blk.{il}.")
        y = common.norm(layer, "ln1", x, c.eps)
        q, k, v = (G.reshape(bounded(layer, f"attn_{name}", y), d, c.n_head, n) for name in "qkv")
        q, k = (
            rotated(common.norm(layer, f"attn_{name}_norm", part, c.eps))
            for name, part in (("q", q), ("k", k))
        )
        y = blocks.attention(c, q, k, G.rms_norm(v, c.eps), scale=1.0)
        y = common.norm(layer, "attn_post_norm", bounded(layer, "attn_out", y), c.eps)
        x = G.add(x, y)
        y = common.norm(layer, "ln2", x, c.eps)
        y = G.geglu(bounded(layer, "ffn_gate", y), bounded(layer, "ffn_up", y))
        x = G.add(x, common.norm(layer, "ffn_post_norm", bounded(layer, "ffn_down", y), c.eps))
        if "out_scale.weight" in layer:
            x = G.mul(x, layer["out_scale.weight"])
        x = x.named(f"v.l_out-{il}")
    unit = c.merge**2
    n_rows = exact_div(n, unit)
    assert n_rows is not None  # the inputs have whole squares
    x = G.reshape(x, c.n_embd, unit, n_rows)
    x = G.reshape(G.sum_rows(G.cont(G.permute(x, 1, 0, 2, 3))), c.n_embd, n_rows)
    x = G.scale(x, math.sqrt(c.n_embd) / unit)
    if "v.std_bias" in w and "v.std_scale" in w:
        x = G.mul(G.sub(x, w["v.std_bias"]), w["v.std_scale"])
    return G.mul_mat(w["mm.input_projection.weight"], G.rms_norm(x, c.eps))


def placed(c: TowerConfig, w: Weights, inputs: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """The rows x with the learned positions of their places and lines."""
    learned = w["v.position_embd.weight"]
    for i, name in enumerate(("places", "lines")):
        side = G.view_2d(learned, c.n_embd, learned.ne[1], learned.nb[1], i * learned.nb[2])
        x = G.add(x, G.get_rows(side, inputs[name]))
    return x


def bounded(w: Weights, name: str, x: Tensor) -> Tensor:
    """The product of a matrix with x, both within the bounds that the file has."""
    x = _clamped(w, f"{name}.input", x)
    return _clamped(w, f"{name}.output", G.mul_mat(w[f"{name}.weight"], x))


def _clamped(w: Weights, name: str, x: Tensor) -> Tensor:
    if f"{name}_min" not in w or f"{name}_max" not in w:
        return x
    low, high = (_number(w[f"{name}_{end}"]) for end in ("min", "max"))
    if not low <= high:
        raise FormatError(f"the bounds {low} and {high} of {name} are the wrong way round")
    return G.clamp(x, low, high) if np.isfinite([low, high]).any() else x


def _number(leaf: Tensor) -> float:
    assert leaf.buffer is not None and leaf.buffer.data is not None
    data = np.asarray(leaf.buffer.data)
    return float(data.reshape(-1).view(np.uint8)[:4].copy().view("<f4")[0])


def size_of(c: TowerConfig, height: int, width: int) -> tuple[int, int]:
    """Height and width of whole squares: as many as an image may have, in its proportions. Raises
    ContextError for an image that is too long for that."""
    unit, most = c.patch_size * c.merge, most_rows(c)
    grow = math.sqrt(most * unit**2 / (height * width))
    h, w = (math.floor(side * grow / unit) for side in (height, width))
    if not h:
        h, w = 1, min(width // height, most)
    elif not w:
        h, w = min(height // width, most), 1
    if not h * w:
        raise ContextError(f"an image of {width} x {height} pixels has no whole square")
    return h * unit, w * unit


def values(c: TowerConfig, pixels: Pixels) -> dict[str, NDArray[Any]]:
    h, w = (side // (c.patch_size * c.merge) for side in pixels.shape[:2])
    y, x = qwen.places(h, w, c.merge)
    return {
        "patches": 2 * patches_of(c, pixels, c.merge) - 1,
        "places": x.astype(np.int32),
        "lines": y.astype(np.int32),
    }


GEMMA4 = Family(
    rows=rows, inputs=inputs, forward=forward, sized=sized_by(size_of), values=values,
    n_rows=rows_by(size_of), merge=3, before="<|image>", after="<image|>", together=True,
)  # fmt: skip


# The 12B model (gemma4_unified) has no layers for images: a square of pixels becomes a row by one
# matrix, with LayerNorms around it and around the sum with learned positions.

_LAYER_NORM_EPS = 1e-5
"""The epsilon of the LayerNorms, which no file states."""


def _whole(c: TowerConfig) -> TowerConfig:
    """The same tower with squares as its patches."""
    return replace(c, patch_size=c.patch_size * c.merge, merge=1)


def unified_rows(c: TowerConfig) -> Iterator[Row]:
    n = _whole(c).patch_values
    yield need("v.patch_embd.weight", n, c.n_embd)
    yield need("v.patch_embd.bias", c.n_embd)
    for i, width in enumerate((n, c.n_embd, c.n_embd), 1):
        for kind in ("weight", "bias"):
            yield need(f"v.patch_norm.{i}.{kind}", width)
    yield need("v.position_embd.weight", c.n_embd, c.n_positions or POSITIONS, 2)
    yield need("mm.input_projection.weight", c.n_embd, c.n_out)


def unified_inputs(c: TowerConfig) -> dict[str, Tensor]:
    """Squares, and the place and the line of each."""
    return inputs(_whole(replace(c, most_pixels=most_rows(c) * _whole(c).patch_size ** 2)))


def unified_forward(c: TowerConfig, w: Weights, inputs: Mapping[str, Tensor]) -> Tensor:
    x = common.layer_norm(w, "v.patch_norm.1", inputs["patches"], _LAYER_NORM_EPS)
    x = common.layer_norm(w, "v.patch_norm.2", common.linear(w, "v.patch_embd", x), _LAYER_NORM_EPS)
    x = common.layer_norm(w, "v.patch_norm.3", placed(c, w, inputs, x), _LAYER_NORM_EPS)
    return G.mul_mat(w["mm.input_projection.weight"], G.rms_norm(x, c.eps))


def unified_values(c: TowerConfig, pixels: Pixels) -> dict[str, NDArray[Any]]:
    own = _whole(c)
    h, w = (side // own.patch_size for side in pixels.shape[:2])
    y, x = np.mgrid[:h, :w].reshape(2, -1).astype(np.int32)
    return {"patches": patches_of(own, pixels), "places": x, "lines": y}


GEMMA4_UNIFIED = replace(
    GEMMA4, rows=unified_rows, inputs=unified_inputs, forward=unified_forward,
    values=unified_values,
)  # fmt: skip
