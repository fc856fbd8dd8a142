"""Constructors of convolution, pooling and windows.

Sizes are ggml's `ne`, innermost first: images are [w, h, channels, batch], kernels [kw, kh,
channels in, channels out]. Stride, padding and dilation pairs are (dim 0, dim 1), triples (w, h,
d); an output size is (in + 2 padding - dilation (k - 1) - 1) / stride + 1, rounded down.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.dtype import DTYPES, DType, find_dtype
from weft.graph.node import fail, make_node, member, require, require_type
from weft.graph.params import (
    Col2ImParams,
    Conv3dParams,
    ConvParams,
    ConvTranspose1dParams,
    ConvTranspose2dParams,
    Im2Col3dParams,
    Im2ColParams,
    Pool1dParams,
    Pool2dParams,
    PoolOp,
    WinParams,
)
from weft.graph.size import Size, ceil_div, exact_div, is_at_most
from weft.graph.tensor import Tensor

__all__ = [
    "col2im_1d",
    "conv_2d",
    "conv_2d_dw",
    "conv_3d",
    "conv_transpose_1d",
    "conv_transpose_2d",
    "get_rel_pos",
    "im2col",
    "im2col_3d",
    "pool_1d",
    "pool_2d",
    "win_part",
    "win_unpart",
]

F32 = DTYPES["f32"]

KERNELS = ("f32", "f16")


def _out(
    op: str, kernel: Tensor, data: Tensor, d: int, stride: int, padding: int, dilation: int
) -> Size:
    """The output size along dimension `d`; refuses one that may be 0."""
    if stride < 1 or padding < 0 or dilation < 1:
        raise fail(op, f"stride {stride}, padding {padding}, dilation {dilation}?", kernel, data)
    span = data.ne[d] + 2 * padding - dilation * (kernel.ne[d] - 1) - 1
    if not is_at_most(0, span):
        raise fail(op, f"the kernel is larger than the padded data in dimension {d}", kernel, data)
    return span // stride + 1


def _pair(values: Sequence[int], op: str, what: str, x: Tensor) -> tuple[int, int]:
    if len(values) != 2:
        raise fail(op, f"{what} must be (dim 0, dim 1), got {list(values)}", x)
    return (values[0], values[1])


def _triple(values: Sequence[int], op: str, what: str, x: Tensor) -> tuple[int, int, int]:
    if len(values) != 3:
        raise fail(op, f"{what} must be (w, h, d), got {list(values)}", x)
    return (values[0], values[1], values[2])


# -- patches ---------------------------------------------------------------------------------------


def im2col(
    kernel: Tensor,
    data: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    *,
    is_2d: bool = True,
    dtype: DType | str = "f32",
) -> Tensor:
    """The patches that a convolution multiplies with its kernel, as rows.

    2D: kernel [kw, kh, c, .], data [w, h, c, n] -> [c kh kw, ow, oh, n]. 1D: kernel [k, c, .],
    data [w, c, n] -> [c k, ow, n], second entries of the pairs unused. `dtype`: f32 or f16."""
    op = "IM2COL"
    dt = find_dtype(dtype)
    require_type(kernel, KERNELS, op, "kernel")
    require_type(data, ("f32", "f16"), op, "data")
    if dt.name not in KERNELS:
        raise fail(op, f"patches are f32 or f16, not {dt.name}", data)
    params = Im2ColParams(
        _pair(stride, op, "stride", data),
        _pair(padding, op, "padding", data),
        _pair(dilation, op, "dilation", data),
        is_2d,
    )
    steps = list(zip(params.stride, params.padding, params.dilation, strict=True))
    ow = _out(op, kernel, data, 0, *steps[0])
    ne: tuple[Size, ...]
    if is_2d:
        require(kernel.ne[2] == data.ne[2], op, "kernel and data differ in channels", kernel, data)
        oh = _out(op, kernel, data, 1, *steps[1])
        ne = (kernel.ne[2] * kernel.ne[1] * kernel.ne[0], ow, oh, data.ne[3])
    else:
        require(kernel.ne[1] == data.ne[1], op, "kernel and data differ in channels", kernel, data)
        require(data.ne[3] == 1, op, "1D data must be [w, c, n]", data)
        ne = (kernel.ne[1] * kernel.ne[0], ow, data.ne[2])
    return make_node(op, dt, ne, kernel, data, params=params)


def im2col_3d(
    kernel: Tensor,
    data: Tensor,
    channels: int,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    *,
    dtype: DType | str = "f32",
) -> Tensor:
    """3D patches. kernel [kw, kh, kd, c oc], data [w, h, d, c n] -> [c kd kh kw, ow, oh, od n]."""
    op = "IM2COL_3D"
    dt = find_dtype(dtype)
    require_type(kernel, KERNELS, op, "kernel")
    require_type(data, ("f32", "f16"), op, "data")
    if dt.name not in KERNELS:
        raise fail(op, f"patches are f32 or f16, not {dt.name}", data)
    n = exact_div(data.ne[3], channels)
    if n is None or exact_div(kernel.ne[3], channels) is None:
        raise fail(op, f"dimension 3 must be a multiple of {channels} channels", kernel, data)
    params = Im2Col3dParams(
        channels,
        _triple(stride, op, "stride", data),
        _triple(padding, op, "padding", data),
        _triple(dilation, op, "dilation", data),
    )
    steps = list(zip(params.stride, params.padding, params.dilation, strict=True))
    ow, oh, od = (_out(op, kernel, data, d, *steps[d]) for d in range(3))
    ne = (channels * kernel.ne[0] * kernel.ne[1] * kernel.ne[2], ow, oh, od * n)
    return make_node(op, dt, ne, kernel, data, params=params)


def col2im_1d(cols: Tensor, *, stride: int, oc: int, padding: int = 0) -> Tensor:
    """Columns added back at their places: [oc k, length] -> [(length - 1) stride + k - 2 padding,
    oc]; element (o k + i) of column l goes to place l stride + i - padding of channel o."""
    op = "COL2IM_1D"
    require_type(cols, ("f32", "f16", "bf16"), op, "cols")
    require(cols.n_elements == cols.ne[0] * cols.ne[1], op, "cols must be a matrix", cols)
    require(cols.is_contiguous, op, "cols must be contiguous", cols)
    k = exact_div(cols.ne[0], oc)
    if stride < 1 or oc < 1 or padding < 0 or k is None:
        raise fail(op, f"stride {stride}, oc {oc} (divides columns), padding {padding}?", cols)
    out = (cols.ne[1] - 1) * stride + k - 2 * padding
    if not is_at_most(1, out):
        raise fail(op, f"padding {padding} leaves nothing", cols)
    return make_node(op, cols.dtype, (out, oc), cols, params=Col2ImParams(stride, oc, padding))


# -- convolutions ----------------------------------------------------------------------------------


def _conv_params(
    op: str, data: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> ConvParams:
    return ConvParams(
        _pair(stride, op, "stride", data),
        _pair(padding, op, "padding", data),
        _pair(dilation, op, "dilation", data),
    )


def conv_2d(
    kernel: Tensor,
    data: Tensor,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
) -> Tensor:
    """2D convolution: kernel f32, f16 [kw, kh, c, oc], data f32 [w, h, c, n] -> [ow, oh, oc, n]."""
    op = "CONV_2D"
    require_type(kernel, KERNELS, op, "kernel")
    require_type(data, ("f32",), op, "data")
    require(kernel.ne[2] == data.ne[2], op, "kernel and data differ in channels", kernel, data)
    require(kernel.is_contiguous, op, "kernel must be contiguous; use cont()", kernel)
    params = _conv_params(op, data, stride, padding, dilation)
    steps = list(zip(params.stride, params.padding, params.dilation, strict=True))
    ow, oh = (_out(op, kernel, data, d, *steps[d]) for d in range(2))
    return make_node(
        op, data.dtype, (ow, oh, kernel.ne[3], data.ne[3]), kernel, data, params=params
    )


def conv_2d_dw(
    kernel: Tensor,
    data: Tensor,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
) -> Tensor:
    """2D convolution, one kernel a channel: kernel [kw, kh, 1, c], data f32 [w, h, c, n] -> [ow,
    oh, c, n].

    Data with channels innermost in memory (a permuted view) give a result laid out likewise; the
    kernel must then have channels innermost too."""
    op = "CONV_2D_DW"
    require_type(kernel, KERNELS, op, "kernel")
    require_type(data, ("f32",), op, "data")
    require(
        kernel.ne[2] == 1 and kernel.ne[3] == data.ne[2],
        op,
        "kernel must be [kw, kh, 1, channels of the data]",
        kernel,
        data,
    )
    params = _conv_params(op, data, stride, padding, dilation)
    steps = list(zip(params.stride, params.padding, params.dilation, strict=True))
    ow, oh = (_out(op, kernel, data, d, *steps[d]) for d in range(2))
    ne = (ow, oh, data.ne[2], data.ne[3])
    nb: tuple[Size, ...] | None = None
    if _channels_innermost(data):
        require(
            kernel.nb[3] == kernel.dtype.bytes,
            op,
            "data has channels innermost in memory, the kernel has not",
            kernel,
            data,
        )
        nb2: Size = data.dtype.bytes
        nb0 = nb2 * ne[2]
        nb = (nb0, nb0 * ne[0], nb2, nb0 * ne[0] * ne[1])
    else:
        require(data.is_contiguous, op, "data must be contiguous; use cont()", data)
        require(kernel.is_contiguous, op, "kernel must be contiguous; use cont()", kernel)
    return make_node(op, data.dtype, ne, kernel, data, params=params, nb=nb)


def _channels_innermost(t: Tensor) -> bool:
    return (
        t.nb[2] == t.dtype.bytes
        and is_at_most(t.nb[2] + 1, t.nb[0])
        and is_at_most(t.nb[0] + 1, t.nb[1])
    )


def conv_3d(
    kernel: Tensor,
    data: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    *,
    n_channels: int,
    n_batch: int,
    n_channels_out: int,
) -> Tensor:
    """3D convolution: kernel [kw, kh, kd, c oc], data f32 [w, h, d, c n] -> [ow, oh, od, oc n]."""
    op = "CONV_3D"
    require_type(kernel, KERNELS, op, "kernel")
    require_type(data, ("f32",), op, "data")
    require(kernel.is_contiguous, op, "kernel must be contiguous; use cont()", kernel)
    if kernel.ne[3] != n_channels * n_channels_out or data.ne[3] != n_channels * n_batch:
        raise fail(
            op,
            f"dimension 3 must be {n_channels} channels times {n_channels_out} (kernel) and "
            f"{n_batch} (data)",
            kernel,
            data,
        )
    params = Conv3dParams(
        _triple(stride, op, "stride", data),
        _triple(padding, op, "padding", data),
        _triple(dilation, op, "dilation", data),
        n_channels,
        n_batch,
        n_channels_out,
    )
    steps = list(zip(params.stride, params.padding, params.dilation, strict=True))
    ow, oh, od = (_out(op, kernel, data, d, *steps[d]) for d in range(3))
    ne = (ow, oh, od, n_channels_out * n_batch)
    return make_node(op, F32, ne, kernel, data, params=params)


def conv_transpose_1d(
    kernel: Tensor, data: Tensor, stride: int, *, padding: int = 0, dilation: int = 1
) -> Tensor:
    """kernel [k, oc, c], data f32 [w, c] -> f32 [(w - 1) stride + k, oc]."""
    op = "CONV_TRANSPOSE_1D"
    require_type(kernel, KERNELS, op, "kernel")
    require_type(data, ("f32",), op, "data")
    require(data.n_elements == data.ne[0] * data.ne[1], op, "data must be [w, c]", data)
    require(
        kernel.ne[2] == data.ne[1] and kernel.ne[3] == 1,
        op,
        "kernel must be [k, oc, channels of the data]",
        kernel,
        data,
    )
    _require_contiguous(op, kernel, data)
    if stride < 1 or padding != 0 or dilation != 1:
        raise fail(op, "only padding 0 and dilation 1 are defined, stride 1 or more", kernel, data)
    out = (data.ne[0] - 1) * stride + kernel.ne[0]
    params = ConvTranspose1dParams(stride, padding, dilation)
    return make_node(op, F32, (out, kernel.ne[1]), kernel, data, params=params)


def conv_transpose_2d(kernel: Tensor, data: Tensor, stride: int) -> Tensor:
    """kernel [kw, kh, oc, c], data f32 [w, h, c, n] -> f32 [(w - 1) stride + kw, (h - 1) stride +
    kh, oc, n]."""
    op = "CONV_TRANSPOSE_2D"
    require_type(kernel, KERNELS, op, "kernel")
    require_type(data, ("f32",), op, "data")
    require(kernel.ne[3] == data.ne[2], op, "kernel and data differ in channels", kernel, data)
    _require_contiguous(op, kernel, data)
    if stride < 1:
        raise fail(op, f"stride {stride} must be 1 or more", kernel, data)
    ow, oh = ((data.ne[d] - 1) * stride + kernel.ne[d] for d in range(2))
    params = ConvTranspose2dParams(stride)
    return make_node(op, F32, (ow, oh, kernel.ne[2], data.ne[3]), kernel, data, params=params)


def _require_contiguous(op: str, kernel: Tensor, data: Tensor) -> None:
    require(kernel.is_contiguous, op, "kernel must be contiguous; use cont()", kernel)
    require(data.is_contiguous, op, "data must be contiguous; use cont()", data)


# -- pooling and windows ---------------------------------------------------------------------------


def _pooled(op: str, x: Tensor, d: int, k: int, s: int, p: int) -> Size:
    if k < 1 or s < 1 or p < 0:
        raise fail(op, f"kernel {k}, stride {s}, padding {p}?", x)
    span = x.ne[d] + 2 * p - k
    if not is_at_most(0, span):
        raise fail(op, f"window {k} is larger than the padded dimension {d}", x)
    return span // s + 1


def pool_1d(x: Tensor, op: PoolOp | str, k0: int, s0: int, p0: int = 0) -> Tensor:
    """Largest or mean of windows of `k0` along rows: [w, ...] -> f32 [ow, ...]."""
    require_type(x, ("f32", "f16"), "POOL_1D", "x")
    require(x.is_contiguous, "POOL_1D", "x must be contiguous; use cont()", x)
    params = Pool1dParams(member(PoolOp, op, "POOL_1D"), k0, s0, p0)
    ow = _pooled("POOL_1D", x, 0, k0, s0, p0)
    return make_node("POOL_1D", F32, (ow, *x.ne[1:]), x, params=params)


def pool_2d(
    x: Tensor, op: PoolOp | str, k0: int, k1: int, s0: int, s1: int, p0: int = 0, p1: int = 0
) -> Tensor:
    """Largest or mean of windows of [k0, k1]: [w, h, ...] -> f32 [ow, oh, ...].

    The mean divides by k0 k1, padding counted (pool_1d divides by the valid ones)."""
    require_type(x, ("f32", "f16"), "POOL_2D", "x")
    require(x.is_contiguous, "POOL_2D", "x must be contiguous; use cont()", x)
    params = Pool2dParams(member(PoolOp, op, "POOL_2D"), k0, k1, s0, s1, p0, p1)
    ow = _pooled("POOL_2D", x, 0, k0, s0, p0)
    oh = _pooled("POOL_2D", x, 1, k1, s1, p1)
    return make_node("POOL_2D", F32, (ow, oh, *x.ne[2:]), x, params=params)


def win_part(x: Tensor, w: int) -> Tensor:
    """Windows of w by w, zero padded: f32 [n, width, height] -> [n, w, w, windows]."""
    require_type(x, ("f32",), "WIN_PART", "x")
    require(x.ne[3] == 1, "WIN_PART", "x must be [n, width, height]", x)
    if w < 1:
        raise fail("WIN_PART", f"window {w} must be 1 or more", x)
    windows = ceil_div(x.ne[1], w) * ceil_div(x.ne[2], w)
    return make_node("WIN_PART", F32, (x.ne[0], w, w, windows), x, params=WinParams(w))


def win_unpart(x: Tensor, w0: Size, h0: Size, w: int) -> Tensor:
    """`win_part` undone: f32 [n, w, w, windows] -> [n, w0, h0]."""
    require_type(x, ("f32",), "WIN_UNPART", "x")
    if w < 1 or x.ne[1] != w or x.ne[2] != w or x.ne[3] != ceil_div(w0, w) * ceil_div(h0, w):
        raise fail("WIN_UNPART", f"x is not the windows of {w} of [n, {w0}, {h0}]", x)
    return make_node("WIN_UNPART", F32, (x.ne[0], w0, h0), x, params=WinParams(w))


def get_rel_pos(x: Tensor, qh: int, kh: int) -> Tensor:
    """Rows of relative positions: f16 [n, 2 qh - 1] -> f16 [n, kh, qh], row (k - q) + (kh - 1).

    Only qh = kh is defined."""
    require_type(x, ("f16",), "GET_REL_POS", "x")
    require(x.n_elements == x.ne[0] * x.ne[1], "GET_REL_POS", "x must be a matrix", x)
    if qh != kh or qh < 1 or x.ne[1] != 2 * qh - 1:
        raise fail("GET_REL_POS", f"qh {qh} and kh {kh} must agree, with 2 qh - 1 rows", x)
    return make_node("GET_REL_POS", x.dtype, (x.ne[0], kh, qh), x)
