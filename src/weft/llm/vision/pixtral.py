"""The towers of Pixtral (arXiv 2410.07073), Mistral Small 3.1 and LightOnOCR: images in their own
proportions, rotary positions by height and width, and a token of the text model behind every line
of an image but the last. Mistral Small and LightOnOCR merge squares of patches; LightOnOCR has no
tokens behind lines.

Patches of a square follow one another, so that merging them is a reshape."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft import graph as G
from weft.graph.size import exact_div
from weft.graph.tensor import Tensor
from weft.llm.models import common
from weft.llm.vision import blocks, qwen
from weft.llm.vision.config import Family, TowerConfig, patches_of, rows_by, sized_by
from weft.llm.vision.images import Pixels
from weft.llm.weights import Row, Weights, maybe, need

THETA = 10000.0


def rows(c: TowerConfig) -> Iterator[Row]:
    yield from blocks.patch_rows(c)
    yield need("v.pre_ln.weight", c.n_embd)
    for il in range(c.n_layer):
        at = f"v.blk.{il}"
        yield need(f"{at}.ln1.weight", c.n_embd)
        yield need(f"{at}.ln2.weight", c.n_embd)
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            yield need(f"{at}.{name}.weight", c.n_embd, c.n_embd)
        for name in ("ffn_gate", "ffn_up"):
            yield need(f"{at}.{name}.weight", c.n_embd, c.n_ff)
        yield need(f"{at}.ffn_down.weight", c.n_ff, c.n_embd)
    merged = c.n_embd * c.merge**2
    if c.merge > 1:
        yield need("mm.input_norm.weight", c.n_embd)
        yield need("mm.patch_merger.weight", merged, c.n_embd)
    for name, n_in in (("mm.1", c.n_embd), ("mm.2", c.n_out)):
        yield need(f"{name}.weight", n_in, c.n_out)
        yield maybe(f"{name}.bias", c.n_out)
    yield maybe("v.token_embd.img_break", c.n_out)  # the text model has it


def inputs(c: TowerConfig) -> dict[str, Tensor]:
    """Patches, and the line and the place of each."""
    side = -(-c.image_size // (c.patch_size * c.merge))
    n = c.merge**2 * G.Sym("n_squares", 1, side * side).size
    return {
        "patches": G.input("patches", (n, c.patch_values), "f32"),
        "lines": G.input("lines", (n,), "i32"),
        "places": G.input("places", (n,), "i32"),
    }


def forward(c: TowerConfig, w: Weights, inputs: Mapping[str, Tensor], eps: float = 0.0) -> Tensor:
    """Computes the rows; `eps` is of the norm in front of the projector (0: as in the layers)."""
    patches, n, d = inputs["patches"], inputs["patches"].ne[1], c.n_embd // c.n_head

    def rotated(x: Tensor) -> Tensor:
        """Even frequencies are for lines, odd ones for places."""
        x = G.rope(x, inputs["lines"], mode="normal", n_dims=d // 2, freq_base=THETA)
        odd = THETA ** (-2 / d)
        return G.rope(
            x, inputs["places"], mode="normal", n_dims=d // 2, n_offset=d // 2,
            freq_base=THETA, freq_scale=odd,
        )  # fmt: skip

    x = common.norm(w, "v.pre_ln", blocks.embed_patches(c, w, patches), c.eps)
    for il in range(c.n_layer):
        layer = Weights(dict(w), f"v.blk.{il}.")
        y = common.norm(layer, "ln1", x, c.eps)
        q, k, v = (
            G.reshape(common.linear(layer, f"attn_{name}", y), d, c.n_head, n) for name in "qkv"
        )
        y = blocks.attention(c, rotated(q), rotated(k), v)
        x = G.add(x, common.linear(layer, "attn_out", y))
        y = common.norm(layer, "ln2", x, c.eps)
        gate, up = (common.linear(layer, name, y) for name in ("ffn_gate", "ffn_up"))
        act = G.gelu_erf(gate) if c.act == "gelu" else blocks.ACT[c.act](gate)
        x = G.add(x, common.linear(layer, "ffn_down", G.mul(act, up))).named(f"v.l_out-{il}")
    if c.merge > 1:
        unit = c.merge**2
        n_rows = exact_div(n, unit)
        assert n_rows is not None  # the inputs have whole squares
        x = G.reshape(common.norm(w, "mm.input_norm", x, eps or c.eps), c.n_embd, unit, n_rows)
        x = G.reshape(G.cont(G.permute(x, 1, 0, 2, 3)), c.n_embd * unit, n_rows)
        x = common.linear(w, "mm.patch_merger", x)
    return common.linear(w, "mm.2", G.gelu_erf(common.linear(w, "mm.1", x)))


def size_of(c: TowerConfig, height: int, width: int) -> tuple[int, int]:
    """Height and width of whole squares: an image that is larger than the tower's size shrinks, and
    its ends are filled up."""
    unit = c.patch_size * c.merge
    shrink = max(height / c.image_size, width / c.image_size, 1.0)
    h, w = (max(math.floor(side / shrink), 1) for side in (height, width))
    return -(-h // unit) * unit, -(-w // unit) * unit


def line(c: TowerConfig, height: int, width: int) -> int:
    """Rows of a line of an image of this size."""
    return size_of(c, height, width)[1] // (c.patch_size * c.merge)


def n_rows(c: TowerConfig, height: int, width: int) -> int:
    """Rows of an image of this size, ends of lines included."""
    h, w = (side // (c.patch_size * c.merge) for side in size_of(c, height, width))
    return h * (w + 1) - 1


def values(c: TowerConfig, pixels: Pixels) -> dict[str, NDArray[Any]]:
    h, w = (side // (c.patch_size * c.merge) for side in pixels.shape[:2])
    y, x = qwen.places(h, w, c.merge)
    return {
        "patches": patches_of(c, pixels, c.merge),
        "lines": y.astype(np.int32),
        "places": x.astype(np.int32),
    }


PIXTRAL = Family(
    rows=rows, inputs=inputs, forward=forward, sized=sized_by(size_of), values=values,
    n_rows=n_rows, after="[IMG_END]", line=line, line_end="[IMG_BREAK]",
)  # fmt: skip
LIGHTONOCR = Family(
    rows=rows, inputs=inputs, forward=partial(forward, eps=1e-6), sized=sized_by(size_of),
    values=values, n_rows=rows_by(size_of), before="<|im_start|>", after="<|im_end|>",
)  # fmt: skip
