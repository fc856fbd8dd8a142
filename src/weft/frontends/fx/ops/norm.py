"""Normalisation and softmax."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from weft import graph as g
from weft.frontends.fx.builder import Builder, reshaped_to
from weft.frontends.fx.call import Call
from weft.frontends.fx.dtypes import is_float
from weft.frontends.fx.layout import Value, product
from weft.frontends.fx.ops.binary import combined
from weft.frontends.fx.ops.reduce import lines, reduced
from weft.frontends.fx.registry import visitor
from weft.graph.size import Size

aten = torch.ops.aten


def rows_of(b: Builder, v: Value, n: Size) -> g.Tensor:
    """All elements as rows of `n`."""
    return reshaped_to(b.dense(v), (n, product(v.shape) // n))


def affine(
    b: Builder, v: Value, call: Call, shape: Sequence[Size], names: tuple[str, str]
) -> Value:
    """weight v + bias, where they exist; their dimensions are viewed as `shape`."""
    for name, kind in zip(names, ("mul", "add"), strict=True):
        if call.has(name):
            p = call.value(name)
            parameter = Value.whole(b.dense(p), p.dtype, shape)
            v = combined(b, kind, v, parameter, v.shape)
    return v


def _layer_norm(b: Builder, call: Call) -> Value:
    v = call.value("input")
    n = product([call.size(s) for s in call.raw("normalized_shape", [])])
    normed = g.norm(rows_of(b, v, n), float(call.number("eps", 1e-5)))
    shape = v.shape[v.rank - len(call.raw("normalized_shape", [])) :]
    return affine(b, Value.whole(normed, v.dtype, v.shape), call, shape, ("weight", "bias"))


@visitor(aten.layer_norm.default)
def layer_norm(b: Builder, call: Call) -> Value:
    """Rows to mean 0 and variance 1, then weight and bias."""
    return _layer_norm(b, call)


def _first_only(call: Call) -> str | None:
    read = [i for i in range(1, len(call.outs)) if call.is_read(i)]
    return "the statistics are read, which weft does not keep" if read else None


@visitor(aten.native_layer_norm.default, check=_first_only)
def native_layer_norm(b: Builder, call: Call) -> list[Value | None]:
    """The normalised rows; the statistics are not computed."""
    return [_layer_norm(b, call), None, None]


@visitor(aten.rms_norm.default, aten._fused_rms_norm.default, check=_first_only)
def rms_norm(b: Builder, call: Call) -> Value | list[Value | None]:
    """Rows to a mean square of 1, then the weight."""
    v = call.value("input")
    normalized = call.raw("normalized_shape", [])
    n = product([call.size(s) for s in normalized])
    eps = float(call.number("eps", float(np.finfo(np.float32).eps)))
    normed = Value.whole(g.rms_norm(rows_of(b, v, n), eps), v.dtype, v.shape)
    result = affine(b, normed, call, v.shape[v.rank - len(normalized) :], ("weight", "bias"))
    return [result, None] if len(call.outs) > 1 else result


def _channels(v: Value) -> tuple[Size, ...]:
    """A shape that lets a parameter per channel broadcast over [batch, channels, ...]."""
    return (v.shape[1], *[1] * (v.rank - 2))


@visitor(aten.native_group_norm.default, check=_first_only)
def native_group_norm(b: Builder, call: Call) -> list[Value | None]:
    """Channels of a group together."""
    v = call.value("input")
    groups = call.size(call.raw("group", 1))
    n = product(v.shape[1:]) // groups
    normed = Value.whole(g.norm(rows_of(b, v, n), float(call.number("eps"))), v.dtype, v.shape)
    return [affine(b, normed, call, _channels(v), ("weight", "bias")), None, None]


# -- batches ---------------------------------------------------------------------------------------


@visitor(aten._native_batch_norm_legit_no_training.default, check=_first_only)
def batch_norm(b: Builder, call: Call) -> list[Value | None]:
    """A factor and a summand for each channel, from fixed statistics."""
    v = call.value("input")
    shape = _channels(v)

    def parameter(name: str) -> Value:
        p = call.value(name)
        return Value.whole(b.dense(p), p.dtype, shape)

    var = parameter("running_var")
    eps = float(call.number("eps"))
    factor = b.mapped(lambda t: g.pointwise("rsqrt", g.scale(t, 1.0, eps)), var)
    if call.has("weight"):
        factor = combined(b, "mul", factor, parameter("weight"), shape)
    result = combined(b, "sub", v, parameter("running_mean"), v.shape)
    result = combined(b, "mul", result, factor, v.shape)
    if call.has("bias"):
        result = combined(b, "add", result, parameter("bias"), v.shape)
    return [result, None, None]


@visitor(aten._native_batch_norm_legit.no_stats, check=_first_only)
def instance_norm(b: Builder, call: Call) -> list[Value | None]:
    """A batch norm with the statistics of the batch itself."""
    v = call.value("input")
    dims = [d for d in range(v.rank) if d != 1]
    eps = float(call.number("eps"))
    if v.shape[0] == 1:
        rows = rows_of(b, v, product(v.shape[2:]))
        normed = Value.whole(g.norm(rows, eps), v.dtype, v.shape)
        return [affine(b, normed, call, _channels(v), ("weight", "bias")), None, None]
    centred = combined(b, "sub", v, reduced(b, "mean", v, dims), v.shape)
    spread = reduced(b, "mean", b.mapped(g.sqr, centred), dims)
    root = b.mapped(lambda t: g.pointwise("rsqrt", g.scale(t, 1.0, eps)), spread)
    normed = combined(b, "mul", centred, root, v.shape)
    return [affine(b, normed, call, _channels(v), ("weight", "bias")), None, None]


# -- softmax ---------------------------------------------------------------------------------------


def _of_floats(call: Call) -> str | None:
    return None if is_float(call.out.dtype) else "softmax of integers"


@visitor(
    aten._softmax.default, aten.softmax.int, aten._safe_softmax.default,
    aten._log_softmax.default, aten.log_softmax.int, check=_of_floats,
)  # fmt: skip
def softmax(b: Builder, call: Call) -> Value:
    """Softmax along any dimension; its logarithm is computed from the differences to the
    largest."""
    v = call.value("self")
    kind = call.op._schema.name.removeprefix("aten::")
    rows, axis = lines(b, b.converted(v, torch.float32), call.dim("dim", v.rank, -1))
    if "log" in kind or axis == 1:
        difference = g.binary("sub", rows, g.reduce("max", rows, [axis]))
        exps = g.exp(difference)
        sums = g.reduce("sum", exps, [axis])
        result = (
            g.binary("sub", difference, g.log(sums))
            if "log" in kind
            else g.binary("div", exps, sums)
        )
    else:
        result = g.soft_max(rows)
    if kind == "_safe_softmax":
        # rows that hold only -inf are 0
        largest = g.reduce("max", rows, [axis])
        low = b.scalar(float("-inf"), torch.float32).tensor
        zero = b.scalar(0.0, torch.float32).tensor
        result = g.where(g.binary("gt", largest, low), result, zero)
    return b.converted(Value.whole(result, torch.float32, v.shape), call.out.dtype)


@visitor(aten.glu.default)
def glu(b: Builder, call: Call) -> Value:
    """First half times the sigmoid of the second."""
    v = call.value("self")
    dim = call.dim("dim", v.rank, -1)
    shape = call.shape()
    half = v.viewed(shape, v.strides)
    gate = v.viewed(shape, v.strides, v.offset + shape[dim] * v.strides[dim])
    sigmoid = b.mapped(lambda t: g.pointwise("sigmoid", t), gate)
    return combined(b, "mul", half, sigmoid, shape)
