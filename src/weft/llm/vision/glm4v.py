"""The tower of GLM-4.1V and GLM-4.5V (arXiv 2507.01006): Qwen2-VL's, with learned positions beside
the rotary ones, interpolated by cubics; squares of patches are merged by a convolution, and a gated
layer follows. GLM-OCR has no learned positions, and norms queries and keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft import graph as G
from weft.graph.tensor import Tensor
from weft.llm.models import common
from weft.llm.vision import blocks, qwen
from weft.llm.vision.config import Family, TowerConfig, limited, rows_by, sized_by
from weft.llm.vision.images import Pixels
from weft.llm.weights import Row, Weights, maybe, need

LEAST, MOST = 8, 6144
"""Rows of an image, if the file says nothing else."""
CUBIC = -0.75
"""The coefficient of the cubics that interpolate."""


def rows(c: TowerConfig) -> Iterator[Row]:
    blocks.require_pairs(c)
    yield from blocks.patch_rows(c)
    yield need("v.patch_embd.weight.1", c.patch_size, c.patch_size, 3, c.n_embd)
    yield maybe("v.norm_embd.weight", c.n_embd)
    yield maybe("v.position_embd.weight", c.n_embd, c.side**2)
    for il in range(c.n_layer):
        at = f"v.blk.{il}"
        yield need(f"{at}.ln1.weight", c.n_embd)
        yield need(f"{at}.ln2.weight", c.n_embd)
        yield need(f"{at}.attn_qkv.weight", c.n_embd, 3 * c.n_embd)
        yield maybe(f"{at}.attn_qkv.bias", 3 * c.n_embd)
        yield need(f"{at}.attn_out.weight", c.n_embd, c.n_embd)
        yield maybe(f"{at}.attn_out.bias", c.n_embd)
        for name in ("attn_q_norm", "attn_k_norm"):
            yield maybe(f"{at}.{name}.weight", c.n_embd // c.n_head)
        for name in ("ffn_gate", "ffn_up"):
            yield need(f"{at}.{name}.weight", c.n_embd, c.n_ff)
            yield maybe(f"{at}.{name}.bias", c.n_ff)
        yield need(f"{at}.ffn_down.weight", c.n_ff, c.n_embd)
        yield maybe(f"{at}.ffn_down.bias", c.n_embd)
    yield need("v.post_ln.weight", c.n_embd)
    yield need("mm.patch_merger.weight", c.merge, c.merge, c.n_embd, c.n_out)
    yield maybe("mm.patch_merger.bias", c.n_out)
    yield need("mm.model.fc.weight", c.n_out, c.n_out)
    for end in ("weight", "bias"):
        yield need(f"mm.post_norm.{end}", c.n_out)
    for name in ("mm.gate", "mm.up"):
        yield need(f"{name}.weight", c.n_out, c.n_projector)
    yield need("mm.down.weight", c.n_projector, c.n_out)


def in_limits(c: TowerConfig) -> TowerConfig:
    """The config with the limits of the family, if the file has none."""
    square = (c.patch_size * c.merge) ** 2
    return limited(c, LEAST * square, MOST * square)


def inputs(c: TowerConfig) -> dict[str, Tensor]:
    """Qwen2-VL's, and for each patch the shares of the learned positions, if there are any."""
    out = qwen.inputs(in_limits(c))
    if not c.n_learned:
        return out
    out["shares"] = G.input("shares", (out["patches"].ne[1], c.side**2), "f32")
    return out


def forward(c: TowerConfig, w: Weights, inputs: Mapping[str, Tensor]) -> Tensor:
    n = inputs["patches"].ne[1]
    x = qwen.embed_frames(c, w, inputs["patches"])
    x = G.add(x, w["v.patch_embd.bias"]) if "v.patch_embd.bias" in w else x
    if "v.norm_embd.weight" in w:
        x = common.norm(w, "v.norm_embd", x, c.eps)
    if "shares" in inputs:
        learned = G.cont(G.transpose(G.cast(w["v.position_embd.weight"], "f32")))
        x = G.add(x, G.mul_mat(learned, inputs["shares"]))
    for il in range(c.n_layer):
        layer = Weights(dict(w), f"v.blk.{il}.")
        y = common.linear(layer, "attn_qkv", common.norm(layer, "ln1", x, c.eps))
        q, k, v = blocks.split_qkv(c, y, n)
        if "attn_q_norm.weight" in layer:
            q, k = (
                common.norm(layer, f"attn_{name}_norm", G.cont(part), c.eps)
                for name, part in (("q", q), ("k", k))
            )
        y = qwen.attention(c, q, k, v, inputs)
        x = G.add(x, common.linear(layer, "attn_out", y))
        y = common.norm(layer, "ln2", x, c.eps)
        y = G.swiglu(common.linear(layer, "ffn_gate", y), common.linear(layer, "ffn_up", y))
        x = G.add(x, common.linear(layer, "ffn_down", y)).named(f"v.l_out-{il}")
    x = common.norm(w, "v.post_ln", x, c.eps)
    x = blocks.merged(w["mm.patch_merger.weight"], x)
    x = G.add(x, w["mm.patch_merger.bias"]) if "mm.patch_merger.bias" in w else x
    x = G.mul_mat(w["mm.model.fc.weight"], x)
    x = G.gelu_erf(common.layer_norm(w, "mm.post_norm", x, 1e-5))
    x = G.swiglu(G.mul_mat(w["mm.gate.weight"], x), G.mul_mat(w["mm.up.weight"], x))
    return G.mul_mat(w["mm.down.weight"], x)


def shares_of(n: int, side: int) -> NDArray[np.float32]:
    """How much each of `side` learned positions counts at each of `n` places, f32 [n, side]; what
    would lie beyond the first and the last is theirs."""
    at = (np.arange(n) + 0.5) / n * side - 0.5
    first = np.floor(at).astype(np.int64)
    out = np.zeros((n, side), np.float64)
    for tap in range(-1, 3):
        d = np.abs(at - (first + tap))
        near = ((CUBIC + 2) * d - (CUBIC + 3)) * d * d + 1
        far = ((CUBIC * d - 5 * CUBIC) * d + 8 * CUBIC) * d - 4 * CUBIC
        share = np.where(d <= 1, near, np.where(d < 2, far, 0))
        np.add.at(out, (np.arange(n), np.clip(first + tap, 0, side - 1)), share)
    return out.astype(np.float32)


def values(c: TowerConfig, pixels: Pixels) -> dict[str, NDArray[Any]]:
    out = qwen.values(c, pixels)
    if not c.n_learned:
        return out
    n = len(out["patches"])
    h, w = (side // c.patch_size for side in pixels.shape[:2])
    lines, columns = shares_of(h, c.side), shares_of(w, c.side)
    y, x = out["positions"][:n], out["positions"][n : 2 * n]
    shares = lines[y][:, :, None] * columns[x][:, None, :]
    return out | {"shares": np.ascontiguousarray(shares.reshape(n, -1))}


def size_of(c: TowerConfig, height: int, width: int) -> tuple[int, int]:
    """Height and width of whole squares, near the proportions of an image and within the limits."""
    unit = c.patch_size * c.merge
    if height < unit or width < unit:
        grow = max(unit / height, unit / width)
        height, width = int(height * grow), int(width * grow)
    return qwen.size_of(in_limits(c), height, width)


GLM4V = Family(
    rows=rows, inputs=inputs, forward=forward, sized=sized_by(size_of), values=values,
    n_rows=rows_by(size_of), merge=2, before="<|begin_of_image|>", after="<|end_of_image|>",
    lines=True,
)  # fmt: skip
