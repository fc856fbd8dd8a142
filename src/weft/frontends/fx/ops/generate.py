"""Tensors without sources, and conversions of type.

Filled tensors are one element that is expanded; ranges of a dynamic length are the beginning of a
constant of the largest length.
"""

from __future__ import annotations

import numpy as np
import torch

from weft import graph as g
from weft.frontends.fx.builder import Builder
from weft.frontends.fx.call import Call
from weft.frontends.fx.layout import Value, broadcast_strides
from weft.frontends.fx.ops.binary import operand
from weft.frontends.fx.registry import visitor
from weft.frontends.fx.sizes import is_static
from weft.graph.size import Expr, upper

aten = torch.ops.aten


def filled(b: Builder, call: Call, number: float) -> Value:
    """A number everywhere, in the result's shape and type."""
    shape = call.shape()
    return b.scalar(number, call.out.dtype).viewed(shape, [0] * len(shape))


@visitor(
    aten.full.default, aten.full_like.default, aten.new_full.default, aten.fill.Scalar,
    aten.scalar_tensor.default, sizes=("fill_value", "value", "s"),
)  # fmt: skip
def full(b: Builder, call: Call) -> Value:
    """A number everywhere."""
    name = next(n for n in ("fill_value", "value", "s") if n in call.args)
    shape = call.shape()
    return operand(b, call, name, call.out.dtype).viewed(shape, [0] * len(shape))


@visitor(
    aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default,
    aten.empty.memory_format, aten.empty_like.default, aten.new_empty.default,
    aten.empty_strided.default, aten.new_empty_strided.default,
)  # fmt: skip
def zeros(b: Builder, call: Call) -> Value:
    """0 everywhere, also for tensors whose values are unspecified."""
    return filled(b, call, 0)


@visitor(aten.ones.default, aten.ones_like.default, aten.new_ones.default)
def ones(b: Builder, call: Call) -> Value:
    """1 everywhere."""
    return filled(b, call, 1)


@visitor(aten.fill.Tensor)
def fill_tensor(b: Builder, call: Call) -> Value:
    """The one element of a tensor everywhere."""
    shape = call.shape()
    value = b.converted(call.value("value"), call.out.dtype)
    return value.viewed(shape, [0] * len(shape))


def _range_rules(call: Call) -> str | None:
    for name in ("start", "step"):
        if not isinstance(call.raw(name, 0), (int, float)):
            return f"a range whose {name} depends on sizes"
    return None


@visitor(
    aten.arange.default,
    aten.arange.start,
    aten.arange.start_step,
    check=_range_rules,
    sizes=("end",),
)
def arange(b: Builder, call: Call) -> Value:
    """The numbers start, start + step and so on."""
    [n] = call.shape()
    start, step = call.number("start", 0), call.number("step", 1)
    numbers = start + step * np.arange(upper(n), dtype=np.float64 if _is_real(call) else np.int64)
    constant = b.constant(numbers, call.out.dtype)
    return constant.viewed([n], constant.strides) if isinstance(n, Expr) else constant


def _is_real(call: Call) -> bool:
    return bool(call.out.dtype.is_floating_point)


def _fixed(call: Call) -> str | None:
    return None if is_static(call.out.shape) else "a dynamic number of steps"


@visitor(aten.eye.default, aten.eye.m)
def eye(b: Builder, call: Call) -> Value:
    """1 on the diagonal."""
    shape = call.shape()
    rows, columns = (upper(n) for n in shape)
    constant = b.constant(np.eye(rows, columns), call.out.dtype)
    return constant.viewed(shape, constant.strides)


@visitor(aten.linspace.default, check=_fixed)
def linspace(b: Builder, call: Call) -> Value:
    """A number of equal steps from start to end."""
    [n] = (int(n) for n in call.out.shape)
    numbers = torch.linspace(call.number("start"), call.number("end"), n).numpy()
    return b.constant(numbers, call.out.dtype)


@visitor(aten.tril.default, aten.triu.default)
def triangle(b: Builder, call: Call) -> Value:
    """0 above or below a diagonal."""
    v = call.value("self")
    k = int(call.number("diagonal", 0))
    rows, columns = v.shape[-2:]
    ones_ = np.ones((upper(rows), upper(columns)), np.int8)
    keep = np.tril(ones_, k) if call.op._schema.name == "aten::tril" else np.triu(ones_, k)
    mask = b.constant(keep, torch.bool)
    mask = mask.viewed([rows, columns], mask.strides)
    c, x, zero = b.joint(v.shape, mask, v, b.scalar(0, v.dtype))
    return b.result(call, g.where(c, x, zero))


# -- conversions -----------------------------------------------------------------------------------


def _dtype_rules(call: Call) -> str | None:
    device = call.raw("device")
    if device is not None and torch.device(device).type not in ("cpu", "meta"):
        return f"a move to {device}"
    return None


@visitor(aten._to_copy.default, aten.to.dtype, aten.to.dtype_layout, check=_dtype_rules)
def to_copy(b: Builder, call: Call) -> Value:
    """The tensor in another type."""
    return b.converted(call.value("self"), call.out.dtype)


@visitor(aten.type_as.default)
def type_as(b: Builder, call: Call) -> Value:
    """The tensor in the type of another one."""
    return b.converted(call.value("self"), call.out.dtype)


@visitor(aten.copy.default)
def copy(b: Builder, call: Call) -> Value:
    """The second tensor in the shape and type of the first."""
    source, shape = b.converted(call.value("src"), call.out.dtype), call.shape()
    return source.viewed(shape, broadcast_strides(source.shape, source.strides, shape))
