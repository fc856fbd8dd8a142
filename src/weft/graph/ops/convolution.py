"""Convolution as ggml has it.

Sizes are ggml's `ne`, innermost first: images are [w, h, channels, batch], kernels [kw, kh,
channels in, channels out]. Stride, padding and dilation pairs are (dim 0, dim 1), triples (w, h,
d); an output size is (in + 2 padding - dilation (k - 1) - 1) / stride + 1, rounded down.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.dtype import DTYPES, DType, find_dtype
from weft.graph.node import fail, make_node, require, require_type
from weft.graph.op import MultiplyAdds, declares
from weft.graph.params import Params
from weft.graph.size import Size, exact_div, is_at_most
from weft.graph.tensor import Tensor
from weft.records import dataclass

F32 = DTYPES["f32"]

KERNELS = ("f32", "f16")


@dataclass(frozen=True, slots=True)
class Im2ColParams(Params):
    """Stride, padding and dilation along (dim 0, dim 1), in elements."""

    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    is_2d: bool = True


@dataclass(frozen=True, slots=True)
class Im2Col3dParams(Params):
    """Input channels, then stride, padding and dilation as (w, h, d)."""

    channels: int
    stride: tuple[int, int, int]
    padding: tuple[int, int, int]
    dilation: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Col2ImParams(Params):
    """Stride, output channels and padding of COL2IM_1D."""

    stride: int
    oc: int
    padding: int


@dataclass(frozen=True, slots=True)
class ConvParams(Params):
    """Stride, padding and dilation along (dim 0, dim 1) of CONV_2D and CONV_2D_DW."""

    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Conv3dParams(Params):
    """Stride, padding and dilation as (w, h, d); channels and batch share ne[3]."""

    stride: tuple[int, int, int]
    padding: tuple[int, int, int]
    dilation: tuple[int, int, int]
    n_channels: int
    n_batch: int
    n_channels_out: int


@dataclass(frozen=True, slots=True)
class ConvTranspose1dParams(Params):
    """Stride, padding and dilation; only padding 0 and dilation 1 are defined."""

    stride: int
    padding: int = 0
    dilation: int = 1


@dataclass(frozen=True, slots=True)
class ConvTranspose2dParams(Params):
    """The stride of both dimensions; there is no padding."""

    stride: int


def _out(
    op: str, kernel: Tensor, data: Tensor, d: int, stride: int, padding: int, dilation: int
) -> Size:
    """The output size along dimension `d`; refuses one that may be 0."""
    if stride < 1 or padding < 0 or dilation < 1:
        why = f"stride {stride} and dilation {dilation} need 1 or more, padding {padding} 0 or more"
        raise fail(op, why, kernel, data)
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


@declares("IM2COL", params=Im2ColParams, cost=0.0)
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
    """The patches that a convolution multiplies with its kernel, as rows of type `dtype` (f32 or
    f16).

    2D: kernel [kw, kh, c, .], data [w, h, c, n] -> [c kh kw, ow, oh, n]. 1D: kernel [k, c, .], data
    [w, c, n] -> [c k, ow, n], where the second numbers of the pairs do not count. Kernel and data:
    f32 or f16. Raises GraphError where the channels differ and where the kernel is larger than the
    padded data. Equals ggml_im2col."""
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


@declares("IM2COL_3D", params=Im2Col3dParams, cost=0.0)
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
    """The patches that a 3D convolution multiplies with its kernel, as rows of type `dtype`.

    kernel [kw, kh, kd, c oc], data [w, h, d, c n] -> [c kd kh kw, ow, oh, od n], f32 or f16; c is
    `channels`. Raises GraphError where c does not divide the last sizes and where the kernel is
    larger than the padded data. Equals ggml_im2col_3d."""
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
    ow, oh, od = (_out(op, kernel, data, i, *steps[i]) for i in range(3))
    ne = (channels * kernel.ne[0] * kernel.ne[1] * kernel.ne[2], ow, oh, od * n)
    return make_node(op, dt, ne, kernel, data, params=params)


@declares("COL2IM_1D", params=Col2ImParams)
def col2im_1d(cols: Tensor, *, stride: int, oc: int, padding: int = 0) -> Tensor:
    """Columns added up at their places: [oc k, length] -> [(length - 1) stride + k - 2 padding,
    oc].

    Element (o k + i) of column l is added to place l stride + i - padding of channel o. cols: f32,
    f16 or bf16, contiguous; the result has its type. Raises GraphError where `oc` does not divide
    the columns and where nothing is left. Equals ggml_col2im_1d."""
    op = "COL2IM_1D"
    require_type(cols, ("f32", "f16", "bf16"), op, "cols")
    require(cols.n_elements == cols.ne[0] * cols.ne[1], op, "cols must be a matrix", cols)
    require(cols.is_contiguous, op, "cols must be contiguous", cols)
    k = exact_div(cols.ne[0], oc)
    if stride < 1 or oc < 1 or padding < 0 or k is None:
        why = f"needs stride {stride} >= 1, padding {padding} >= 0, and oc {oc} to divide ne[0]"
        raise fail(op, why, cols)
    out = (cols.ne[1] - 1) * stride + k - 2 * padding
    if not is_at_most(1, out):
        raise fail(op, f"padding {padding} leaves nothing", cols)
    return make_node(op, cols.dtype, (out, oc), cols, params=Col2ImParams(stride, oc, padding))


# -- convolutions ----------------------------------------------------------------------------------


def _conv_params(
    op: str, data: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> ConvParams:
    named = ("stride", stride), ("padding", padding), ("dilation", dilation)
    s, p, d = (_pair(values, op, name, data) for name, values in named)
    return ConvParams(s, p, d)


@declares("CONV_2D", params=ConvParams, cost=MultiplyAdds(lambda n, s, p: n * s[0].first(3)))
def conv_2d(
    kernel: Tensor,
    data: Tensor,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
) -> Tensor:
    """2D convolution: kernel f32, f16 [kw, kh, c, oc], data f32 [w, h, c, n] -> f32 [ow, oh, oc,
    n].

    Raises GraphError where the channels differ, where the kernel has gaps and where it is larger
    than the padded data. Equals ggml_conv_2d_direct."""
    op = "CONV_2D"
    _require_types(op, kernel, data)
    require(kernel.ne[2] == data.ne[2], op, "kernel and data differ in channels", kernel, data)
    require(kernel.is_contiguous, op, "kernel must be contiguous; use cont()", kernel)
    params = _conv_params(op, data, stride, padding, dilation)
    steps = list(zip(params.stride, params.padding, params.dilation, strict=True))
    ow, oh = (_out(op, kernel, data, d, *steps[d]) for d in range(2))
    return make_node(
        op, data.dtype, (ow, oh, kernel.ne[3], data.ne[3]), kernel, data, params=params
    )


@declares("CONV_2D_DW", params=ConvParams, cost=MultiplyAdds(lambda n, s, p: n * s[0].first(3)))
def conv_2d_dw(
    kernel: Tensor,
    data: Tensor,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
) -> Tensor:
    """2D convolution, one kernel a channel: kernel [kw, kh, 1, c], data f32 [w, h, c, n] -> f32
    [ow, oh, c, n].

    Data with channels innermost in memory (a permuted view) give a result laid out likewise; the
    kernel must then have channels innermost, too. Raises GraphError where it has not, where the
    channels differ and where the kernel is larger than the padded data. Equals
    ggml_conv_2d_dw_direct."""
    op = "CONV_2D_DW"
    _require_types(op, kernel, data)
    fits = kernel.ne[2] == 1 and kernel.ne[3] == data.ne[2]
    require(fits, op, "kernel must be [kw, kh, 1, channels of the data]", kernel, data)
    params = _conv_params(op, data, stride, padding, dilation)
    steps = list(zip(params.stride, params.padding, params.dilation, strict=True))
    ow, oh = (_out(op, kernel, data, d, *steps[d]) for d in range(2))
    ne = (ow, oh, data.ne[2], data.ne[3])
    nb: tuple[Size, ...] | None = None
    if _channels_innermost(data):
        why = "data has channels innermost in memory, the kernel has not"
        require(kernel.nb[3] == kernel.dtype.bytes, op, why, kernel, data)
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


@declares("CONV_3D", params=Conv3dParams, cost=MultiplyAdds(lambda n, s, p: n * s[0].first(3)))
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
    """3D convolution: kernel [kw, kh, kd, c oc], data f32 [w, h, d, c n] -> f32 [ow, oh, od, oc n].

    c, oc and n are `n_channels`, `n_channels_out` and `n_batch`. Raises GraphError where the sizes
    do not hold these, where the kernel has gaps and where it is larger than the padded data. Equals
    ggml_conv_3d_direct."""
    op = "CONV_3D"
    _require_types(op, kernel, data)
    require(kernel.is_contiguous, op, "kernel must be contiguous; use cont()", kernel)
    if kernel.ne[3] != n_channels * n_channels_out or data.ne[3] != n_channels * n_batch:
        counts = f"{n_channels} channels times {n_channels_out} (kernel) and {n_batch} (data)"
        raise fail(op, f"dimension 3 must be {counts}", kernel, data)
    named = ("stride", stride), ("padding", padding), ("dilation", dilation)
    s, p, d = (_triple(values, op, name, data) for name, values in named)
    params = Conv3dParams(s, p, d, n_channels, n_batch, n_channels_out)
    steps = list(zip(s, p, d, strict=True))
    ow, oh, od = (_out(op, kernel, data, i, *steps[i]) for i in range(3))
    ne = (ow, oh, od, n_channels_out * n_batch)
    return make_node(op, F32, ne, kernel, data, params=params)


@declares(
    "CONV_TRANSPOSE_1D",
    params=ConvTranspose1dParams,
    cost=MultiplyAdds(lambda n, s, p: s[1].elements * s[0].first(2)),
)
def conv_transpose_1d(
    kernel: Tensor, data: Tensor, stride: int, *, padding: int = 0, dilation: int = 1
) -> Tensor:
    """Transposed 1D convolution: kernel [k, oc, c], data f32 [w, c] -> f32 [(w - 1) stride + k,
    oc].

    Raises GraphError where the channels differ, where a source has gaps, and for a `padding` or
    `dilation` other than 0 and 1, which ggml does not define. Equals ggml_conv_transpose_1d."""
    op = "CONV_TRANSPOSE_1D"
    _require_types(op, kernel, data)
    require(data.n_elements == data.ne[0] * data.ne[1], op, "data must be [w, c]", data)
    fits = kernel.ne[2] == data.ne[1] and kernel.ne[3] == 1
    require(fits, op, "kernel must be [k, oc, channels of the data]", kernel, data)
    _require_contiguous(op, kernel, data)
    if stride < 1 or padding != 0 or dilation != 1:
        raise fail(op, "only padding 0 and dilation 1 are defined, stride 1 or more", kernel, data)
    out = (data.ne[0] - 1) * stride + kernel.ne[0]
    params = ConvTranspose1dParams(stride, padding, dilation)
    return make_node(op, F32, (out, kernel.ne[1]), kernel, data, params=params)


@declares(
    "CONV_TRANSPOSE_2D",
    params=ConvTranspose2dParams,
    cost=MultiplyAdds(lambda n, s, p: s[1].elements * s[0].first(3)),
)
def conv_transpose_2d(kernel: Tensor, data: Tensor, stride: int) -> Tensor:
    """Transposed 2D convolution: kernel [kw, kh, oc, c], data f32 [w, h, c, n] -> f32 [(w - 1)
    stride + kw, (h - 1) stride + kh, oc, n].

    Raises GraphError where the channels differ, where a source has gaps and for a stride below 1.
    Equals ggml_conv_transpose_2d_p0."""
    op = "CONV_TRANSPOSE_2D"
    _require_types(op, kernel, data)
    require(kernel.ne[3] == data.ne[2], op, "kernel and data differ in channels", kernel, data)
    _require_contiguous(op, kernel, data)
    if stride < 1:
        raise fail(op, f"stride {stride} must be 1 or more", kernel, data)
    ow, oh = ((data.ne[d] - 1) * stride + kernel.ne[d] for d in range(2))
    params = ConvTranspose2dParams(stride)
    return make_node(op, F32, (ow, oh, kernel.ne[2], data.ne[3]), kernel, data, params=params)


def _require_types(op: str, kernel: Tensor, data: Tensor) -> None:
    require_type(kernel, KERNELS, op, "kernel")
    require_type(data, ("f32",), op, "data")


def _require_contiguous(op: str, kernel: Tensor, data: Tensor) -> None:
    require(kernel.is_contiguous, op, "kernel must be contiguous; use cont()", kernel)
    require(data.is_contiguous, op, "data must be contiguous; use cont()", data)
