"""Convolution, pooling and interpolation in 1 to 3 dimensions, as in PyTorch.

Sizes are `ne`, innermost first. Data of 1 spatial dimension are [w, channels, batch], of 2 [w, h,
channels, batch]. Data of 3, which have five dimensions in PyTorch, are [w, h, d, batch * channels]
with the channel counting faster. Kernels are [w, channels in of a group, channels out], [w, h, in,
out] and [w, h, d, out * in] (transposed ones with out of a group before in). Tuples of parameters
are innermost first, too: (w,), (w, h), (w, h, d).

`conv_2d_last` alone has channels innermost: data [channels, w, h, batch], kernels [channels out,
channels in, w, h].
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from math import inf
from typing import Any

from weft.dtype import DTYPES
from weft.graph.node import (
    FLOATS,
    NUMBERS,
    fail,
    fixed,
    like,
    make_node,
    member,
    require,
    require_type,
)
from weft.graph.op import MultiplyAdds, declares
from weft.graph.ops.activations import Activation
from weft.graph.ops.folds import reduce
from weft.graph.params import Params
from weft.graph.size import Size, ceil_div, exact_div, is_at_most, size_min
from weft.graph.tensor import Tensor
from weft.records import dataclass

I64 = DTYPES["i64"]


Triple = tuple[int, int, int]


class PoolKind(IntEnum):
    """The number that POOL_ND computes from a window. MAX_INDEX is the place of the largest
    element, i64; MAX_FINITE (of floats) the largest element, or the lowest finite f32 where none is
    above it."""

    AVG = 0
    MAX = 1
    MAX_INDEX = 2
    MAX_FINITE = 3


class InterpolateMode(IntEnum):
    """The way in which INTERPOLATE reads between samples. The last four compute places as ggml's
    UPSCALE does: in their way along the two innermost dimensions, at the nearest sample along the
    others."""

    NEAREST = 0
    NEAREST_EXACT = 1
    LINEAR = 2
    CUBIC = 3
    UPSCALE_NEAREST = 4
    UPSCALE_LINEAR = 5
    UPSCALE_CUBIC = 6
    UPSCALE_TRIANGLE = 7
    """Linear, over triangles as wide as the shrinking."""


@dataclass(frozen=True, slots=True)
class ConvNdParams(Params):
    """`dims` is the number of spatial dimensions (1 to 3); triples are (w, h, d). `channels` are
    the channels of the input, which share ne[3] with the batch where there are three dimensions."""

    dims: int
    channels: int
    groups: int
    stride: tuple[int, int, int] = (1, 1, 1)
    padding: tuple[int, int, int] = (0, 0, 0)
    dilation: tuple[int, int, int] = (1, 1, 1)
    output_padding: tuple[int, int, int] = (0, 0, 0)
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class ConvLastParams(Params):
    """Pairs are (w, h). `padding` is before the data, `padding_after` behind them. `groups` is 1,
    or the number of channels. `function` is applied to the result; `low` and `high` are the bounds
    of CLAMP, both inclusive, and count for CLAMP alone."""

    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    padding_after: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    function: Activation = Activation.CLAMP
    low: float = float("-inf")
    high: float = float("inf")


@dataclass(frozen=True, slots=True)
class PoolNdParams(Params):
    """`dims` is the number of spatial dimensions (1 to 3); triples are (w, h, d). `adaptive` makes
    windows follow from the sizes, whatever the other fields say. `divisor` 0 stands for the size of
    the window."""

    kind: PoolKind
    dims: int
    kernel: tuple[int, int, int] = (1, 1, 1)
    stride: tuple[int, int, int] = (1, 1, 1)
    padding: tuple[int, int, int] = (0, 0, 0)
    dilation: tuple[int, int, int] = (1, 1, 1)
    count_include_pad: bool = True
    divisor: int = 0
    adaptive: bool = False


@dataclass(frozen=True, slots=True)
class InterpolateParams(Params):
    """`dims` is the number of spatial dimensions (1 to 3). Scales are output by input size; 0
    stands for the scale of the sizes."""

    mode: InterpolateMode
    dims: int
    align_corners: bool = False
    scale_w: float = 0.0
    scale_h: float = 0.0
    scale_d: float = 0.0


_POOLED = {PoolKind.AVG: FLOATS, PoolKind.MAX_FINITE: FLOATS}


def _dims(op: str, values: Sequence[object], x: Tensor) -> int:
    if not 1 <= len(values) <= 3:
        raise fail(op, f"1 to 3 spatial dimensions, got {len(values)}", x)
    return len(values)


def _triple(
    op: str, values: Sequence[int] | int, dims: int, low: int, what: str, x: Tensor
) -> Triple:
    """`values` for the spatial dimensions, `low` for the others; one number stands for all."""
    numbers = [values] * dims if isinstance(values, int) else [int(v) for v in values]
    if len(numbers) != dims or any(v < low for v in numbers):
        raise fail(op, f"{what} takes {dims} numbers from {low} up, got {numbers}", x)
    filler = 1 if low == 1 else 0
    a, b, c = (*numbers, filler, filler)[:3]
    return (a, b, c)


def _require_elements(op: str, sizes: Sequence[Size], x: Tensor) -> None:
    for d, size in enumerate(sizes):
        require(is_at_most(1, size), op, f"size {size} along {d} must be 1 or more", x)
        require(is_at_most(1, x.ne[d]), op, f"x may have no elements along {d}", x)


def _pair(op: str, values: Sequence[int] | int, low: int, what: str, x: Tensor) -> tuple[int, int]:
    a, b, _ = _triple(op, values, 2, low, what, x)
    return (a, b)


def _multiply_adds(n: Any, s: Any, p: Any) -> Any:
    x, kernel = s[:2]
    # transposed: each input meets the kernels of all channels out of its group
    spread = x.elements * kernel.elements / p.channels
    gathered = n * kernel.first(p.dims) * p.channels / p.groups
    return p.transposed * spread + (1 - p.transposed) * gathered


@declares("CONV_ND", params=ConvNdParams, cost=MultiplyAdds(_multiply_adds))
def conv_nd(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    dims: int,
    channels: int | None = None,
    groups: int = 1,
    stride: Sequence[int] | int = 1,
    padding: Sequence[int] | int = 0,
    dilation: Sequence[int] | int = 1,
    transposed: bool = False,
    output_padding: Sequence[int] | int = 0,
) -> Tensor:
    """Convolution over `dims` spatial dimensions, or its transpose; layouts as above.

    x, weight, bias: of one float type, bias [channels out]; the result is of that type. `channels`
    (of `x`) must be given where dims is 3. Sizes: (in + 2 padding - dilation (k - 1) - 1) / stride
    + 1, rounded down; transposed (in - 1) stride - 2 padding + dilation (k - 1) + output_padding +
    1. Raises GraphError where kernel, channels and groups do not fit, and where nothing is left.
    Equals torch.convolution."""
    op = "CONV_ND"
    if dims not in (1, 2, 3):
        raise fail(op, f"1 to 3 spatial dimensions, got {dims}", x)
    for t, what in ((x, "x"), (weight, "weight"), (bias, "bias")):
        if t is not None:
            require_type(t, FLOATS, op, what)
            require(t.dtype is x.dtype, op, "all must have one type", x, t)
    if not weight.is_contiguous:
        weight = like("CONT", weight)
    if channels is None:
        if dims == 3:
            raise fail(op, "say how many channels share ne[3] with the batch: channels=", x)
        channels = fixed(x.ne[dims], op, "the number of channels")
    params = ConvNdParams(
        dims,
        channels,
        groups,
        _triple(op, stride, dims, 1, "stride", x),
        _triple(op, padding, dims, 0, "padding", x),
        _triple(op, dilation, dims, 1, "dilation", x),
        _triple(op, output_padding, dims, 0, "output_padding", x),
        bool(transposed),
    )
    out_channels = _channels_out(params, x, weight)
    if bias is not None:
        expected = (out_channels, 1, 1, 1)
        require(bias.ne == expected, op, f"bias must be [{out_channels}]", bias, weight)
    sizes = [_conv_size(params, x, weight, d) for d in range(dims)]
    if dims == 3:
        batch = exact_div(x.ne[3], channels)
        assert batch is not None
        sizes.append(batch * out_channels)
    else:
        sizes += [out_channels, *x.ne[dims + 1 :]]
    return make_node(op, x.dtype, sizes, x, weight, bias, params=params)


def _channels_out(p: ConvNdParams, x: Tensor, weight: Tensor) -> int:
    """The number of channels of the result; raises GraphError for shapes that do not belong
    together."""
    op = "CONV_ND"
    count, groups = p.channels, p.groups
    if groups < 1 or count < 1 or count % groups:
        raise fail(op, f"{count} channels cannot be split into {groups} groups", x, weight)
    if p.dims == 3:
        fits = exact_div(x.ne[3], count) is not None
        require(fits, op, f"ne[3] of x is not a multiple of {count} channels", x, weight)
        both = fixed(weight.ne[3], op, "the size of the kernel")
        inner = count if p.transposed else count // groups
        why = f"ne[3] of the kernel is not a multiple of {inner} channels"
        require(both % inner == 0, op, why, x, weight)
        return both // inner * (groups if p.transposed else 1)
    require(x.ne[p.dims] == count, op, f"x does not have {count} channels", x, weight)
    require(x.ne[p.dims + 2 :] == (1,) * (2 - p.dims), op, "x has too many dimensions", x, weight)
    first = fixed(weight.ne[p.dims], op, "the channels of the kernel")
    last = fixed(weight.ne[p.dims + 1], op, "the channels of the kernel")
    fits = last == count if p.transposed else first * groups == count
    require(fits, op, f"the kernel is not for {count} channels in {groups} groups", x, weight)
    out = first * groups if p.transposed else last
    fits = out % groups == 0
    require(fits, op, f"{out} channels out cannot be split into {groups} groups", x, weight)
    return out


def _conv_size(p: ConvNdParams, x: Tensor, weight: Tensor, d: int) -> Size:
    span = p.dilation[d] * (fixed(weight.ne[d], "CONV_ND", "the size of the kernel") - 1) + 1
    if p.transposed:
        size = (x.ne[d] - 1) * p.stride[d] - 2 * p.padding[d] + span + p.output_padding[d]
        require(is_at_most(1, size), "CONV_ND", f"nothing is left along {d}", x, weight)
        return size
    room = x.ne[d] + 2 * p.padding[d] - span
    why = f"the kernel is larger than the padded data in dimension {d}"
    require(is_at_most(0, room), "CONV_ND", why, x, weight)
    return room // p.stride[d] + 1


@declares(
    "CONV_2D_LAST",
    params=ConvLastParams,
    cost=MultiplyAdds(lambda n, s, p: n * s[1][1] * s[1][2] * s[1][3]),
)
def conv_2d_last(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    scale: Tensor | None = None,
    *,
    groups: int = 1,
    stride: Sequence[int] | int = 1,
    padding: Sequence[int] | int = 0,
    padding_after: Sequence[int] | int | None = None,
    dilation: Sequence[int] | int = 1,
    function: Activation = Activation.CLAMP,
    low: float = -inf,
    high: float = inf,
) -> Tensor:
    """Convolution over w and h of data with channels innermost; all f32.

    x: [c, w, h, n], weight: [oc, c, kw, kh], or [oc, 1, kw, kh] with `groups` = c = oc (other
    groups are refused), bias: [oc], residual: as the result, [oc, ow, oh, n]. scale: [c, 1, 1, n],
    a factor for each channel of x and image; the kernel then has one tap and one group. `padding`
    is the number of zeros before the data, `padding_after` the number behind them, the same where
    it is None. The result is function(convolution + bias + residual); CLAMP limits it to low..high.
    Sizes and errors as in `conv_nd`. Equals torch.nn.functional.conv2d on the permuted data."""
    op = "CONV_2D_LAST"
    given = {"x": x, "weight": weight, "bias": bias, "residual": residual, "scale": scale}
    for what, t in given.items():
        if t is not None:
            require_type(t, ("f32",), op, what)
    if not low <= high:
        raise fail(op, f"low must not be above high, got {low} and {high}", x)
    behind = padding if padding_after is None else padding_after
    named = (
        (stride, 1, "stride"), (padding, 0, "padding"), (behind, 0, "padding_after"),
        (dilation, 1, "dilation"),
    )  # fmt: skip
    steps, pads, after, gaps = (_pair(op, *each, x) for each in named)
    bounds = float(low), float(high)
    params = ConvLastParams(steps, pads, after, gaps, int(groups), Activation(function), *bounds)
    channels = fixed(x.ne[0], op, "the number of channels")
    out, each = (fixed(weight.ne[d], op, "the channels of the kernel") for d in (0, 1))
    if groups not in (1, channels):
        why = f"groups must be 1 or {channels} (one for each channel), got {groups}"
        raise fail(op, why, x, weight)
    fits = each * groups == channels and (groups == 1 or out == channels)
    require(fits, op, f"the kernel is not for {channels} channels in {groups} groups", x, weight)
    if bias is not None:
        require(bias.ne == (out, 1, 1, 1), op, f"bias must be [{out}]", bias, weight)
    sizes: list[Size] = [out]
    for d in range(2):
        taps = fixed(weight.ne[2 + d], op, "the size of the kernel")
        room = x.ne[1 + d] + pads[d] + after[d] - gaps[d] * (taps - 1) - 1
        why = f"the kernel is larger than the padded data along {'wh'[d]}"
        require(taps >= 1 and is_at_most(0, room), op, why, x, weight)
        sizes.append(room // steps[d] + 1)
    sizes.append(x.ne[3])
    if residual is not None:
        require(residual.ne == tuple(sizes), op, "residual must be of the result's shape", residual)
    if scale is not None:
        require(
            scale.ne == (channels, 1, 1, x.ne[3]), op, f"scale must be [{channels}, 1, 1, n]", scale
        )
        one = groups == 1 and weight.ne[2:] == (1, 1)
        require(one, op, "with a scale, the kernel has one tap and one group", weight)
    # Device kernels read channels side by side; views with other gaps need no copy.
    sources = (
        t if t is None or (t.nb[0] == 4 if may_have_gaps else t.is_contiguous) else like("CONT", t)
        for t, may_have_gaps in (
            (x, True),
            (weight, False),
            (bias, False),
            (residual, True),
            (scale, False),
        )
    )
    return make_node(op, x.dtype, sizes, *sources, params=params)


@declares("POOL_ND", params=PoolNdParams, cost=9.0)
def pool_nd(
    kind: PoolKind | str,
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] | int | None = None,
    padding: Sequence[int] | int = 0,
    dilation: Sequence[int] | int = 1,
    *,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor: int = 0,
) -> Tensor:
    """Pooling over the innermost len(kernel) dimensions; the others are channels and batches.

    AVG takes floats and divides by `divisor`, or where that is 0 by the size of the window, with or
    without padding. MAX takes integers, too, and ignores padding; MAX_INDEX gives the place in the
    plane of each channel, i64. `stride` None is the size of the kernel. A size is (in + 2 padding -
    dilation (k - 1) - 1) / stride + 1, rounded down; `ceil_mode` rounds up (except for windows that
    would begin in the padding behind). Raises GraphError for padding above half the kernel and
    windows larger than the data. Equals torch.nn.functional.avg_pool2d, max_pool2d and their
    forms."""
    op = "POOL_ND"
    pool = member(PoolKind, kind, op)
    dims = _dims(op, kernel, x)
    require_type(x, _POOLED.get(pool, NUMBERS), op, "x")
    params = PoolNdParams(
        pool,
        dims,
        _triple(op, kernel, dims, 1, "kernel", x),
        _triple(op, kernel if stride is None else stride, dims, 1, "stride", x),
        _triple(op, padding, dims, 0, "padding", x),
        _triple(op, dilation, dims, 1, "dilation", x),
        bool(count_include_pad),
        int(divisor),
    )
    if pool is PoolKind.AVG and any(d != 1 for d in params.dilation):
        raise fail(op, "averages have no dilation", x)
    sizes = list(x.ne)
    for d in range(dims):
        pad, step = params.padding[d], params.stride[d]
        if 2 * pad > params.kernel[d]:
            raise fail(op, f"padding {pad} is more than half of kernel {params.kernel[d]}", x)
        span = params.dilation[d] * (params.kernel[d] - 1) + 1
        room = x.ne[d] + 2 * pad - span
        require(is_at_most(0, room), op, f"the window is larger than the data along {d}", x)
        sizes[d] = room // step + 1
        if ceil_mode:
            sizes[d] = size_min(ceil_div(room, step) + 1, (x.ne[d] + pad - 1) // step + 1)
    return make_node(op, I64 if pool is PoolKind.MAX_INDEX else x.dtype, sizes, x, params=params)


def adaptive_pool_nd(kind: PoolKind | str, x: Tensor, sizes: Sequence[Size]) -> Tensor:
    """Pooling to the given `sizes` of the innermost dimensions; kinds and types as in `pool_nd`.

    Window i goes from i in / out, rounded down, to (i + 1) in / out, rounded up. Raises GraphError
    for sizes that may be 0. Equals torch.nn.functional.adaptive_avg_pool2d and its forms."""
    op = "POOL_ND"
    pool = member(PoolKind, kind, op)
    dims = _dims(op, sizes, x)
    require_type(x, _POOLED.get(pool, NUMBERS), op, "x")
    _require_elements(op, sizes, x)
    if pool is PoolKind.AVG and all(n == 1 for n in sizes):
        return reduce("mean", x, range(dims))
    params = PoolNdParams(pool, dims, adaptive=True)
    dtype = I64 if pool is PoolKind.MAX_INDEX else x.dtype
    return make_node(op, dtype, (*sizes, *x.ne[dims:]), x, params=params)


@declares("INTERPOLATE", params=InterpolateParams, cost=8.0)
def interpolate(
    mode: InterpolateMode | str,
    x: Tensor,
    sizes: Sequence[Size],
    *,
    align_corners: bool = False,
    scales: Sequence[float] | None = None,
) -> Tensor:
    """`x` resampled to the given `sizes` of its innermost dimensions; the float type of `x`.

    LINEAR is bilinear in two dimensions and trilinear in three; CUBIC takes two. `scales` (output
    by input size) replace the scales of the sizes, as in PyTorch when a caller gives them; the
    modes of UPSCALE have none. Raises GraphError for sizes that may be 0, and for `align_corners`
    with nearest. Equals torch.nn.functional.interpolate."""
    op = "INTERPOLATE"
    kind = member(InterpolateMode, mode, op)
    dims = _dims(op, sizes, x)
    require_type(x, FLOATS, op, "x")
    if kind is InterpolateMode.CUBIC and dims != 2:
        raise fail(op, f"cubic takes 2 dimensions, got {dims}", x)
    if kind in (InterpolateMode.NEAREST, InterpolateMode.NEAREST_EXACT) and align_corners:
        raise fail(op, "nearest has no corners to align", x)
    _require_elements(op, sizes, x)
    three = (*(float(s) for s in scales or ()), 0.0, 0.0, 0.0)[:3]
    params = InterpolateParams(kind, dims, bool(align_corners), *three)
    return make_node(op, x.dtype, (*sizes, *x.ne[dims:]), x, params=params)
