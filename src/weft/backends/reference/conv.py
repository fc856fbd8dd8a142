"""Convolution and pooling, all of them by collecting the patches that a kernel covers.

Arrays are in NumPy order, so spatial sizes read (depth,) height, width; ggml's parameter tuples are
(width, height, depth).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.backends.reference.kernel import Call, kernel
from weft.graph import ops as g

F64 = NDArray[np.float64]


def patches(
    x: F64,
    kernel_size: Sequence[int],
    out_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    outside: float = 0.0,
) -> F64:
    """The input elements of each output position: `[..., *spatial]` -> `[..., *out_size,
    *kernel_size]`.

    Output o meets tap k at input o * stride + k * dilation - padding; outside the input the value
    is `outside`."""
    n = len(kernel_size)
    lead = x.ndim - n
    for d in reversed(range(n)):
        axis = lead + d
        o, k = np.ogrid[: out_size[d], : kernel_size[d]]
        index = o * stride[d] + k * dilation[d] - padding[d]
        inside = (index >= 0) & (index < x.shape[axis])
        # the axis becomes two, output and tap
        covered = x.take(np.where(inside, index, 0), axis)
        x = np.where(
            inside.reshape(inside.shape + (1,) * (covered.ndim - axis - 2)), covered, outside
        )
    outputs, taps = range(lead, lead + 2 * n, 2), range(lead + 1, lead + 2 * n, 2)
    return x.transpose(*range(lead), *outputs, *taps)


def _spread(parts: F64, stride: Sequence[int]) -> F64:
    """Adds up overlapping windows: `[..., *spatial, *kernel]` -> `[..., *full]`.

    The reverse of `patches`: tap k of position i lands on i * stride + k."""
    n = len(stride)
    lead = parts.ndim - 2 * n
    size, taps = parts.shape[lead : lead + n], parts.shape[lead + n :]
    out = np.zeros(
        parts.shape[:lead]
        + tuple((m - 1) * s + k for m, s, k in zip(size, stride, taps, strict=True))
    )
    for tap in np.ndindex(*taps):
        at: list[Any] = [
            slice(k, k + (m - 1) * s + 1, s) for k, m, s in zip(tap, size, stride, strict=True)
        ]
        out[..., *at] += parts[..., *tap]
    return out


@kernel("IM2COL")
def im2col(call: Call) -> None:
    """The patches that a convolution with kernel src0 takes from src1, one row per output.

    1-D: data `[n, channel, w]` to `[n, ow, channel * kw]`; 2-D: data `[n, channel, h, w]` to
    `[n, oh, ow, channel * kh * kw]`."""
    p: g.Im2ColParams = call.params
    n = 2 if p.is_2d else 1
    x = call.f64(1) if p.is_2d else call.f64(1)[0]
    kernel_size = call.view(0).shape[4 - n :]
    out_size = call.dst.shape[1:3] if p.is_2d else call.dst.shape[2:3]
    windows = patches(
        x, kernel_size, out_size, p.stride[:n][::-1], p.padding[:n][::-1], p.dilation[:n][::-1]
    )
    call.dst.write(np.moveaxis(windows, 1, n + 1).reshape(call.dst.shape))


def _patches_3d(
    x: F64,
    channels: int,
    kernel_size: Sequence[int],
    out: Sequence[int],
    p: g.Im2Col3dParams | g.Conv3dParams,
) -> F64:
    """`[n * channel, d, h, w]` -> `[n, od, oh, ow, channel, kd, kh, kw]`."""
    x = x.reshape(-1, channels, *x.shape[1:])
    windows = patches(x, kernel_size, out, p.stride[::-1], p.padding[::-1], p.dilation[::-1])
    return np.moveaxis(windows, 1, 4)


@kernel("IM2COL_3D")
def im2col_3d(call: Call) -> None:
    """Data `[n * channel, d, h, w]` to `[n * od, oh, ow, channel * kd * kh * kw]`."""
    p: g.Im2Col3dParams = call.params
    n = call.view(1).shape[0] // p.channels
    out = (call.dst.shape[0] // n, *call.dst.shape[1:3])
    windows = _patches_3d(call.f64(1), p.channels, call.view(0).shape[1:], out, p)
    call.dst.write(windows.reshape(call.dst.shape))


def _patches_2d(call: Call) -> F64:
    """`[n, channel, h, w]` (src1) -> `[n, channel, oh, ow, kh, kw]`."""
    p: g.ConvParams = call.params
    return patches(
        call.f64(1),
        call.view(0).shape[2:],
        call.dst.shape[2:],
        p.stride[::-1],
        p.padding[::-1],
        p.dilation[::-1],
    )


@kernel("CONV_2D")
def conv_2d(call: Call) -> None:
    """Kernel `[out, in, kh, kw]` over data `[n, in, h, w]`: `[n, out, oh, ow]`."""
    out = np.tensordot(_patches_2d(call), call.f64(0), ([1, 4, 5], [1, 2, 3]))
    call.dst.write(np.moveaxis(out, -1, 1))


@kernel("CONV_2D_DW")
def conv_2d_dw(call: Call) -> None:
    """Depthwise: kernel `[channel, 1, kh, kw]` over data `[n, channel, h, w]`."""
    call.dst.write(np.einsum("nchwkl,ckl->nchw", _patches_2d(call), call.f64(0)[:, 0]))


@kernel("CONV_3D")
def conv_3d(call: Call) -> None:
    """Kernel `[out * in, kd, kh, kw]` over data `[n * in, d, h, w]`: `[n * out, od, oh, ow]`."""
    p: g.Conv3dParams = call.params
    w = call.f64(0)
    w = w.reshape(p.n_channels_out, p.n_channels, *w.shape[1:])
    windows = _patches_3d(call.f64(1), p.n_channels, w.shape[2:], call.dst.shape[1:], p)
    out = np.tensordot(windows, w, ([4, 5, 6, 7], [1, 2, 3, 4]))
    call.dst.write(np.moveaxis(out, -1, 1).reshape(call.dst.shape))


@kernel("CONV_TRANSPOSE_1D")
def conv_transpose_1d(call: Call) -> None:
    """Kernel `[in, out, k]`, data `[in, w]`: `[out, (w - 1) * stride + k]`."""
    p: g.ConvTranspose1dParams = call.params
    if p.padding != 0 or p.dilation != 1:
        raise ValueError("only padding 0 and dilation 1 are defined")
    parts = np.einsum("bil,iok->bolk", call.f64(1)[0], call.f64(0)[0])
    call.dst.write(_spread(parts, (p.stride,)))


@kernel("CONV_TRANSPOSE_2D")
def conv_transpose_2d(call: Call) -> None:
    """Kernel `[in, out, kh, kw]`, data `[n, in, h, w]`: `[n, out, ...]`, one stride for both."""
    p: g.ConvTranspose2dParams = call.params
    parts = np.einsum("nihw,iokl->nohwkl", call.f64(1), call.f64(0))
    call.dst.write(_spread(parts, (p.stride, p.stride)))


@kernel("COL2IM_1D")
def col2im_1d(call: Call) -> None:
    """Adds up columns `[w, out * k]` into a signal `[out, (w - 1) * stride + k - 2 * padding]`."""
    p: g.Col2ImParams = call.params
    columns = call.f64(0)[0, 0]
    parts = columns.reshape(columns.shape[0], p.oc, -1).swapaxes(0, 1)
    call.dst.write(_spread(parts, (p.stride,))[:, p.padding : p.padding + call.dst.ne[0]])


_LOWEST = float(np.finfo(np.float32).min)
"""The maximum of an empty window in ggml."""


@kernel("POOL_1D")
def pool_1d(call: Call) -> None:
    """The maximum or the mean of each window along a row; the mean is over the taps inside the
    row."""
    p: g.Pool1dParams = call.params
    x = call.f64(0)
    window = ((p.k0,), (call.dst.ne[0],), (p.s0,), (p.p0,), (1,))
    if p.op is g.PoolOp.MAX:
        call.dst.write(patches(x, *window, outside=_LOWEST).max(-1, initial=_LOWEST))
    else:
        count = patches(np.ones(x.shape[-1]), *window).sum(-1)
        call.dst.write(patches(x, *window).sum(-1) / np.maximum(count, 1))


@kernel("POOL_2D")
def pool_2d(call: Call) -> None:
    """The maximum or the mean of each window; the mean counts the padding as zeros."""
    p: g.Pool2dParams = call.params
    x = call.f64(0)
    window = ((p.k1, p.k0), call.dst.shape[2:], (p.s1, p.s0), (p.p1, p.p0), (1, 1))
    if p.op is g.PoolOp.MAX:
        call.dst.write(patches(x, *window, outside=_LOWEST).max((-2, -1), initial=_LOWEST))
    else:
        call.dst.write(patches(x, *window).sum((-2, -1)) / (p.k0 * p.k1))
