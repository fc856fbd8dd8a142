"""Convolution, pooling and interpolation in 1 to 3 dimensions, as PyTorch defines them.

Arrays are in NumPy order (depth, height, width), parameter tuples innermost first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.backends.reference import image
from weft.backends.reference.conv import patches
from weft.backends.reference.elementwise import activated
from weft.backends.reference.kernel import Call, kernel
from weft.backends.reference.tensor import values
from weft.graph import ops as g

F64 = NDArray[np.float64]
Array = NDArray[Any]


# -- convolution -----------------------------------------------------------------------------------


@kernel("CONV_ND")
def conv_nd(call: Call) -> None:
    """src0 convolved with src1, and src2 added to each channel."""
    p: g.ConvNdParams = call.params
    n = p.dims
    x, w = call.f64(0), call.f64(1)
    if n == 3:
        x = x.reshape(-1, p.channels, *x.shape[1:])
        inner = p.channels if p.transposed else p.channels // p.groups
        shape = (inner, -1) if p.transposed else (-1, inner)
        w = w.reshape(*shape, *w.shape[1:])
    else:
        # drop the sizes of 1 in front
        x, w = x.reshape(x.shape[2 - n :]), w.reshape(w.shape[2 - n :])
    run = _transposed if p.transposed else _convolved
    # axis 0 of either kind of kernels has the elements of a group together
    parts = zip(np.split(x, p.groups, 1), np.split(w, p.groups, 0), strict=True)
    y = np.concatenate([run(a, b, p) for a, b in parts], 1)
    bias = call.optional(2)
    if bias is not None:
        y = y + bias.f64().reshape(1, -1, *[1] * n)
    call.dst.write(y.reshape(call.dst.shape))


@kernel("CONV_2D_LAST")
def conv_2d_last(call: Call) -> None:
    """A function of src0 * src4, convolved with src1, plus src2 for each channel, plus src3."""
    p: g.ConvLastParams = call.params
    # [batch, h, w, channels] and [h, w, in, out]: channels become dimension 1 as in CONV_ND
    x, w = np.moveaxis(call.f64(0), 3, 1), call.f64(1).transpose(3, 2, 0, 1)
    bias, residual, scale = call.optional(2), call.optional(3), call.optional(4)
    if scale is not None:
        x = x * np.moveaxis(scale.f64(), 3, 1)
    sides = list(zip(p.padding, p.padding_after, strict=True))[::-1]
    x = np.pad(x, [(0, 0), (0, 0), *sides])
    planes = g.ConvNdParams(
        2, x.shape[1], p.groups, stride=(*p.stride, 1), dilation=(*p.dilation, 1)
    )
    parts = zip(np.split(x, p.groups, 1), np.split(w, p.groups, 0), strict=True)
    y = np.concatenate([_convolved(a, b, planes) for a, b in parts], 1)
    y = np.moveaxis(y, 1, 3)
    if bias is not None:
        y = y + bias.f64().reshape(-1)
    if residual is not None:
        y = y + residual.f64()
    call.dst.write(activated(y, p.function, p.low, p.high))


def _convolved(x: F64, w: F64, p: g.ConvNdParams) -> F64:
    n = p.dims
    stride, padding, dilation = (t[:n][::-1] for t in (p.stride, p.padding, p.dilation))
    out = [
        (x.shape[2 + d] + 2 * padding[d] - dilation[d] * (w.shape[2 + d] - 1) - 1) // stride[d] + 1
        for d in range(n)
    ]
    windows = patches(x, w.shape[2:], out, stride, padding, dilation)
    taps = tuple(range(2 + n, 2 + 2 * n))
    # [batch, in, out..., taps...] with [out, in, taps...]
    y = np.tensordot(windows, w, ((1, *taps), tuple(range(1, 2 + n))))
    return np.moveaxis(y, -1, 1)


def _transposed(x: F64, w: F64, p: g.ConvNdParams) -> F64:
    n = p.dims
    stride, padding, dilation, more = (
        t[:n][::-1] for t in (p.stride, p.padding, p.dilation, p.output_padding)
    )
    # every input element adds its kernel to the result before cropping
    full = [
        (x.shape[2 + d] - 1) * stride[d] + dilation[d] * (w.shape[2 + d] - 1) + 1 + more[d]
        for d in range(n)
    ]
    y = np.zeros((x.shape[0], w.shape[1], *full))
    for tap in np.ndindex(*w.shape[2:]):
        at: list[Any] = []
        for d, k in enumerate(tap):
            first = k * dilation[d]
            at.append(slice(first, first + (x.shape[2 + d] - 1) * stride[d] + 1, stride[d]))
        part = np.tensordot(x, w[..., *tap], ((1,), (0,)))
        y[..., *at] += np.moveaxis(part, -1, 1)
    cropped: list[Any] = [slice(padding[d], full[d] - padding[d]) for d in range(n)]
    cut: F64 = y[..., *cropped]
    return cut


# -- pooling ---------------------------------------------------------------------------------------


def _windows(p: g.PoolNdParams, d: int, size: int, out: int) -> list[tuple[Sequence[int], int]]:
    """The window of each output along dimension `d`: its places inside the data, and its length
    with padding."""
    windows: list[tuple[Sequence[int], int]] = []
    if p.adaptive:
        for o in range(out):
            first, last = o * size // out, -(-(o + 1) * size // out)
            windows.append((range(first, last), last - first))
        return windows
    k, s, pad, gap = p.kernel[d], p.stride[d], p.padding[d], p.dilation[d]
    for o in range(out):
        first = o * s - pad
        last = min(first + gap * (k - 1) + 1, size + pad)
        places = [i for i in range(first, first + gap * k, gap) if 0 <= i < size]
        windows.append((places, last - first))
    return windows


@kernel("POOL_ND")
def pool_nd(call: Call) -> None:
    """The mean or the largest element of windows, or the place of the largest."""
    p: g.PoolNdParams = call.params
    x, dst = call.view(0), call.dst
    sizes = [*x.ne[: p.dims], 1, 1, 1][:3]
    outs = [*dst.ne[: p.dims], 1, 1, 1][:3]
    data = values(call, 0).reshape(-1, *sizes[::-1])
    out = np.zeros((data.shape[0], *outs[::-1]), data.dtype)
    whole: list[tuple[Sequence[int], int]] = [(range(1), 1)]
    axes = [_windows(p, d, sizes[d], outs[d]) if d < p.dims else whole for d in range(3)]
    for z, (places_d, length_d) in enumerate(axes[2]):
        for y, (places_h, length_h) in enumerate(axes[1]):
            for w, (places_w, length_w) in enumerate(axes[0]):
                grid = np.ix_(range(data.shape[0]), places_d, places_h, places_w)
                window = data[grid].reshape(data.shape[0], -1)
                if p.kind is g.PoolKind.AVG:
                    counted = length_d * length_h * length_w if p.count_include_pad else 0
                    counted = p.divisor or counted or window.shape[1]
                    out[:, z, y, w] = window.sum(1) / counted
                elif p.kind is g.PoolKind.MAX:
                    out[:, z, y, w] = window.max(1)
                elif p.kind is g.PoolKind.MAX_FINITE:
                    out[:, z, y, w] = window.max(1, initial=np.finfo(np.float32).min)
                else:
                    plane = np.ravel_multi_index(
                        np.ix_(places_d, places_h, places_w), sizes[::-1]
                    ).reshape(-1)
                    out[:, z, y, w] = plane[_last_nan_or_first_max(window)]
    dst.write(out.reshape(dst.shape))


def _last_nan_or_first_max(window: Array) -> Array:
    n = window.shape[1]
    is_nan = np.isnan(window) if window.dtype.kind == "f" else np.zeros(window.shape, bool)
    last = n - 1 - is_nan[:, ::-1].argmax(1)
    place: Array = np.where(is_nan.any(1), last, window.argmax(1))
    return place


# -- interpolation ---------------------------------------------------------------------------------

Taps = tuple[Array, Array]
"""The places that each output reads, and their weights: both [out, taps]."""

F32 = np.float32


def _step(size: int, out: int, scale: float, align_corners: bool) -> np.float32:
    """The distance of samples in the input, in float32 as PyTorch computes it."""
    if align_corners:
        return F32(size - 1) / F32(out - 1) if out > 1 else F32(0)
    return F32(1 / scale) if scale > 0 else F32(size) / F32(out)


def _nearest(size: int, out: int, step: np.float32, exact: bool) -> Taps:
    o = np.arange(out, dtype=F32)
    at = np.floor((o + F32(0.5)) * step if exact else o * step).astype(np.int64)
    return np.minimum(at, size - 1)[:, None], np.ones((out, 1))


def _linear(size: int, out: int, step: np.float32, align_corners: bool) -> Taps:
    o = np.arange(out, dtype=F32)
    place = o * step if align_corners else np.maximum(step * (o + F32(0.5)) - F32(0.5), F32(0))
    low = np.minimum(place.astype(np.int64), size - 1)
    high = np.minimum(low + 1, size - 1)
    part = np.clip(place - low.astype(F32), 0, 1)
    return np.stack([low, high], 1), np.stack([1 - part, part], 1).astype(np.float64)


def _cubic(size: int, out: int, step: np.float32, align_corners: bool) -> Taps:
    o = np.arange(out, dtype=F32)
    place = o * step if align_corners else step * (o + F32(0.5)) - F32(0.5)
    low = np.floor(place)
    t = (place - low).astype(np.float64)
    a = -0.75

    def near(x: Array) -> Array:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: Array) -> Array:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    weights = np.stack([far(t + 1), near(t), near(1 - t), far(2 - t)], 1)
    places = low.astype(np.int64)[:, None] + np.arange(-1, 3)
    return np.clip(places, 0, size - 1), weights


_UPSCALE = {
    g.InterpolateMode.UPSCALE_NEAREST: image.nearest,
    g.InterpolateMode.UPSCALE_LINEAR: image.linear,
    g.InterpolateMode.UPSCALE_CUBIC: image.cubic,
    g.InterpolateMode.UPSCALE_TRIANGLE: image.linear_antialiased,
}


@kernel("INTERPOLATE")
def interpolate(call: Call) -> None:
    """src0 resampled, one dimension after the other."""
    p: g.InterpolateParams = call.params
    x = call.f64(0)
    if p.mode in _UPSCALE:
        call.dst.write(image.upscaled(x, call.dst.shape, _UPSCALE[p.mode], p.align_corners))
        return
    scales: Sequence[float] = (p.scale_w, p.scale_h, p.scale_d)
    smooth: dict[g.InterpolateMode, Callable[[int, int, np.float32, bool], Taps]] = {
        g.InterpolateMode.LINEAR: _linear,
        g.InterpolateMode.CUBIC: _cubic,
    }
    for d in range(p.dims):
        size, out = call.view(0).ne[d], call.dst.ne[d]
        step = _step(size, out, scales[d], p.align_corners)
        if p.mode in smooth:
            places, weights = smooth[p.mode](size, out, step, p.align_corners)
        else:
            places, weights = _nearest(size, out, step, p.mode is g.InterpolateMode.NEAREST_EXACT)
        axis = 3 - d
        samples = x.take(places, axis)  # the axis becomes [out, taps]
        shape = [1] * samples.ndim
        shape[axis], shape[axis + 1] = weights.shape
        x = (samples * weights.reshape(shape)).sum(axis + 1)
    call.dst.write(x)
