"""Convolutions: all are one kernel over fields of five dimensions, or its transpose."""

from __future__ import annotations

import math
import struct

from weft.backends.kernels.launch import Call, Launch, View, f32, i32, i64
from weft.backends.kernels.ops.table import family, floats, source
from weft.graph.ops import Activation, ConvLastParams
from weft.graph.tensor import Tensor
from weft.records import dataclass

_FILE = "conv.cl"

Triple = tuple[int, int, int]


class _Field(View):
    """A tensor as [w, h, d, channels, batch], which the kernels' `field_t` describes."""

    __slots__ = ("sizes",)

    def __init__(self, view: View, sizes: tuple[int, ...], strides: tuple[int, ...]) -> None:
        super().__init__(view.dtype, view.ne, view.nb, view.at, view.buffer, view.name)
        self.sizes = sizes
        self.packed = struct.pack("<q5q5ii", view.at, *strides, *sizes, view.dtype.id)


@dataclass(frozen=True, slots=True)
class _Shape:
    """The parameters that all convolutions share; triples are (w, h, d)."""

    dims: int
    groups: int
    channels: int
    """The channels of the input, all groups together."""
    out: int
    """The channels of the result."""
    stride: Triple = (1, 1, 1)
    padding: Triple = (0, 0, 0)
    dilation: Triple = (1, 1, 1)
    transposed: bool = False


def _space(view: View, dims: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes and strides of the spatial dimensions."""
    more = 3 - dims
    return (*view.ne[:dims], *[1] * more), (*view.nb[:dims], *[0] * more)


def _data(view: View, dims: int, channels: int) -> _Field:
    """Images; with three spatial dimensions, channels and batch share the last dimension."""
    sizes, strides = _space(view, dims)
    if dims == 3:
        last = (view.nb[3], view.nb[3] * channels)
        return _Field(view, (*sizes, channels, view.ne[3] // channels), (*strides, *last))
    last = (view.nb[dims], view.nb[dims + 1])
    return _Field(view, (*sizes, channels, view.ne[dims + 1]), (*strides, *last))


def _kernel(view: View, p: _Shape) -> _Field:
    """A kernel; its channels are the input's, its batch is the output's channels."""
    sizes, strides = _space(view, p.dims)
    inner = (p.out if p.transposed else p.channels) // p.groups
    first, second = view.nb[3], view.nb[3] * inner
    if p.dims < 3:
        first, second = view.nb[p.dims], view.nb[p.dims + 1]
    of = (second, first) if p.transposed else (first, second)
    return _Field(view, (*sizes, p.channels // p.groups, p.out), (*strides, *of))


def _launch(call: Call, x: View, w: View, bias: View | None, p: _Shape) -> list[Launch]:
    d = call.dst
    data, result = _data(x, p.dims, p.channels), _data(d, p.dims, p.out)
    if not p.transposed:
        return [_convolution(call, data, _kernel(w, p), bias, result, p)]
    args = (data, _kernel(w, p), bias or x, result, *_steps(p, bias), i64(d.n_elements))
    grid = call.in_line(d.n_elements)
    return [Launch(_FILE, call.all_f32(x, w, bias, d), "conv_transposed", args, *grid)]


def _steps(p: _Shape, bias: View | None) -> tuple[bytes, ...]:
    triples = i32(*p.stride, 1), i32(*p.padding, 0), i32(*p.dilation, 1)
    return (i32(p.groups), *triples, i32(bias is not None))


def _convolution(
    call: Call,
    x: _Field,
    w: _Field,
    bias: View | None,
    d: _Field,
    p: _Shape,
    added: _Field | None = None,
    bounds: tuple[float, float] = (-math.inf, math.inf),
    *defines: str,
) -> Launch:
    n = call.dst.n_elements
    args = (
        x, w, bias or call.view(0), added or d, d, *_steps(p, bias), i32(added is not None),
        f32(bounds[0]), f32(bounds[1]), i64(n),
    )  # fmt: skip
    types = call.all_f32(x, w, bias, added, d)
    return Launch(_FILE, (*types, *defines), "conv", args, *call.in_line(n))


@family("CONV_ND", refuse=floats(0, 1, 2))
def _conv_nd(call: Call) -> list[Launch]:
    x, w, p = call.view(0), call.view(1), call.params
    if p.dims < 3:
        out = call.dst.ne[p.dims]
    else:
        inner = p.channels if p.transposed else p.channels // p.groups
        out = w.ne[3] // inner * (p.groups if p.transposed else 1)
    shape = _Shape(p.dims, p.groups, p.channels, out, p.stride, p.padding, p.dilation, p.transposed)
    return _launch(call, x, w, call.optional(2), shape)


def _last(view: View, order: tuple[int, ...] = (1, 2, 0, 3)) -> _Field:
    """A field of a tensor; `order` has the dimensions that are (w, h, channel, batch)."""
    (w, h, *other_dims) = order
    sizes = (view.ne[w], view.ne[h], 1, *(view.ne[d] for d in other_dims))
    return _Field(view, sizes, (view.nb[w], view.nb[h], 0, *(view.nb[d] for d in other_dims)))


_last_floats = floats(0, 1, 2, 3)


def _refuse_last(node: Tensor) -> str | None:
    p = node.params
    assert isinstance(p, ConvLastParams)
    if p.function is not Activation.CLAMP or source(node, 4) is not None:
        return "no function but a clamp, and no scale"
    return _last_floats(node)


@family("CONV_2D_LAST", refuse=_refuse_last)
def _conv_2d_last(call: Call) -> list[Launch]:
    p: ConvLastParams = call.params
    x, added = call.view(0), call.optional(3)
    stride, padding, dilation = (*p.stride, 1), (*p.padding, 0), (*p.dilation, 1)
    shape = _Shape(2, p.groups, x.ne[0], call.dst.ne[0], stride, padding, dilation)
    # a kernel is [channels out, channels of a group, w, h]
    kernel = _last(call.view(1), (2, 3, 1, 0))
    residual = None if added is None else _last(added)
    bias, d, bounds = call.optional(2), _last(call.dst), (p.low, p.high)
    return [_convolution(call, _last(x), kernel, bias, d, shape, residual, bounds, "CHANNELS_LAST")]


# ---- patches -------------------------------------------------------------------------------------


@family("IM2COL_3D", refuse=floats(1))
def _im2col(call: Call) -> list[Launch]:
    w, x, d, p = call.view(0), call.view(1), call.dst, call.params
    steps = i32(*p.stride, 1), i32(*p.padding, 0), i32(*p.dilation, 1)
    depth = d.ne[3] // (x.ne[3] // p.channels)
    args = (x, d, i32(*w.ne[:3], p.channels), *steps, i32(depth))
    return [Launch(_FILE, call.all_f32(x, d), "im2col", args, *call.elements(d))]


@family("COL2IM_1D", refuse=floats(0))
def _col2im(call: Call) -> list[Launch]:
    s, d, p = call.view(0), call.dst, call.params
    args = (s, d, i32(s.ne[0] // p.oc), i32(p.stride), i32(p.padding))
    return [Launch(_FILE, call.all_f32(s, d), "col2im", args, *call.elements(d))]
