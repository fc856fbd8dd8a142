"""The tower of MiniMax-M3: a transformer over images in their own proportions, whose heads turn by
height and width in a part each. A projector of two matrices stands in front of the squares of
patches that become one row, and another behind them.

Patches of a square follow one another, so that merging them is a reshape.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft import graph as G
from weft.errors import FormatError
from weft.graph.size import exact_div
from weft.graph.tensor import Tensor
from weft.llm.models import common
from weft.llm.vision import blocks, qwen
from weft.llm.vision.config import Family, TowerConfig, limited, rows_by, sized_by
from weft.llm.vision.images import Pixels
from weft.llm.weights import Row, Weights, maybe, need

THETA = 10000.0
LEAST, MOST = 4, 576
"""Rows of an image, if the file says nothing else."""


def part(c: TowerConfig) -> int:
    """Elements of a head that turn by time, height or width; these are three parts, in order."""
    return c.n_embd // c.n_head // 3 // 2 * 2


def rows(c: TowerConfig) -> Iterator[Row]:
    if not part(c):
        raise FormatError(
            f"heads of the tower have {c.n_embd // c.n_head} elements; they need 6 or more"
        )
    for name in ("weight", "weight.1"):
        yield need(f"v.patch_embd.{name}", c.patch_size, c.patch_size, 3, c.n_embd)
    for end in ("weight", "bias"):
        yield need(f"v.pre_ln.{end}", c.n_embd)
    for il in range(c.n_layer):
        yield from blocks.block_rows(c, il)
    sizes = (("mm.1", c.n_embd, c.n_projector), ("mm.2", c.n_projector, c.n_out),
             ("mm.merger.fc1", c.n_out * c.merge**2, c.n_projector),
             ("mm.merger.fc2", c.n_projector, c.n_out))  # fmt: skip
    for name, n_in, n in sizes:
        yield need(f"{name}.weight", n_in, n)
        yield maybe(f"{name}.bias", n)


def in_limits(c: TowerConfig) -> TowerConfig:
    """The config with the limits of the family, if the file has none."""
    square = (c.patch_size * c.merge) ** 2
    return limited(c, LEAST * square, MOST * square)


def inputs(c: TowerConfig) -> dict[str, Tensor]:
    """Patches, and the line and the place of each."""
    patches = qwen.inputs(in_limits(c))["patches"]
    sides = {name: G.input(name, (patches.ne[1],), "i32") for name in ("lines", "places")}
    return {"patches": patches, **sides}


def forward(c: TowerConfig, w: Weights, inputs: Mapping[str, Tensor]) -> Tensor:
    x = qwen.embed_frames(c, w, inputs["patches"])
    x = common.layer_norm(w, "v.pre_ln", x, c.eps)

    def rotated(x: Tensor) -> Tensor:
        """An image has no time, so that the first part of a head does not turn."""
        for i, name in enumerate(("lines", "places"), 1):
            x = G.rope(
                x, inputs[name], mode="neox", n_dims=part(c), n_offset=i * part(c), freq_base=THETA
            )
        return x

    x = blocks.encode(replace(c, act="gelu_erf"), w, x, c.n_layer, rotated=rotated)
    x = common.linear(w, "mm.2", G.gelu_erf(common.linear(w, "mm.1", x)))
    n_rows = exact_div(x.ne[1], c.merge**2)
    assert n_rows is not None  # the inputs have whole squares
    x = G.reshape(x, c.n_out * c.merge**2, n_rows)
    return common.linear(w, "mm.merger.fc2", G.gelu_erf(common.linear(w, "mm.merger.fc1", x)))


def values(c: TowerConfig, pixels: Pixels) -> dict[str, NDArray[Any]]:
    out = qwen.values(c, pixels)
    lines, places, *_ = np.split(out["positions"], 4)
    return {"patches": out["patches"], "lines": lines, "places": places}


def size_of(c: TowerConfig, height: int, width: int) -> tuple[int, int]:
    return qwen.size_of(in_limits(c), height, width)


MINIMAX_M3 = Family(
    rows=rows, inputs=inputs, forward=forward, sized=sized_by(size_of), values=values,
    n_rows=rows_by(size_of), merge=2, before="]<]start of image[>[", after="]<]end of image[>[",
)  # fmt: skip
