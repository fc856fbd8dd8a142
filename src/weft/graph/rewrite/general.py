"""General forms: ops that are written as a more general op, so that a device needs no kernels of
their own for them.

A device names in `Backend.generalizes` the ops that it runs in this way. Graphs, names and
placement keep the op as it is written; each node is replaced after fusions and before memory is
planned (`weft.schedule.optimize`), and stays the same tensor with the same bytes. General ops take
what no constructor offers, as fused ones do: what a form asks of a kernel stands with it here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from weft.graph import ops as g
from weft.graph.node import fixed, make_node
from weft.graph.op import OPS
from weft.graph.params import Params
from weft.graph.tensor import Tensor

Form = Callable[[Tensor], Tensor]
"""Makes the general form of a node: a tensor of the same type, sizes and strides."""


GENERAL: dict[str, Form] = {}
"""All general forms, by the op that is replaced."""


def _replaces(*ops: str) -> Callable[[Form], Form]:
    """Enters a form of `ops` into the table."""

    def enter(form: Form) -> Form:
        GENERAL.update(dict.fromkeys(ops, form))
        return form

    return enter


def _node(node: Tensor, op: str, params: Params | None, *src: Tensor | None) -> Tensor:
    """A node `op` with the type, sizes and strides of `node`."""
    return make_node(op, node.dtype, node.ne, *src, params=params, nb=node.nb)


def _sources(node: Tensor) -> tuple[Tensor, Tensor]:
    first, second = node.src[:2]
    assert first is not None and second is not None
    return first, second


# ---- convolutions: kernels may be f16 beside data of f32 -----------------------------------------


@_replaces("CONV_2D")
def _conv_2d(node: Tensor) -> Tensor:
    kernel, data = _sources(node)
    p = node.params
    assert isinstance(p, g.ConvParams)
    channels = fixed(data.ne[2], "CONV_2D", "the number of channels")
    params = g.ConvNdParams(2, channels, 1, (*p.stride, 1), (*p.padding, 0), (*p.dilation, 1))
    return _node(node, "CONV_ND", params, data, kernel)


@_replaces("CONV_2D_DW")
def _conv_2d_dw(node: Tensor) -> Tensor:
    kernel, data = _sources(node)
    p = node.params
    assert isinstance(p, g.ConvParams)
    channels = fixed(data.ne[2], "CONV_2D_DW", "the number of channels")
    if not node.is_contiguous:  # channels innermost
        x, weight = g.permute(data, 1, 2, 0, 3), g.permute(kernel, 2, 3, 1, 0)
        if weight.dtype is not x.dtype:
            weight = g.convert(weight, x.dtype)
        result = g.conv_2d_last(
            x, weight, groups=channels, stride=p.stride, padding=p.padding, dilation=p.dilation
        )
        return g.permute(result, 2, 0, 1, 3)
    steps = (*p.stride, 1), (*p.padding, 0), (*p.dilation, 1)
    return _node(node, "CONV_ND", g.ConvNdParams(2, channels, channels, *steps), data, kernel)


@_replaces("CONV_3D")
def _conv_3d(node: Tensor) -> Tensor:
    kernel, data = _sources(node)
    p = node.params
    assert isinstance(p, g.Conv3dParams)
    params = g.ConvNdParams(3, p.n_channels, 1, p.stride, p.padding, p.dilation)
    return _node(node, "CONV_ND", params, data, kernel)


@_replaces("CONV_TRANSPOSE_1D", "CONV_TRANSPOSE_2D")
def _conv_transpose(node: Tensor) -> Tensor:
    kernel, data = _sources(node)
    p = node.params
    assert isinstance(p, g.ConvTranspose1dParams | g.ConvTranspose2dParams)
    dims = 1 if isinstance(p, g.ConvTranspose1dParams) else 2
    channels = fixed(data.ne[dims], node.op.name, "the number of channels")
    stride = (p.stride, p.stride if dims == 2 else 1, 1)
    return _node(node, "CONV_ND", g.ConvNdParams(dims, channels, 1, stride, transposed=True), data,
                 kernel)  # fmt: skip


# ---- patches of two dimensions are patches of three with a depth of 1 ----------------------------


@_replaces("IM2COL")
def _im2col(node: Tensor) -> Tensor:
    kernel, data = _sources(node)
    p = node.params
    assert isinstance(p, g.Im2ColParams)
    dims = 2 if p.is_2d else 1
    channels = fixed(data.ne[dims], "IM2COL", "the number of channels")
    steps = [(*pair[:dims], *[low] * (3 - dims))
             for pair, low in ((p.stride, 1), (p.padding, 0), (p.dilation, 1))]  # fmt: skip
    params = g.Im2Col3dParams(channels, *(_triple(values) for values in steps))
    w, h = data.ne[0], data.ne[1] if dims == 2 else 1
    batch = data.ne[dims + 1]
    if data.nb[dims + 1] != data.nb[dims] * channels:
        data = g.cont(data)
    nb = (data.nb[0], data.nb[1], data.nb[dims], data.nb[dims])
    data = g.view(data, (w, h, 1, channels * batch), nb)
    taps = (kernel.ne[0], kernel.ne[1] if dims == 2 else 1, 1)
    kernel = g.reshape(kernel if kernel.is_contiguous else g.cont(kernel), *taps, -1)
    width, height = node.ne[1], node.ne[2] if dims == 2 else 1
    ne = (node.ne[0], width, height, batch)
    patches = make_node("IM2COL_3D", node.dtype, ne, kernel, data, params=params)
    return patches if dims == 2 else g.reshape(patches, *node.ne)


def _triple(values: Sequence[int]) -> tuple[int, int, int]:
    a, b, c = values
    return (a, b, c)


# ---- pools: results are f32, also of f16 ---------------------------------------------------------


@_replaces("POOL_1D")
def _pool_1d(node: Tensor) -> Tensor:
    p = node.params
    assert isinstance(p, g.Pool1dParams)
    params = g.PoolNdParams(
        _pool_kind(p.op), 1, (p.k0, 1, 1), (p.s0, 1, 1), (p.p0, 0, 0), count_include_pad=False
    )
    return _node(node, "POOL_ND", params, *node.src)


@_replaces("POOL_2D")
def _pool_2d(node: Tensor) -> Tensor:
    p = node.params
    assert isinstance(p, g.Pool2dParams)
    kernel, stride, padding = (p.k0, p.k1, 1), (p.s0, p.s1, 1), (p.p0, p.p1, 0)
    params = g.PoolNdParams(_pool_kind(p.op), 2, kernel, stride, padding, divisor=p.k0 * p.k1)
    return _node(node, "POOL_ND", params, *node.src)


def _pool_kind(op: g.PoolOp) -> g.PoolKind:
    return g.PoolKind.MAX_FINITE if op is g.PoolOp.MAX else g.PoolKind.AVG


# ---- what moves elements -------------------------------------------------------------------------


@_replaces("PAD")
def _pad(node: Tensor) -> Tensor:
    p = node.params
    assert isinstance(p, g.PadParams)
    mode = g.PadMode.CIRCULAR if p.circular else g.PadMode.CONSTANT
    return _node(node, "PAD_ND", g.PadNdParams(p.left, p.right, mode), *node.src)


@_replaces("PAD_REFLECT_1D")
def _pad_reflect_1d(node: Tensor) -> Tensor:
    p = node.params
    assert isinstance(p, g.PadReflectParams)
    params = g.PadNdParams((p.p0, 0, 0, 0), (p.p1, 0, 0, 0), g.PadMode.REFLECT)
    return _node(node, "PAD_ND", params, *node.src)


@_replaces("ROLL")
def _roll(node: Tensor) -> Tensor:
    """A roll is a circular padding by the shift in front, cropped by the shift behind."""
    p = node.params
    assert isinstance(p, g.RollParams)
    a, b, c, d = p.shift
    params = g.PadNdParams(p.shift, (-a, -b, -c, -d), g.PadMode.CIRCULAR)
    return _node(node, "PAD_ND", params, *node.src)


_SCALES = {
    g.ScaleMode.NEAREST: g.InterpolateMode.UPSCALE_NEAREST,
    g.ScaleMode.BILINEAR: g.InterpolateMode.UPSCALE_LINEAR,
    g.ScaleMode.BICUBIC: g.InterpolateMode.UPSCALE_CUBIC,
}


@_replaces("UPSCALE")
def _upscale(node: Tensor) -> Tensor:
    """An upscale of all four dimensions, the outer two by the nearest sample."""
    p = node.params
    assert isinstance(p, g.UpscaleParams)
    mode = g.InterpolateMode.UPSCALE_TRIANGLE if p.antialias else _SCALES[p.mode]
    return _node(node, "INTERPOLATE", g.InterpolateParams(mode, 4, p.align_corners), *node.src)


# ---- sums and orders: means are f32, also of f16; indices are i32, and a NaN is the last ---------


@_replaces("ARGSORT")
def _argsort(node: Tensor) -> Tensor:
    p = node.params
    assert isinstance(p, g.ArgsortParams)
    params = g.SortIndicesParams(0, p.order is g.SortOrder.DESC)
    return _node(node, "SORT_INDICES", params, *node.src)


# ---- arithmetic ----------------------------------------------------------------------------------


@_replaces("COUNT_EQUAL")
def _count_equal(node: Tensor) -> Tensor:
    return g.reduce("sum", g.binary("eq", *_sources(node)), range(4))


_SAME_SOURCES: dict[str, tuple[str, Params | None]] = {
    "DUP": ("CONT", None),
    "SUM": ("REDUCE", g.ReduceParams(g.ReduceOp.SUM, 0b1111)),
    "SUM_ROWS": ("REDUCE", g.ReduceParams(g.ReduceOp.SUM, 1)),
    "MEAN": ("REDUCE", g.ReduceParams(g.ReduceOp.MEAN, 1)),
    "CUMSUM": ("CUMULATE", g.CumulateParams(g.CumulateOp.SUM, 0)),
    "TOP_K": ("SORT_INDICES", g.SortIndicesParams(0, True)),
    "ADD1": ("ADD", None),
    "SQR": ("MAP", g.MapParams(g.MapOp.POW, 2.0)),
}
"""Ops that become another op with this record, over the same sources."""


def _over_same_sources(op: str, params: Params | None) -> Form:
    return lambda node: _node(node, op, params, *node.src)


GENERAL.update({op: _over_same_sources(*other) for op, other in _SAME_SOURCES.items()})


def general_form(node: Tensor, ops: Collection[str]) -> list[Tensor]:
    """The tensors that are computed instead of a node of one of `ops`, in order; the last stands
    for the node. For another node, it is the node itself.

    Raises GraphError on a node that has no general form."""
    if node.op.name not in ops or node.op.name not in GENERAL:
        return [node]
    return _new(GENERAL[node.op.name](node), set(node.src))


def _new(tensor: Tensor, known: set[Tensor | None]) -> list[Tensor]:
    """The tensors that `tensor` is made of, down to `known`, and then `tensor`."""
    before: list[Tensor] = []
    for source in tensor.src:
        if source is not None and source is not tensor and source not in known:
            before += _new(source, known)
            known.add(source)
    return [*before, tensor]


def replace_by(node: Tensor, form: Tensor) -> None:
    """Gives `node` the op and the sources of `form`, or makes it the view that `form` is."""
    node.op, node.src, node.params = form.op, form.src, form.params
    if form.view_src is not None:
        node.view_src, node.view_offs = form.view_src, form.view_offs


assert set(GENERAL) <= set(OPS)
