"""The tower of Qwen3-VL (arXiv 2511.21631): Qwen2-VL's, with learned positions beside the rotary
ones, interpolated for the size of an image. The outputs of some layers become further parts of a
row, which the decoder adds behind its first layers (DeepStack, arXiv 2406.04334)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft import graph as G
from weft.graph.size import Size, exact_div
from weft.graph.tensor import Tensor
from weft.llm.models import common
from weft.llm.vision import blocks, learned, qwen
from weft.llm.vision.config import Family, TowerConfig, rows_by, sized_by
from weft.llm.vision.images import Pixels
from weft.llm.weights import Row, Weights, maybe, need


def rows(c: TowerConfig) -> Iterator[Row]:
    blocks.require_pairs(c)
    yield from blocks.patch_rows(c)
    yield need("v.patch_embd.weight.1", c.patch_size, c.patch_size, 3, c.n_embd)
    yield need("v.position_embd.weight", c.n_embd, c.side**2)
    wide = c.n_embd * c.merge**2
    for il in range(c.n_layer):
        at = f"v.blk.{il}"
        for row in blocks.block_rows(c, il):
            if not row.name.startswith((f"{at}.attn_q", f"{at}.attn_k", f"{at}.attn_v")):
                yield row
        yield need(f"{at}.attn_qkv.weight", c.n_embd, 3 * c.n_embd)
        yield maybe(f"{at}.attn_qkv.bias", 3 * c.n_embd)
        if il in c.deepstack:
            yield from _merger_rows(f"v.deepstack.{il}", ("fc1", "fc2"), wide, c.n_out)
            yield need(f"v.deepstack.{il}.norm.weight", wide)
            yield need(f"v.deepstack.{il}.norm.bias", wide)
    yield need("v.post_ln.weight", c.n_embd)
    yield need("v.post_ln.bias", c.n_embd)
    yield from _merger_rows("mm", ("0", "2"), wide, c.n_out)


def _merger_rows(at: str, names: tuple[str, str], wide: int, n_out: int) -> Iterator[Row]:
    for name, n in zip(names, (wide, n_out), strict=True):
        yield need(f"{at}.{name}.weight", wide, n)
        yield maybe(f"{at}.{name}.bias", n)


def inputs(c: TowerConfig) -> dict[str, Tensor]:
    """Qwen2-VL's, and for each patch four learned positions and their shares."""
    out = qwen.inputs(c)
    return out | learned.inputs(out["patches"].ne[1])


def forward(c: TowerConfig, w: Weights, inputs: Mapping[str, Tensor]) -> Tensor:
    """Rows [n_out * (1 + deepstack layers), n] of an image."""
    n = inputs["patches"].ne[1]
    x = G.add(qwen.embed_frames(c, w, inputs["patches"]), w["v.patch_embd.bias"])
    x = learned.added(w, x, inputs)
    n_rows = exact_div(n, c.merge**2)
    assert n_rows is not None  # the inputs have whole squares
    parts = []
    for il in range(c.n_layer):
        layer = Weights(dict(w), f"v.blk.{il}.")
        y = common.linear(layer, "attn_qkv", common.layer_norm(layer, "ln1", x, c.eps))
        y = qwen.attention(c, *blocks.split_qkv(c, y, n), inputs)
        x = G.add(x, common.linear(layer, "attn_out", y))
        y = common.linear(layer, "ffn_up", common.layer_norm(layer, "ln2", x, c.eps))
        x = G.add(x, common.linear(layer, "ffn_down", blocks.ACT[c.act](y)))
        x = x.named(f"v.l_out-{il}")
        if il in c.deepstack:
            deep = Weights(dict(w), f"v.deepstack.{il}.")
            y = common.layer_norm(deep, "norm", _merged(c, x, n_rows), c.eps)
            parts.append(_two(deep, ("fc1", "fc2"), y))
    y = _merged(c, common.layer_norm(w, "v.post_ln", x, c.eps), n_rows)
    out = _two(w, ("mm.0", "mm.2"), y)
    for part in parts:
        out = G.concat(out, part, 0)
    return out


def _merged(c: TowerConfig, x: Tensor, n_rows: Size) -> Tensor:
    return G.reshape(x, c.n_embd * c.merge**2, n_rows)


def _two(w: Weights, names: tuple[str, str], x: Tensor) -> Tensor:
    return common.linear(w, names[1], G.gelu_erf(common.linear(w, names[0], x)))


def values(c: TowerConfig, pixels: Pixels) -> dict[str, NDArray[Any]]:
    out = qwen.values(c, pixels)
    y, x = np.split(out["positions"][: 2 * len(out["patches"])], 2)
    ends = [edge // c.patch_size for edge in pixels.shape[:2]]
    lines, places = (learned.from_end_to_end(end, c.side) for end in ends)
    return out | learned.values(y, x, lines, places, c.side)


QWEN3VL = Family(
    rows=rows, inputs=inputs, forward=forward, sized=sized_by(qwen.size_of), values=values,
    n_rows=rows_by(qwen.size_of), merge=2, before="<|vision_start|>", after="<|vision_end|>",
    lines=True,
)  # fmt: skip
