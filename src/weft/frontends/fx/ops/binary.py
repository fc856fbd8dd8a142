"""Functions of two tensors, or of a tensor and a number, with broadcasting and promotion."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from weft import graph as g
from weft.frontends.fx.builder import Builder
from weft.frontends.fx.call import Call, fake_of
from weft.frontends.fx.dtypes import is_float
from weft.frontends.fx.layout import Value
from weft.frontends.fx.registry import visitor
from weft.graph.tensor import Tensor

aten = torch.ops.aten

_ARITHMETIC: dict[Any, str] = {
    aten.mul.Tensor: "mul", aten.mul.Scalar: "mul", aten.div.Tensor: "div", aten.div.Scalar: "div",
    aten.true_divide.Tensor: "div", aten.floor_divide.default: "floor_div",
    aten.floor_divide.Scalar: "floor_div", aten.remainder.Tensor: "remainder",
    aten.remainder.Scalar: "remainder", aten.fmod.Tensor: "fmod", aten.fmod.Scalar: "fmod",
    aten.minimum.default: "min", aten.maximum.default: "max", aten.min.other: "min",
    aten.max.other: "max", aten.atan2.default: "atan2", aten.bitwise_and.Tensor: "bit_and",
    aten.bitwise_and.Scalar: "bit_and", aten.bitwise_or.Tensor: "bit_or",
    aten.bitwise_or.Scalar: "bit_or", aten.bitwise_xor.Tensor: "bit_xor",
    aten.bitwise_xor.Scalar: "bit_xor", aten.bitwise_left_shift.Tensor: "shift_left",
    aten.bitwise_right_shift.Tensor: "shift_right",
    aten.bitwise_left_shift.Tensor_Scalar: "shift_left",
    aten.bitwise_right_shift.Tensor_Scalar: "shift_right", aten.__and__.Tensor: "bit_and",
    aten.__and__.Scalar: "bit_and", aten.__or__.Tensor: "bit_or", aten.__or__.Scalar: "bit_or",
    aten.__xor__.Tensor: "bit_xor", aten.__xor__.Scalar: "bit_xor",
    aten.__lshift__.Tensor: "shift_left", aten.__lshift__.Scalar: "shift_left",
    aten.__rshift__.Tensor: "shift_right", aten.__rshift__.Scalar: "shift_right",
}  # fmt: skip

_TESTS: dict[Any, str] = {
    aten.eq.Tensor: "eq", aten.eq.Scalar: "eq", aten.ne.Tensor: "ne", aten.ne.Scalar: "ne",
    aten.lt.Tensor: "lt", aten.lt.Scalar: "lt", aten.le.Tensor: "le", aten.le.Scalar: "le",
    aten.gt.Tensor: "gt", aten.gt.Scalar: "gt", aten.ge.Tensor: "ge", aten.ge.Scalar: "ge",
    aten.logical_and.default: "logical_and", aten.logical_or.default: "logical_or",
    aten.logical_xor.default: "logical_xor",
}  # fmt: skip

_GGML = {"add": g.add, "sub": g.sub, "mul": g.mul, "div": g.div}
"""Ops of ggml, which repeat their second source only, and which fusions look for."""


def operands(b: Builder, call: Call, dtype: torch.dtype) -> list[Value]:
    """`self` and `other` in one type; numbers become constants."""
    return [operand(b, call, name, dtype) for name in ("self", "other")]


def operand(b: Builder, call: Call, name: str, dtype: torch.dtype) -> Value:
    """An argument in a type: a tensor, a number, or a number computed from sizes."""
    raw = call.raw(name, 0)
    if isinstance(raw, (int, float, bool)):
        return b.scalar(raw, dtype)
    if isinstance(fake_of(raw), (torch.SymInt, torch.SymFloat)):
        return b.measured(fake_of(raw), dtype)
    return b.converted(call.value(name), dtype)


def combined(
    b: Builder, name: str, left: Value, right: Value, shape: Any, dtype: torch.dtype | None = None
) -> Value:
    """A function of two values of one type that broadcast to `shape`; `dtype` is the type of the
    result, if it differs."""
    return b.each(lambda x, y: _binary(name, x, y), shape, [left, right], dtype or left.dtype)


def _binary(name: str, x: Tensor, y: Tensor) -> Tensor:
    if name in _GGML and x.dtype.name == y.dtype.name == "f32":
        # the smaller one, or a weight, comes second
        is_weight = x.buffer is not None and y.buffer is None
        if name in ("add", "mul") and _covers(y, x) and (is_weight or not _covers(x, y)):
            x, y = y, x
        if _covers(x, y) and x.is_contiguous and y.is_contiguous:
            return _GGML[name](x, y)
    return g.binary(name, x, y)


def _covers(big: Tensor, small: Tensor) -> bool:
    return all(m in (n, 1) for n, m in zip(big.ne, small.ne, strict=True))


def _bools(name: str, dtype: torch.dtype) -> str:
    """The function that computes a product or sum of booleans, which is logical."""
    logic = {"mul": "logical_and", "add": "logical_or", "bit_and": "logical_and"}
    logic |= {"bit_or": "logical_or", "bit_xor": "logical_xor", "sub": "logical_xor"}
    return logic.get(name, name) if dtype is torch.bool else name


def _number(call: Call) -> float | None:
    """`other` where it is a finite number, else None."""
    raw = call.raw("other")
    if isinstance(raw, (int, float)) and not isinstance(raw, bool) and math.isfinite(raw):
        return float(raw)
    return None


def _scaled(b: Builder, call: Call, s: float, shift: float) -> Value | None:
    """s self + shift as one op, where that rounds as PyTorch does; else None."""
    x = call.value("self")
    if not is_float(call.out.dtype) or not is_float(x.dtype):
        return None
    if s == 1 and shift == 0 and call.out.dtype == x.dtype:
        return x
    return b.mapped(lambda t: g.scale(t, s, shift), x, call.out.dtype)


def _arithmetic(name: str) -> Callable[[Builder, Call], Value]:
    def build(b: Builder, call: Call) -> Value:
        number = _number(call)
        if number is not None and name == "mul":
            scaled = _scaled(b, call, number, 0.0)
            if scaled is not None:
                return scaled
        if number is not None and name == "div" and number and math.frexp(number)[0] == 0.5:
            scaled = _scaled(b, call, 1 / number, 0.0)
            if scaled is not None:
                return scaled
        dtype = call.out.dtype
        left, right = operands(b, call, dtype)
        return combined(b, _bools(name, dtype), left, right, call.shape(), dtype)

    return build


def _compared_type(call: Call) -> torch.dtype:
    """The type to which both sides of a comparison are converted."""
    sides = (call.fake(n) for n in ("self", "other"))
    left, right = (1 if isinstance(s, torch.SymInt) else s for s in sides)
    dtype = torch.result_type(left, right)
    return torch.float32 if dtype is torch.float64 else dtype


def _test(name: str) -> Callable[[Builder, Call], Value]:
    def build(b: Builder, call: Call) -> Value:
        left, right = operands(b, call, _compared_type(call))
        return combined(b, name, left, right, call.shape(), torch.bool)

    return build


for op, called in _ARITHMETIC.items():
    visitor(op, sizes=("self", "other"))(_arithmetic(called))
for op, called in _TESTS.items():
    visitor(op, sizes=("self", "other"))(_test(called))


def _times(b: Builder, v: Value, factor: float) -> Value:
    if factor == 1:
        return v
    if is_float(v.dtype):
        return b.mapped(lambda t: g.scale(t, float(factor)), v)
    return b.each(
        lambda x, y: g.binary("mul", x, y), v.shape, [v, b.scalar(factor, v.dtype)], v.dtype
    )


@visitor(aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar, sizes=("other",))
def add(b: Builder, call: Call) -> Value:
    """self + alpha other."""
    name = "add" if call.op._schema.name == "aten::add" else "sub"
    alpha = call.number("alpha", 1)
    number = _number(call)
    if number is not None:
        shift = number * alpha if name == "add" else -number * alpha
        scaled = _scaled(b, call, 1.0, float(shift))
        if scaled is not None:
            return scaled
    dtype = call.out.dtype
    left, right = operands(b, call, dtype)
    right = _times(b, right, alpha)
    return combined(b, _bools(name, dtype), left, right, call.shape(), dtype)


@visitor(aten.fmax.default, aten.fmin.default)
def without_nan(b: Builder, call: Call) -> Value:
    """The larger or smaller element; of a number and a NaN the number."""
    name = call.op._schema.name.removeprefix("aten::f")
    dtype, shape = call.out.dtype, call.shape()
    left, right = operands(b, call, dtype)
    if not is_float(dtype):
        return combined(b, _bools(name, dtype), left, right, shape)
    nan = [b.mapped(lambda t: g.pointwise("is_nan", t), v, torch.bool) for v in (left, right)]
    result = chosen(b, nan[1], left, combined(b, name, left, right, shape), shape)
    return chosen(b, nan[0], right, result, shape)


@visitor(aten.rsub.Scalar, aten.rsub.Tensor, sizes=("other",))
def rsub(b: Builder, call: Call) -> Value:
    """other - alpha self."""
    number, alpha = _number(call), call.number("alpha", 1)
    if number is not None:
        scaled = _scaled(b, call, -float(alpha), number)
        if scaled is not None:
            return scaled
    left, right = operands(b, call, call.out.dtype)
    return combined(b, "sub", right, _times(b, left, alpha), call.shape(), call.out.dtype)


@visitor(aten.div.Tensor_mode, aten.div.Scalar_mode, sizes=("other",))
def div_mode(b: Builder, call: Call) -> Value:
    """The quotient, rounded down, towards zero, or not at all."""
    name = {"floor": "floor_div", "trunc": "trunc_div"}.get(call.raw("rounding_mode", ""), "div")
    left, right = operands(b, call, call.out.dtype)
    return combined(b, name, left, right, call.shape(), call.out.dtype)


@visitor(aten.pow.Tensor_Tensor)
def pow_tensor(b: Builder, call: Call) -> Value:
    """Each element to the power of the other tensor's element."""
    dtype = call.out.dtype
    left = b.converted(call.value("self"), dtype)
    right = b.converted(call.value("exponent"), dtype)
    return combined(b, "pow", left, right, call.shape(), dtype)


@visitor(aten.pow.Tensor_Scalar)
def pow_scalar(b: Builder, call: Call) -> Value:
    """Each element to the power of a number; frequent exponents have ops of their own."""
    exponent, dtype = call.number("exponent"), call.out.dtype
    x = b.converted(call.value("self"), dtype)
    if not is_float(dtype):
        return combined(b, "pow", x, b.scalar(exponent, dtype), call.shape(), dtype)
    if exponent == 1:
        return x
    named = {2: "square", 0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}.get(exponent)
    if named:
        return b.mapped(lambda t: g.pointwise(named, t), x)
    return b.mapped(lambda t: g.pointwise("pow", t, exponent), x)


@visitor(aten.pow.Scalar, sizes=("self",))
def pow_base(b: Builder, call: Call) -> Value:
    """A number to the power of each element."""
    dtype = call.out.dtype
    base = operand(b, call, "self", dtype)
    x = b.converted(call.value("exponent"), dtype)
    return combined(b, "pow", base, x, call.shape(), dtype)


# -- choosing --------------------------------------------------------------------------------------


def chosen(b: Builder, condition: Value, left: Value, right: Value, shape: Any) -> Value:
    """`left` where the condition holds, else `right`."""
    values = [b.converted(condition, torch.bool), left, right]
    return b.each(g.where, shape, values, left.dtype)


@visitor(
    aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar,
    sizes=("self", "other"),
)  # fmt: skip
def where(b: Builder, call: Call) -> Value:
    """One tensor where the condition holds, else the other."""
    left, right = operands(b, call, call.out.dtype)
    return chosen(b, call.value("condition"), left, right, call.shape())


@visitor(aten.masked_fill.Scalar, aten.masked_fill.Tensor, sizes=("value",))
def masked_fill(b: Builder, call: Call) -> Value:
    """A number where the mask holds, else the element."""
    dtype = call.out.dtype
    value = operand(b, call, "value", dtype)
    x = b.converted(call.value("self"), dtype)
    return chosen(b, call.value("mask"), value, x, call.shape())


@visitor(aten.clamp.Tensor)
def clamp_tensor(b: Builder, call: Call) -> Value:
    """Elements limited by the elements of tensors."""
    dtype, shape = call.out.dtype, call.shape()
    v = b.converted(call.value("self"), dtype)
    for name, kind in (("min", "max"), ("max", "min")):
        if call.has(name):
            limit = b.converted(call.value(name), dtype)
            v = combined(b, kind, v, limit, shape)
    return v


@visitor(aten._prelu_kernel.default)
def prelu(b: Builder, call: Call) -> Value:
    """x where it is above 0, else weight * x."""
    x, shape = call.value("self"), call.shape()
    low = combined(b, "mul", x, call.value("weight"), shape)
    test = combined(b, "gt", x, b.scalar(0, x.dtype), shape, torch.bool)
    return chosen(b, test, x, low, shape)
