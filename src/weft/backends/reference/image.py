"""Resampling, and the windows and relative positions of windowed attention (SAM)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.backends.reference.kernel import Call, kernel
from weft.graph.ops import ScaleMode, UpscaleParams, WinParams

F64 = NDArray[np.float64]
Array = NDArray[Any]
Weights: TypeAlias = Callable[[int, int, bool], F64]
"""Weights `[out, in]` of one dimension, of its two sizes and whether corners are aligned."""


def _ratio(n_out: int, n_in: int, align: bool) -> np.float32:
    """Output samples per input sample; `align` puts the corner samples on each other."""
    if align and n_out > 1 and n_in > 1:
        return np.float32(n_out - 1) / np.float32(n_in - 1)
    return np.float32(n_out) / np.float32(n_in)


def nearest(n_out: int, n_in: int, align: bool) -> F64:
    """The sample at or before each place."""
    # in float32 as in ggml, because rounding decides which neighbour an edge sample takes
    source = np.arange(n_out, dtype=np.float32) / _ratio(n_out, n_in, align)
    return np.eye(n_in)[np.clip(source.astype(np.intp), 0, n_in - 1)]


def _centres(n_out: int, n_in: int, align: bool) -> tuple[NDArray[np.float32], np.float32]:
    """The positions of output samples on the input, without the half pixel, and that half pixel."""
    half = np.float32(0 if align else 0.5)
    return (np.arange(n_out, dtype=np.float32) + half) / _ratio(n_out, n_in, align), half


def linear(n_out: int, n_in: int, align: bool) -> F64:
    """The two samples around each place; the edge repeats."""
    at, half = _centres(n_out, n_in, align)
    at = at - half
    low = np.clip(np.floor(at).astype(np.intp), 0, n_in - 1)
    high = np.clip(np.floor(at).astype(np.intp) + 1, 0, n_in - 1)
    part = np.clip(at - low, 0, 1).astype(np.float64)[:, None]
    weights: F64 = np.eye(n_in)[low] * (1 - part) + np.eye(n_in)[high] * part
    return weights


def linear_antialiased(n_out: int, n_in: int, align: bool) -> F64:
    """A triangle as wide as the reduction, and at least one input sample wide on each side."""
    at, half = _centres(n_out, n_in, align)
    support = np.maximum(np.float32(1), 1 / _ratio(n_out, n_in, align))
    first = np.maximum((at - support + half).astype(np.int64), 0)[:, None]
    last = np.minimum((at + support + half).astype(np.int64), n_in)[:, None]
    sample = np.arange(n_in)
    distance = np.abs(sample - at[:, None].astype(np.float64) + float(half)) / float(support)
    weights = np.where((sample >= first) & (sample < last), np.maximum(1 - distance, 0), 0)
    total = weights.sum(1, keepdims=True)
    return weights / np.where(total > 0, total, 1)


def cubic(n_out: int, n_in: int, align: bool) -> F64:
    """Keys' kernel with a = -0.75; samples outside repeat the edge."""
    a = -0.75
    at, half = _centres(n_out, n_in, align)
    at = at - half
    low = np.floor(at).astype(np.intp)
    part = (at - low).astype(np.float64)
    weights = np.zeros((n_out, n_in))
    for tap in range(-1, 3):
        x = np.abs(part - tap)
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((x - 5) * x + 8) * x * a - 4 * a
        index = np.clip(low + tap, 0, n_in - 1)
        np.add.at(weights, (np.arange(n_out), index), np.where(x <= 1, near, far))
    return weights


@kernel("UPSCALE")
def upscale(call: Call) -> None:
    """src0 resampled to the destination's sizes; dimensions 2 and 3 always by nearest sample."""
    p: UpscaleParams = call.params
    smooth = {
        ScaleMode.NEAREST: nearest,
        ScaleMode.BILINEAR: linear_antialiased if p.antialias else linear,
        ScaleMode.BICUBIC: cubic,
    }[p.mode]
    call.dst.write(upscaled(call.f64(0), call.dst.shape, smooth, p.align_corners))


def upscaled(x: Array, shape: Sequence[int], smooth: Weights, align_corners: bool) -> Array:
    """`x` resampled to `shape` (outermost first): the two innermost dimensions as `smooth` says.

    Each dimension is a matrix `[out, in]` of weights, so interpolation is two matrix products."""
    for axis in range(4):
        weigh = smooth if axis >= 2 else nearest
        weights = weigh(shape[axis], x.shape[axis], align_corners and axis >= 2)
        x = np.moveaxis(np.tensordot(weights, x, (1, axis)), 0, axis)
    return x


@kernel("WIN_PART")
def win_part(call: Call) -> None:
    """An image `[h, w, c]` cut into windows `[n, w, w, c]`, zeros beyond its edge."""
    p: WinParams = call.params
    x = call.read(0)[0]
    h, w, c = x.shape
    rows, columns = -(-h // p.w), -(-w // p.w)
    x = np.pad(x, ((0, rows * p.w - h), (0, columns * p.w - w), (0, 0)))
    call.dst.write(x.reshape(rows, p.w, columns, p.w, c).swapaxes(1, 2).reshape(call.dst.shape))


@kernel("WIN_UNPART")
def win_unpart(call: Call) -> None:
    """The inverse of WIN_PART: windows back to an image of the destination's sizes."""
    p: WinParams = call.params
    _, h, w, c = call.dst.shape
    rows, columns = -(-h // p.w), -(-w // p.w)
    x = call.read(0).reshape(rows, columns, p.w, p.w, c).swapaxes(1, 2)
    call.dst.write(x.reshape(1, rows * p.w, columns * p.w, c)[:, :h, :w])


@kernel("GET_REL_POS")
def get_rel_pos(call: Call) -> None:
    """dst[q, k] = src0[q - k + n - 1]: a row per pair of positions from a table of distances."""
    q, k = np.ogrid[: call.dst.ne[2], : call.dst.ne[1]]
    a = call.view(0)
    call.dst.write_like(a, a.units[0, 0][call.dst.ne[1] - 1 - k + q][None])
