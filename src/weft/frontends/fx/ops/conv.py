"""Convolution, pooling and interpolation in one to three dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from weft import graph as g
from weft.frontends.fx.builder import Builder, reshaped_to
from weft.frontends.fx.call import Call
from weft.frontends.fx.dtypes import is_float
from weft.frontends.fx.layout import product
from weft.frontends.fx.registry import visitor
from weft.frontends.fx.sizes import is_static
from weft.frontends.fx.value import Value
from weft.graph.size import Size
from weft.graph.tensor import Tensor

aten = torch.ops.aten


def image(b: Builder, v: Value, dims: int) -> Tensor:
    """The last `dims` dimensions as they are, then channels and batch, which are one behind three.

    What has no batch gets none."""
    lead = v.shape[: v.rank - dims]
    inside = v.shape[v.rank - dims :][::-1]
    outside: Sequence[Size] = (product(lead),)
    if dims < 3 and len(lead) > 1:
        outside = (lead[-1], product(lead[:-1]))
    return reshaped_to(b.dense(v), (*inside, *outside))


def spread(values: Sequence[int], dims: int, default: int) -> tuple[int, ...]:
    """A number for each dimension, innermost first; one number stands for all."""
    given = list(values) or [default]
    return tuple((given * dims if len(given) == 1 else given)[::-1])


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
    return b.result(call, convolved(b, call, call.value("weight"), bias))


def convolved(b: Builder, call: Call, w: Value, bias: Value | None) -> Tensor:
    """What a call convolves, with these weights."""
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
    return g.conv_nd(
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


# -- pooling ---------------------------------------------------------------------------------------

_POOLS: dict[Any, tuple[int, str]] = {
    aten.avg_pool1d.default: (1, "avg"),
    aten.avg_pool2d.default: (2, "avg"),
    aten.avg_pool3d.default: (3, "avg"),
    aten.max_pool1d.default: (1, "max"),
    aten.max_pool2d.default: (2, "max"),
    aten.max_pool3d.default: (3, "max"),
    aten.max_pool1d_with_indices.default: (1, "max"),
    aten.max_pool2d_with_indices.default: (2, "max"),
    aten.max_pool3d_with_indices.default: (3, "max"),
}

_ADAPTIVE: dict[Any, tuple[int, str]] = {
    aten.adaptive_avg_pool1d.default: (1, "avg"),
    aten._adaptive_avg_pool2d.default: (2, "avg"),
    aten._adaptive_avg_pool3d.default: (3, "avg"),
    aten.adaptive_avg_pool2d.default: (2, "avg"),
    aten.adaptive_avg_pool3d.default: (3, "avg"),
    aten.adaptive_max_pool1d.default: (1, "max"),
    aten.adaptive_max_pool2d.default: (2, "max"),
    aten.adaptive_max_pool3d.default: (3, "max"),
}


def _results(b: Builder, call: Call, make: Any) -> Value | list[Value | None]:
    """The pooled values, and where they are if somebody reads that."""
    kind = (_POOLS.get(call.op) or _ADAPTIVE[call.op])[1]
    values = b.result(call, make(kind))
    if len(call.outs) == 1:
        return values
    return [values, b.result(call, make("max_index"), 1) if call.is_read(1) else None]


def _pool(b: Builder, call: Call) -> Value | list[Value | None]:
    dims, _ = _POOLS[call.op]
    kernel = spread(call.numbers("kernel_size"), dims, 1)
    x = image(b, call.value("self"), dims)

    def make(kind: str) -> Tensor:
        stride = call.numbers("stride")
        return g.pool_nd(
            kind,
            x,
            kernel,
            spread(stride, dims, 1) if stride else None,
            spread(call.numbers("padding"), dims, 0),
            spread(call.numbers("dilation"), dims, 1),
            ceil_mode=bool(call.raw("ceil_mode", False)),
            count_include_pad=bool(call.args.get("count_include_pad", True)),
            divisor=int(call.raw("divisor_override", 0)),
        )

    return _results(b, call, make)


def _adaptive(b: Builder, call: Call) -> Value | list[Value | None]:
    dims, _ = _ADAPTIVE[call.op]
    x = image(b, call.value("self"), dims)
    sizes = [call.size(n) for n in call.out.shape[-dims:]][::-1]
    return _results(b, call, lambda kind: g.adaptive_pool_nd(kind, x, sizes))


for op in _POOLS:
    visitor(op)(_pool)
for op in _ADAPTIVE:
    visitor(op)(_adaptive)


# -- interpolation ---------------------------------------------------------------------------------

_MODES: dict[str, tuple[int, str]] = {
    "upsample_nearest1d": (1, "nearest"),
    "upsample_nearest2d": (2, "nearest"),
    "upsample_nearest3d": (3, "nearest"),
    "_upsample_nearest_exact1d": (1, "nearest_exact"),
    "_upsample_nearest_exact2d": (2, "nearest_exact"),
    "_upsample_nearest_exact3d": (3, "nearest_exact"),
    "upsample_linear1d": (1, "linear"),
    "upsample_bilinear2d": (2, "linear"),
    "upsample_trilinear3d": (3, "linear"),
    "upsample_bicubic2d": (2, "cubic"),
}


def _given_scales(call: Call, dims: int) -> list[float] | None:
    """Scales as PyTorch uses them, innermost first: only those that were given."""
    if "scale_factors" in call.args:
        given = call.raw("scale_factors")
        return [float(s) for s in given][::-1] if given else None
    names = {1: ["scales"], 2: ["scales_h", "scales_w"], 3: ["scales_d", "scales_h", "scales_w"]}
    given = [call.raw(n) for n in names[dims]]
    return [float(s) for s in given][::-1] if all(s is not None for s in given) else None


def _upsample(b: Builder, call: Call) -> Value:
    dims, mode = _MODES[call.op._schema.name.removeprefix("aten::")]
    v = call.value("input" if "input" in call.args else "self")
    made = g.interpolate(
        mode,
        image(b, v, dims),
        [call.size(n) for n in call.out.shape[-dims:]][::-1],
        align_corners=bool(call.raw("align_corners", False)),
        scales=_given_scales(call, dims),
    )
    return b.result(call, made)


def _upsample_rules(call: Call) -> str | None:
    return None if is_float(call.out.dtype) else "interpolation of integers"


for name in _MODES:
    packet = getattr(aten, name)
    for overload in ("default", "vec"):
        if overload in packet.overloads():
            visitor(getattr(packet, overload), check=_upsample_rules)(_upsample)
