"""Convolution, pooling and interpolation in one to three dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from weft import graph as g
from weft.frontends.fx.builder import Builder, reshaped_to
from weft.frontends.fx.call import Call
from weft.frontends.fx.dtypes import is_float
from weft.frontends.fx.layout import Value, channels_last, inverse, product
from weft.frontends.fx.ops.reduce import reduced
from weft.frontends.fx.ops.shape import reshaped, unsqueezed
from weft.frontends.fx.registry import visitor
from weft.frontends.fx.sizes import is_static
from weft.graph.size import Size
from weft.graph.tensor import Tensor

aten = torch.ops.aten


def with_channels(v: Value, dims: int) -> Value | None:
    """A value with its channels last in memory, its dimensions in that order; None for other
    values.

    For ops over `dims` dimensions the channels are one more dimension."""
    last = channels_last(v.rank)
    if v.rank != dims + 2 or dims > 2 or v.reading_order != last or v.is_contiguous:
        return None
    return v.permuted(last)


def image(b: Builder, v: Value, dims: int) -> Tensor:
    """The last `dims` dimensions, then channels and batch, which are merged behind three
    dimensions.

    A value without a batch gets none."""
    lead = v.shape[: v.rank - dims]
    inside = v.shape[v.rank - dims :][::-1]
    outside: Sequence[Size] = (product(lead),)
    if dims < 3 and len(lead) > 1:
        outside = (lead[-1], product(lead[:-1]))
    return reshaped_to(b.dense(v), (*inside, *outside))


def spread(values: Sequence[int], dims: int, default: int) -> tuple[int, ...]:
    """A number for each dimension, innermost first; one number stands for all."""
    numbers = list(values) or [default]
    return tuple((numbers * dims if len(numbers) == 1 else numbers)[::-1])


# -- convolution -----------------------------------------------------------------------------------


def _conv_rules(call: Call) -> str | None:
    x, w = call.fake("input"), call.fake("weight")
    dims = w.dim() - 2
    if not 1 <= dims <= 3:
        return f"a convolution over {dims} dimensions"
    if x.dim() not in (dims + 1, dims + 2):
        return f"data of {x.dim()} dimensions for a kernel of {w.dim()}"
    if not is_float(x.dtype):
        return "convolutions are of floats"
    if not is_static(w.shape) or not is_static(x.shape[x.dim() - dims - 1]):
        return "kernels and channels of dynamic sizes"
    return None


@visitor(aten.convolution.default, check=_conv_rules)
def convolution(b: Builder, call: Call) -> Value:
    """One to three dimensions, with groups, dilation and transposition."""
    bias = call.value("bias") if call.has("bias") else None
    return convolved(b, call, call.value("weight"), bias)


def convolved(b: Builder, call: Call, w: Value, bias: Value | None) -> Value:
    """The result of a convolution call with these weights."""
    if call.node in b.channels_last:
        return _convolved_last(b, call, w, bias)
    x = call.value("input")
    dims = w.rank - 2
    weight = b.dense(w)
    kernel = (
        reshaped_to(weight, (*w.shape[2:][::-1], w.shape[0] * w.shape[1]))
        if dims == 3
        else reshaped_to(weight, w.shape[::-1])
    )
    channels = x.shape[x.rank - dims - 1]
    assert isinstance(channels, int)
    result = g.conv_nd(
        image(b, x, dims),
        kernel,
        None if bias is None else b.flat(bias),
        dims=dims,
        channels=channels,
        groups=int(call.raw("groups", 1)),
        stride=spread(call.numbers("stride"), dims, 1),
        padding=spread(call.numbers("padding"), dims, 0),
        dilation=spread(call.numbers("dilation"), dims, 1),
        transposed=bool(call.raw("transposed", False)),
        output_padding=spread(call.numbers("output_padding"), dims, 0),
    )
    return b.result(call, result)


def _convolved_last(b: Builder, call: Call, w: Value, bias: Value | None) -> Value:
    """A convolution with channels innermost; one dimension is an image of one row."""
    x, shape = call.value("input"), call.shape()
    dims = w.rank - 2
    if dims == 1:
        x, w, shape = unsqueezed(x, 2), unsqueezed(w, 2), (*shape[:2], 1, shape[2])
    if call.raw("transposed", False):
        return reshaped(b, _spread_last(b, call, x, w, bias), call.shape())

    def pair(name: str, default: int) -> tuple[int, ...]:
        return (*spread(call.numbers(name), dims, default), default)[:2]

    result = g.conv_2d_last(
        b.rows(x.permuted((0, 2, 3, 1))),
        b.dense(w.permuted((2, 3, 1, 0))),
        None if bias is None else b.flat(bias),
        groups=int(call.raw("groups", 1)),
        stride=pair("stride", 1),
        padding=pair("padding", 0),
        dilation=pair("dilation", 1),
    )
    lies = Value.whole(result, call.out.dtype, [shape[d] for d in (0, 2, 3, 1)])
    return reshaped(b, lies.permuted((0, 3, 1, 2)), call.shape())


def _spread_last(b: Builder, call: Call, x: Value, w: Value, bias: Value | None) -> Value:
    """A transposed convolution of two dimensions that makes a block of outputs of each pixel: all
    blocks by a kernel of one tap, then their rows one behind another."""
    (channels, out, high, wide), (n, _, h, width) = w.shape, x.shape
    kernel = reshaped_to(b.dense(w.permuted((0, 2, 3, 1))), (high * wide * out, channels))
    array = None if bias is None else b.array(bias)
    row = None
    if array is not None:
        times = high * wide
        assert isinstance(times, int)  # sizes of kernels are known
        row = b.constant(np.tile(array, times), torch.float32).tensor
    blocks = g.conv_2d_last(b.rows(x.permuted((0, 2, 3, 1))), kernel, row)
    # [wide out, high, width, h n] -> [wide out, width, high, h n]
    rows = g.permute(g.reshape(blocks, wide * out, high, width, h * n), 0, 2, 1, 3)
    result = g.reshape(g.cont(rows), out, wide * width, high * h, n)
    lies = Value.whole(result, call.out.dtype, (n, high * h, wide * width, out))
    return lies.permuted((0, 3, 1, 2))


# -- pooling ---------------------------------------------------------------------------------------

_POOLS: dict[Any, tuple[int, str]] = {
    aten.avg_pool1d.default: (1, "avg"), aten.avg_pool2d.default: (2, "avg"),
    aten.avg_pool3d.default: (3, "avg"), aten.max_pool1d.default: (1, "max"),
    aten.max_pool2d.default: (2, "max"), aten.max_pool3d.default: (3, "max"),
    aten.max_pool1d_with_indices.default: (1, "max"),
    aten.max_pool2d_with_indices.default: (2, "max"),
    aten.max_pool3d_with_indices.default: (3, "max"),
}  # fmt: skip

_ADAPTIVE: dict[Any, tuple[int, str]] = {
    aten.adaptive_avg_pool1d.default: (1, "avg"), aten._adaptive_avg_pool2d.default: (2, "avg"),
    aten._adaptive_avg_pool3d.default: (3, "avg"), aten.adaptive_avg_pool2d.default: (2, "avg"),
    aten.adaptive_avg_pool3d.default: (3, "avg"), aten.adaptive_max_pool1d.default: (1, "max"),
    aten.adaptive_max_pool2d.default: (2, "max"), aten.adaptive_max_pool3d.default: (3, "max"),
}  # fmt: skip


def _pool(b: Builder, call: Call) -> Value | list[Value | None]:
    dims, kind = _POOLS[call.op]
    v = call.value("self")
    last = with_channels(v, dims)

    def made(kind: str, x: Tensor, more: int) -> Tensor:
        """`more`: dimensions of windows of one element that come first."""

        def numbers(name: str, default: int) -> tuple[int, ...]:
            return (*[default] * more, *spread(call.numbers(name), dims, default))

        kernel = (*[1] * more, *spread(call.numbers("kernel_size"), dims, 1))
        return g.pool_nd(
            kind,
            x,
            kernel,
            numbers("stride", 1) if call.numbers("stride") else None,
            numbers("padding", 0),
            numbers("dilation", 1),
            ceil_mode=bool(call.raw("ceil_mode", False)),
            count_include_pad=bool(call.args.get("count_include_pad", True)),
            divisor=int(call.raw("divisor_override", 0)),
        )

    if last is None:
        values = b.result(call, made(kind, image(b, v, dims), 0))
    else:
        values = _lying_last(call, made(kind, b.dense(last), 1))
    if len(call.outs) == 1:
        return values
    # places are counted in planes
    indices = call.is_read(1)
    return [values, b.result(call, made("max_index", image(b, v, dims), 0), 1) if indices else None]


def _lying_last(call: Call, tensor: Tensor) -> Value:
    """The result of a call whose channels are last in memory."""
    shape = call.shape()
    last = channels_last(len(shape))
    lies = Value.whole(tensor, call.out.dtype, [shape[d] for d in last])
    return lies.permuted(inverse(last))


def _adaptive(b: Builder, call: Call) -> Value | list[Value | None]:
    dims, kind = _ADAPTIVE[call.op]
    v = call.value("self")
    sizes = [call.size(n) for n in call.out.shape[-dims:]][::-1]
    last = with_channels(v, dims)
    if kind == "avg" and all(n == 1 for n in sizes):
        return reduced(b, "mean", v, range(v.rank - dims, v.rank))
    if last is None:
        values = b.result(call, g.adaptive_pool_nd(kind, image(b, v, dims), sizes))
    else:
        values = _lying_last(call, g.adaptive_pool_nd(kind, b.dense(last), [v.shape[1], *sizes]))
    if len(call.outs) == 1:
        return values
    if not call.is_read(1):
        return [values, None]
    return [values, b.result(call, g.adaptive_pool_nd("max_index", image(b, v, dims), sizes), 1)]


for op in _POOLS:
    visitor(op)(_pool)
for op in _ADAPTIVE:
    visitor(op)(_adaptive)


# -- interpolation ---------------------------------------------------------------------------------

_MODES: dict[str, tuple[int, str]] = {
    "upsample_nearest1d": (1, "nearest"), "upsample_nearest2d": (2, "nearest"),
    "upsample_nearest3d": (3, "nearest"), "_upsample_nearest_exact1d": (1, "nearest_exact"),
    "_upsample_nearest_exact2d": (2, "nearest_exact"),
    "_upsample_nearest_exact3d": (3, "nearest_exact"), "upsample_linear1d": (1, "linear"),
    "upsample_bilinear2d": (2, "linear"), "upsample_trilinear3d": (3, "linear"),
    "upsample_bicubic2d": (2, "cubic"),
}  # fmt: skip


def _given_scales(call: Call, dims: int) -> list[float] | None:
    """Scales as PyTorch uses them, innermost first: only those that were given."""
    if "scale_factors" in call.args:
        scales = call.raw("scale_factors")
        return [float(s) for s in scales][::-1] if scales else None
    names = {1: ["scales"], 2: ["scales_h", "scales_w"], 3: ["scales_d", "scales_h", "scales_w"]}
    scales = [call.raw(n) for n in names[dims]]
    return [float(s) for s in scales][::-1] if all(s is not None for s in scales) else None


def _upsample(b: Builder, call: Call) -> Value:
    dims, mode = _MODES[call.op._schema.name.removeprefix("aten::")]
    v = call.value("input" if "input" in call.args else "self")
    sizes = [call.size(n) for n in call.out.shape[-dims:]][::-1]
    corners = bool(call.raw("align_corners", False))
    scales = _given_scales(call, dims)
    last = with_channels(v, dims)
    if last is None or mode == "cubic":
        result = g.interpolate(mode, image(b, v, dims), sizes, align_corners=corners, scales=scales)
        return b.result(call, result)
    # channels are a dimension that keeps its size
    result = g.interpolate(
        mode,
        b.dense(last),
        [v.shape[1], *sizes],
        align_corners=corners,
        scales=None if scales is None else [1.0, *scales],
    )
    return _lying_last(call, result)


def _upsample_rules(call: Call) -> str | None:
    return None if is_float(call.out.dtype) else "interpolation of integers"


for name in _MODES:
    packet = getattr(aten, name)
    for overload in ("default", "vec"):
        if overload in packet.overloads():
            visitor(getattr(packet, overload), check=_upsample_rules)(_upsample)
