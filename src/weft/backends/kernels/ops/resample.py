"""Resampling: a table for each dimension holds the places that each output reads, and their
weights.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.backends.kernels.launch import Call, Launch, Table, i32
from weft.backends.kernels.ops.table import family, floats
from weft.graph.ops import InterpolateMode, ScaleMode

Array = NDArray[Any]
Taps = tuple[Array, Array]
"""Places and weights, [out, taps] each. Places are computed in float32, as in both libraries,
because rounding decides which neighbour an output on an edge takes."""

F32 = np.float32


def _resampled(call: Call, taps: list[Taps]) -> list[Launch]:
    s, d = call.view(0), call.dst
    tables, counts = [], []
    for places, weights in taps:
        entries = np.empty((*places.shape, 2), np.int32)
        entries[..., 0] = places
        entries[..., 1] = weights.astype(np.float32).view(np.int32)
        tables.append(Table(entries.tobytes()))
        counts.append(places.shape[1])
    args = (s, d, *tables, i32(*counts))
    return [Launch("window.cl", call.all_f32(s, d), "resample", args, *call.elements(d))]


def _one(places: Array) -> Taps:
    """A single place for each output."""
    return places.astype(np.int64)[:, None], np.ones((len(places), 1))


def _between(place: Array, size: int) -> Taps:
    """The two samples around each place, weighted by distance."""
    low = np.clip(np.floor(place).astype(np.int64), 0, size - 1)
    high = np.clip(np.floor(place).astype(np.int64) + 1, 0, size - 1)
    part = np.clip(place - low.astype(F32), 0, 1).astype(np.float64)
    return np.stack([low, high], 1), np.stack([1 - part, part], 1)


def _keys(place: Array, size: int) -> Taps:
    """Keys' cubic with a = -0.75 over four samples; the edge repeats (IEEE ASSP-29, 1981)."""
    a = -0.75
    low = np.floor(place)
    distance = np.abs((place - low).astype(np.float64)[:, None] - np.arange(-1, 3))
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = a * (((distance - 5) * distance + 8) * distance - 4)
    places = np.clip(low.astype(np.int64)[:, None] + np.arange(-1, 3), 0, size - 1)
    return places, np.where(distance <= 1, near, far)


# ---- ggml's --------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _upscale_taps(size: int, out: int, mode: ScaleMode, align: bool, antialias: bool) -> Taps:
    aligned = align and out > 1 and size > 1
    ratio = F32(out - 1) / F32(size - 1) if aligned else F32(out) / F32(size)
    outs = np.arange(out, dtype=F32)
    if mode is ScaleMode.NEAREST:
        return _one(np.clip((outs / ratio).astype(np.int64), 0, size - 1))
    half = F32(0 if align else 0.5)
    centre = (outs + half) / ratio
    if mode is ScaleMode.BICUBIC:
        return _keys(centre - half, size)
    if not antialias:
        return _between(centre - half, size)
    # a triangle as wide as the reduction
    support = np.maximum(F32(1), 1 / ratio)
    first = np.maximum((centre - support + half).astype(np.int64), 0)
    last = np.minimum((centre + support + half).astype(np.int64), size)
    places = first[:, None] + np.arange(max(1, int((last - first).max())))
    off = np.abs(places - centre[:, None].astype(np.float64) + float(half)) / float(support)
    weights = np.where(places < last[:, None], np.maximum(1 - off, 0), 0)
    total = weights.sum(1, keepdims=True)
    return np.minimum(places, size - 1), weights / np.where(total > 0, total, 1)


_UPSCALE = {
    InterpolateMode.UPSCALE_NEAREST: (ScaleMode.NEAREST, False),
    InterpolateMode.UPSCALE_LINEAR: (ScaleMode.BILINEAR, False),
    InterpolateMode.UPSCALE_CUBIC: (ScaleMode.BICUBIC, False),
    InterpolateMode.UPSCALE_TRIANGLE: (ScaleMode.BILINEAR, True),
}
"""ggml's modes, and whether triangles are as wide as the shrinking."""


# ---- PyTorch's -----------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _interpolate_taps(
    size: int, out: int, mode: InterpolateMode, align: bool, scale: float
) -> Taps:
    if align:
        step = F32(size - 1) / F32(out - 1) if out > 1 else F32(0)
    else:
        step = F32(1 / scale) if scale > 0 else F32(size) / F32(out)
    outs = np.arange(out, dtype=F32)
    if mode in (InterpolateMode.NEAREST, InterpolateMode.NEAREST_EXACT):
        shift = F32(0.5 if mode is InterpolateMode.NEAREST_EXACT else 0)
        return _one(np.minimum(np.floor((outs + shift) * step).astype(np.int64), size - 1))
    place = outs * step if align else step * (outs + F32(0.5)) - F32(0.5)
    if mode is InterpolateMode.CUBIC:
        return _keys(place, size)
    return _between(np.maximum(place, F32(0)), size)


@family("INTERPOLATE", refuse=floats(0))
def _interpolate(call: Call) -> list[Launch]:
    p, ne, out = call.params, call.view(0).ne, call.dst.ne
    if p.mode in _UPSCALE:
        mode, triangle = _UPSCALE[p.mode]
        taps = [
            _upscale_taps(ne[d], out[d], mode, p.align_corners, triangle)
            if d < 2
            else _upscale_taps(ne[d], out[d], ScaleMode.NEAREST, False, False)
            for d in range(4)
        ]
        return _resampled(call, taps)
    scales = (p.scale_w, p.scale_h, p.scale_d)
    taps = [
        _interpolate_taps(ne[d], out[d], p.mode, p.align_corners, scales[d])
        if d < p.dims
        else _one(np.arange(out[d]))
        for d in range(4)
    ]
    return _resampled(call, taps)
