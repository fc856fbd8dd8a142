"""SAM's encoder (arXiv 2304.02643) as the first part of DeepSeek-OCR's towers: attention inside
windows and, in every third layer, of all patches. Scores are of places, too, by learned vectors for
each distance of lines and of places. Convolutions halve the sides of the image twice.

A square image has 4 t x 4 t patches, line by line. The scores of places are products: behind a
query are its products with the vectors of all distances, behind a key are ones that pick its line
and its place. So no score of a pair is stored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft import graph as G
from weft.graph.size import Size, exact_div
from weft.graph.tensor import Tensor
from weft.llm.models import common
from weft.llm.vision import blocks
from weft.llm.vision.config import TowerConfig, patches_of
from weft.llm.vision.images import Pixels
from weft.llm.vision.sam_config import SamConfig
from weft.llm.weights import Row, Weights, need

EPS = 1e-6
WHOLE = 3
"""One layer in this many sees the whole image."""
CUBIC = -0.5
"""The coefficient of the cubics that interpolate."""
_TAPS = 3
"""The side of the squares of the convolutions behind the layers."""
_STEPS = (1, 2, 4)
"""For each of these the number of patches from row to row of what it makes."""


def of(c: TowerConfig) -> SamConfig:
    """The sizes of SAM's encoder, which files of these kinds have."""
    assert c.sam is not None
    return c.sam


def rows(c: TowerConfig) -> Iterator[Row]:
    s = of(c)
    n, d = s.n_embd, s.n_embd // s.n_head
    yield need("v.sam.patch_embd.weight", s.patch_size, s.patch_size, 3, n)
    yield need("v.sam.patch_embd.bias", n)
    yield need("v.sam.pos_embd.weight", n, s.side, s.side)
    for il in range(s.n_layer):
        at = f"v.sam.blk.{il}"
        for name, n_in, n_out in (
            ("attn.qkv", n, 3 * n), ("attn.out", n, n), ("mlp.lin1", n, s.n_ff),
            ("mlp.lin2", s.n_ff, n),
        ):  # fmt: skip
            yield need(f"{at}.{name}.weight", n_in, n_out)
            yield need(f"{at}.{name}.bias", n_out)
        for name in ("pre_ln", "post_ln"):
            yield need(f"{at}.{name}.weight", n)
            yield need(f"{at}.{name}.bias", n)
        for name in ("attn.pos_h", "attn.pos_w"):
            yield need(f"{at}.{name}.weight", d, 2 * _seen(s, il) - 1)
    yield need("v.sam.neck.0.weight", 1, 1, n, s.n_neck)
    yield need("v.sam.neck.2.weight", 3, 3, s.n_neck, s.n_neck)
    for name in ("v.sam.neck.1", "v.sam.neck.3"):
        yield need(f"{name}.weight", s.n_neck)
        yield need(f"{name}.bias", s.n_neck)
    yield need("v.sam.net_2.weight", 3, 3, s.n_neck, s.n_middle)
    yield need("v.sam.net_3.weight", 3, 3, s.n_middle, c.n_embd)


def _seen(s: SamConfig, il: int) -> int:
    """Number of patches of each side of the square that a layer sees."""
    return s.window if (il + 1) % WHOLE else s.side


def inputs(c: TowerConfig) -> tuple[dict[str, Tensor], Size]:
    """The inputs of the graph, and t."""
    s = of(c)
    t = G.Sym("n_quarter", 1, s.side // 4).size
    n, area = 16 * t * t, s.window**2
    n_windowed = area * G.Sym("n_windows", 1, s.n_windows).size
    out = {
        "patches": G.input("patches", (n, c.patch_values), "f32"),
        "lines": G.input("lines", (4 * t, s.side), "f32"),
        "seen": G.input("seen", (n, 2 * s.side), "f32"),
        "seen_in_window": G.input("seen_in_window", (area, 2 * s.window), "f32"),
        "apart_in_window": G.input("apart_in_window", (area,), "i32"),
        "apart_0": G.input("apart_0", (4 * t * s.side,), "i32"),
        "apart_1": G.input("apart_1", (4 * t * s.side,), "i32"),
        "share": G.input("share", (4 * t * s.side, 1), "f32"),
        "windowed": G.input("windowed", (n_windowed,), "i32"),
        "kept": G.input("kept", (n_windowed, 1), "f32"),
        "back": G.input("back", (n,), "i32"),
    }
    for i, step in enumerate(_STEPS):
        m = (_TAPS * 4 // step) ** 2 * t * t
        out[f"near_{i}"] = G.input(f"near_{i}", (m,), "i32")
        out[f"inside_{i}"] = G.input(f"inside_{i}", (m, 1), "f32")
    return out, t


def forward(c: TowerConfig, w: Weights, inputs: Mapping[str, Tensor], t: Size) -> Tensor:
    """Rows [n_embd, t t] of patches [3 p p, 16 t t]."""
    s = of(c)
    kernel = G.reshape(w["v.sam.patch_embd.weight"], c.patch_values, s.n_embd)
    x = G.add(G.mul_mat(kernel, inputs["patches"]), w["v.sam.patch_embd.bias"])
    learned = G.cast(w["v.sam.pos_embd.weight"], "f32")
    x = G.add(x, resampled(learned, inputs["lines"]))
    for il in range(s.n_layer):
        layer = Weights(dict(w), f"v.sam.blk.{il}.")
        y = common.layer_norm(layer, "pre_ln", x, EPS)
        if (il + 1) % WHOLE:
            y = G.mul(G.get_rows(y, inputs["windowed"]), inputs["kept"])
            distances = [_in_window(s, layer, axis, inputs) for axis in "hw"]
            n_windows = exact_div(y.ne[1], s.window**2)
            assert n_windows is not None  # the inputs have whole windows
            seen = inputs["seen_in_window"]
            y = _attention(s, layer, y, s.window, n_windows, distances, seen)
            y = G.get_rows(y, inputs["back"])
        else:
            distances = [_in_image(s, layer, axis, inputs, 4 * t) for axis in "hw"]
            y = _attention(s, layer, y, 4 * t, 1, distances, inputs["seen"])
        x = G.add(x, common.linear(layer, "attn.out", y))
        y = common.linear(layer, "mlp.lin1", common.layer_norm(layer, "post_ln", x, EPS))
        x = G.add(x, common.linear(layer, "mlp.lin2", G.gelu_erf(y))).named(f"v.sam.l_out-{il}")
    x = G.mul_mat(G.reshape(w["v.sam.neck.0.weight"], s.n_embd, s.n_neck), x)
    x = common.layer_norm(w, "v.sam.neck.1", x, EPS)
    x = common.layer_norm(w, "v.sam.neck.3", _convolved(w, "v.sam.neck.2", x, inputs, 0), EPS)
    return _convolved(w, "v.sam.net_3", _convolved(w, "v.sam.net_2", x, inputs, 1), inputs, 2)


def resampled(learned: Tensor, lines: Tensor) -> Tensor:
    """Rows [n, m m] of a square of learned rows [n, side, side]; `lines` f32 [side, m] has the
    shares of the learned lines, and of the learned places, in each of m lines."""
    n, side, _, _ = learned.ne
    m = lines.ne[1]
    x = G.reshape(G.cont(G.permute(learned, 1, 0, 2, 3)), side, n * side)
    x = G.reshape(G.mul_mat(x, lines), n, side, m)
    x = G.reshape(G.cont(G.permute(x, 1, 0, 2, 3)), side, n * m)
    # the products' rows: a number of each place of each line
    return G.reshape(G.mul_mat(x, lines), n, m * m)


def _in_window(s: SamConfig, w: Weights, axis: str, inputs: Mapping[str, Tensor]) -> Tensor:
    """The vectors [d, window, window] of the distance of each line of a window to each."""
    x = G.get_rows(w[f"attn.pos_{axis}.weight"], inputs["apart_in_window"])
    return G.reshape(x, x.ne[0], s.window, s.window)


def _in_image(
    s: SamConfig, w: Weights, axis: str, inputs: Mapping[str, Tensor], side: Size
) -> Tensor:
    """The interpolated vectors [d, s.side, side] of the distance of each of `side` lines to each;
    vectors behind the last line are of no use."""
    first, second = (
        G.get_rows(w[f"attn.pos_{axis}.weight"], inputs[f"apart_{i}"]) for i in range(2)
    )
    x = G.add(first, G.mul(G.sub(second, first), inputs["share"]))
    return G.reshape(x, x.ne[0], s.side, side)


def _attention(
    s: SamConfig,
    w: Weights,
    y: Tensor,
    side: Size,
    n_squares: Size,
    distances: list[Tensor],
    seen: Tensor,
) -> Tensor:
    """Attention inside `n_squares` squares of `side` patches y [n_embd, n], square after square;
    `seen` has a 1 at the line and a 1 at the place of each patch of a square."""
    n, n_head, d = y.ne[1], s.n_head, s.n_embd // s.n_head
    area = side * side
    scale = 1 / math.sqrt(d)
    parts = blocks.split_qkv(s, common.linear(w, "attn.qkv", y), n)
    q, k, v = (G.cont(part) for part in parts)
    lines, places = distances
    n_seen = lines.ne[1]
    by_line = G.mul_mat(lines, G.reshape(q, d, n_head * side, side, n_squares))
    by_line = G.reshape(by_line, n_seen, n_head, n)
    turned = G.cont(G.permute(G.reshape(q, d * n_head, side, side, n_squares), 0, 2, 1, 3))
    by_place = G.mul_mat(places, G.reshape(turned, d, n_head * side, side, n_squares))
    by_place = G.reshape(by_place, n_seen * n_head, side, side, n_squares)
    by_place = G.reshape(G.cont(G.permute(by_place, 0, 2, 1, 3)), n_seen, n_head, n)
    q = G.concat(q, G.scale(G.concat(by_line, by_place, 0), 1 / scale), 0)
    picks = G.repeat(G.reshape(seen, 2 * n_seen, 1, area), (2 * n_seen, n_head, area, n_squares))
    k = G.concat(G.reshape(k, d, n_head, area, n_squares), picks, 0)
    q, k, v = (
        G.permute(G.reshape(part, part.ne[0], n_head, area, n_squares), 0, 2, 1, 3)
        for part in (q, k, v)
    )
    return G.reshape(G.flash_attn_ext(q, k, v, scale=scale), s.n_embd, n)


def _convolved(
    w: Weights, name: str, x: Tensor, inputs: Mapping[str, Tensor], number: int
) -> Tensor:
    """The convolution of a number over rows x [n_in, n], with zeros around the image."""
    kernel = w[f"{name}.weight"]
    _, _, n_in, n_out = kernel.ne
    near = G.mul(G.get_rows(x, inputs[f"near_{number}"]), inputs[f"inside_{number}"])
    taps, n = _TAPS**2, exact_div(near.ne[1], _TAPS**2)
    assert n is not None  # the inputs have whole squares
    near = G.reshape(near, taps * n_in, n)
    # the kernel has the places of a square innermost
    kernel = G.cont(G.permute(G.reshape(kernel, taps, n_in, n_out), 1, 0, 2, 3))
    return G.mul_mat(G.reshape(kernel, taps * n_in, n_out), near)


def cubic(n: int, side: int) -> NDArray[np.float32]:
    """The share of each of `side` learned lines in each of `n`, f32 [n, side]: cubics, over all
    that a line covers if there are fewer lines than learned ones."""
    scale = side / n
    wide = max(scale, 1.0)
    at = (np.arange(n)[:, None] + 0.5) * scale
    x = np.abs((np.arange(side) - at + 0.5) / wide)
    near = ((CUBIC + 2) * x - (CUBIC + 3)) * x * x + 1
    far = CUBIC * (((x - 5) * x + 8) * x - 4)
    shares = np.where(x < 1, near, np.where(x < 2, far, 0))
    first = np.maximum((at - 2 * wide + 0.5).astype(np.int64), 0)
    last = np.minimum((at + 2 * wide + 0.5).astype(np.int64), side)
    shares *= (np.arange(side) >= first) & (np.arange(side) < last)
    return np.asarray(shares / shares.sum(axis=1, keepdims=True), np.float32)


def values(c: TowerConfig, pixels: Pixels) -> dict[str, NDArray[Any]]:
    s = of(c)
    side = pixels.shape[0] // s.patch_size
    out: dict[str, NDArray[Any]] = {
        "patches": patches_of(c, pixels), "lines": cubic(side, s.side),
        "seen": _picks(side, s.side), "seen_in_window": _picks(s.window, s.window),
        "apart_in_window": _apart(s.window, s.window).reshape(-1).astype(np.int32),
    }  # fmt: skip
    return out | _distances(s, side) | _windows(s, side) | _near(side)


def _picks(side: int, most: int) -> NDArray[np.float32]:
    """For each patch of a square a 1 at its line and, behind `most`, a 1 at its place."""
    out = np.zeros((side, side, 2, most), np.float32)
    at = np.arange(side)
    out[at, :, 0, at] = 1
    out[:, at, 1, at] = 1
    return out.reshape(side * side, 2 * most)


def _apart(side: int, most: int) -> NDArray[np.int64]:
    """The number of the distance of each of `side` lines to each of `most`."""
    apart: NDArray[np.int64] = np.arange(side)[:, None] - np.arange(most)
    return np.minimum(np.maximum(apart + (side - 1), 0), 2 * side - 2)


def _distances(s: SamConfig, side: int) -> dict[str, NDArray[Any]]:
    """The two learned distances around each distance, and the share of the second."""
    learned, n = 2 * s.side - 1, 2 * side - 1
    at = (np.arange(n, dtype=np.float32) + np.float32(0.5)) * np.float32(learned / n)
    at = np.maximum(at - np.float32(0.5), np.float32(0))
    low = np.minimum(np.floor(at).astype(np.int32), learned - 1)
    apart = _apart(side, s.side).reshape(-1)
    return {
        "apart_0": low[apart],
        "apart_1": np.minimum(low + 1, learned - 1)[apart],
        "share": (at - low)[apart, None].astype(np.float32),
    }


def _windows(s: SamConfig, side: int) -> dict[str, NDArray[Any]]:
    """The patches of each window, those that are outside of the image, and the way back."""
    n = -(-side // s.window)
    number = np.full((n * s.window, n * s.window), -1, np.int64)
    number[:side, :side] = np.arange(side * side).reshape(side, side)
    windowed = number.reshape(n, s.window, n, s.window).transpose(0, 2, 1, 3).reshape(-1)
    inside = windowed >= 0
    back = np.empty(side * side, np.int32)
    back[windowed[inside]] = np.flatnonzero(inside)
    return {
        "windowed": np.where(inside, windowed, 0).astype(np.int32),
        "kept": inside.astype(np.float32)[:, None],
        "back": back,
    }


def _near(side: int) -> dict[str, NDArray[Any]]:
    """The rows around each row of a convolution's outcome, and which of them are in the image."""
    out: dict[str, NDArray[Any]] = {}
    for i, step in enumerate(_STEPS):
        n, stride = side // step, min(step, 2)
        m = n * stride
        at = np.arange(n)[:, None] * stride + np.arange(_TAPS) - _TAPS // 2
        y, x = at[:, None, :, None], at[None, :, None, :]
        inside = (y >= 0) & (y < m) & (x >= 0) & (x < m)
        rows = np.clip(y, 0, m - 1) * m + np.clip(x, 0, m - 1)
        out[f"near_{i}"] = rows.reshape(-1).astype(np.int32)
        out[f"inside_{i}"] = inside.reshape(-1, 1).astype(np.float32)
    return out
