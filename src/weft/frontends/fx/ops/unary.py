"""Functions of one tensor, element by element."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from weft import graph as g
from weft.frontends.fx.builder import Builder
from weft.frontends.fx.call import Call
from weft.frontends.fx.dtypes import is_float
from weft.frontends.fx.layout import Value
from weft.frontends.fx.registry import visitor
from weft.graph.tensor import Tensor

aten = torch.ops.aten

_FUNCTIONS: dict[Any, str] = {
    aten.exp.default: "exp", aten.expm1.default: "expm1", aten.exp2.default: "exp2",
    aten.log.default: "log", aten.log2.default: "log2", aten.log10.default: "log10",
    aten.log1p.default: "log1p", aten.sqrt.default: "sqrt", aten.rsqrt.default: "rsqrt",
    aten.reciprocal.default: "reciprocal", aten.sin.default: "sin", aten.cos.default: "cos",
    aten.tan.default: "tan", aten.asin.default: "asin", aten.acos.default: "acos",
    aten.atan.default: "atan", aten.sinh.default: "sinh", aten.cosh.default: "cosh",
    aten.asinh.default: "asinh", aten.acosh.default: "acosh", aten.atanh.default: "atanh",
    aten.tanh.default: "tanh", aten.sigmoid.default: "sigmoid", aten.erf.default: "erf",
    aten.erfc.default: "erfc", aten.silu.default: "silu", aten.hardswish.default: "hardswish",
    aten.hardsigmoid.default: "hardsigmoid", aten.mish.default: "mish",
    aten.log_sigmoid.default: "log_sigmoid",
}  # fmt: skip
"""Functions whose result is a float for every type."""

_KEEPING: dict[Any, str] = {
    aten.abs.default: "abs", aten.neg.default: "neg", aten.sign.default: "sign",
    aten.sgn.default: "sign", aten.relu.default: "relu", aten.relu6.default: "relu6",
}  # fmt: skip
"""Functions of floats and integers that keep the type."""

_ROUNDING: dict[Any, str] = {
    aten.floor.default: "floor", aten.ceil.default: "ceil", aten.trunc.default: "trunc",
    aten.fix.default: "trunc", aten.round.default: "round_even",
}  # fmt: skip

_TESTS: dict[Any, str] = {
    aten.logical_not.default: "logical_not",
    aten.isnan.default: "is_nan",
    aten.isinf.default: "is_inf",
    aten.isfinite.default: "is_finite",
}


def _function(name: str) -> Callable[[Builder, Call], Value]:
    def build(b: Builder, call: Call) -> Value:
        x = b.converted(call.value("self"), call.out.dtype)
        return b.mapped(lambda t: g.pointwise(name, t), x)

    return build


def _keeping(name: str) -> Callable[[Builder, Call], Value]:
    def build(b: Builder, call: Call) -> Value:
        return b.mapped(lambda t: g.pointwise(name, t), call.value("self"), call.out.dtype)

    return build


def _rounding(name: str) -> Callable[[Builder, Call], Value]:
    def build(b: Builder, call: Call) -> Value:
        x = call.value("self")
        return b.mapped(lambda t: g.pointwise(name, t), x) if is_float(x.dtype) else x

    return build


for table, maker in (
    (_FUNCTIONS, _function),
    (_KEEPING, _keeping),
    (_ROUNDING, _rounding),
    (_TESTS, _keeping),
):
    for op, called in table.items():
        visitor(op)(maker(called))


@visitor(aten.square.default)
def square(b: Builder, call: Call) -> Value:
    """x * x."""
    is_real = is_float(call.out.dtype)
    return b.mapped(lambda t: g.sqr(t) if is_real else g.binary("mul", t, t), call.value("self"))


@visitor(aten.round.decimals)
def round_decimals(b: Builder, call: Call) -> Value:
    """x rounded to a number of decimals, as PyTorch does it: scaled, rounded, scaled back."""
    x = call.value("self")
    if not is_float(x.dtype):
        return x
    places = int(call.number("decimals"))
    power = b.scalar(10.0 ** abs(places), x.dtype)
    to, back = ("mul", "div") if places >= 0 else ("div", "mul")

    def rounded(t: Tensor, p: Tensor) -> Tensor:
        return g.binary(back, g.pointwise("round_even", g.binary(to, t, p)), p)

    return b.each(rounded, x.shape, [x, power], x.dtype)


@visitor(aten.angle.default)
def angle(b: Builder, call: Call) -> Value:
    """pi for negative real numbers, 0 for others (also for -0), NaN for NaN."""
    x, zero = b.converted(call.value("self"), call.out.dtype), b.scalar(0.0, call.out.dtype)

    def turned(t: Tensor, z: Tensor) -> Tensor:
        return g.binary("atan2", z, g.binary("add", t, z))

    return b.each(turned, x.shape, [x, zero], call.out.dtype)


@visitor(aten.bitwise_not.default)
def bitwise_not(b: Builder, call: Call) -> Value:
    """The inverse of each bit; for booleans the logical inverse."""
    name = "logical_not" if call.out.dtype is torch.bool else "bit_not"
    return b.mapped(lambda t: g.pointwise(name, t), call.value("self"))


# -- with parameters -------------------------------------------------------------------------------


def _map(b: Builder, call: Call, name: str, *numbers: float) -> Value:
    x = call.value("self" if "self" in call.args else "input")
    return b.mapped(lambda t: g.pointwise(name, t, *numbers), b.converted(x, call.out.dtype))


def _limit(call: Call, name: str, otherwise: float) -> float:
    return float(call.number(name)) if call.has(name) else otherwise


@visitor(aten.clamp.default, aten.clip.default)
def clamp(b: Builder, call: Call) -> Value:
    """x limited on one side or both."""
    return _map(b, call, "clamp", _limit(call, "min", -math.inf), _limit(call, "max", math.inf))


@visitor(aten.clamp_min.default)
def clamp_min(b: Builder, call: Call) -> Value:
    """x limited from below."""
    return _map(b, call, "clamp", float(call.number("min")), math.inf)


@visitor(aten.clamp_max.default)
def clamp_max(b: Builder, call: Call) -> Value:
    """x limited from above."""
    return _map(b, call, "clamp", -math.inf, float(call.number("max")))


@visitor(aten.hardtanh.default)
def hardtanh(b: Builder, call: Call) -> Value:
    """x limited on both sides."""
    low, high = call.number("min_val", -1), call.number("max_val", 1)
    return _map(b, call, "clamp", float(low), float(high))


@visitor(aten.leaky_relu.default)
def leaky_relu(b: Builder, call: Call) -> Value:
    """x above 0, else a share of it."""
    slope = float(call.number("negative_slope", 0.01))
    return b.mapped(lambda t: g.leaky_relu(t, slope), call.value("self"))


@visitor(aten.elu.default)
def elu(b: Builder, call: Call) -> Value:
    """ELU with alpha, and scales of the result and of the input."""
    alpha, scale = float(call.number("alpha", 1)), float(call.number("scale", 1))
    return _map(b, call, "elu", alpha, scale, float(call.number("input_scale", 1)))


@visitor(aten.gelu.default)
def gelu(b: Builder, call: Call) -> Value:
    """GELU through erf, or in its tanh approximation."""
    kind = call.raw("approximate", "none")
    return _map(b, call, "gelu_tanh" if kind == "tanh" else "gelu")


@visitor(aten.softplus.default)
def softplus(b: Builder, call: Call) -> Value:
    """log(1 + exp(beta x)) / beta."""
    return _map(
        b, call, "softplus", float(call.number("beta", 1)), float(call.number("threshold", 20))
    )


@visitor(aten.softshrink.default)
def softshrink(b: Builder, call: Call) -> Value:
    """x moved towards 0."""
    return _map(b, call, "softshrink", float(call.number("lambd", 0.5)))


@visitor(aten.hardshrink.default)
def hardshrink(b: Builder, call: Call) -> Value:
    """x, and 0 where it is small."""
    return _map(b, call, "hardshrink", float(call.number("lambd", 0.5)))


@visitor(aten.threshold.default)
def threshold(b: Builder, call: Call) -> Value:
    """x above a threshold, else a value."""
    x = call.value("self")
    if is_float(x.dtype):
        return _map(
            b, call, "threshold", float(call.number("threshold")), float(call.number("value"))
        )
    numbers = [b.scalar(call.number(n), x.dtype) for n in ("threshold", "value")]

    def kept(t: Tensor, least: Tensor, value: Tensor) -> Tensor:
        return g.where(g.binary("gt", t, least), t, value)

    return b.each(kept, x.shape, [x, *numbers], x.dtype)


@visitor(aten.log_sigmoid_forward.default)
def log_sigmoid_forward(b: Builder, call: Call) -> list[Value | None]:
    """log(sigmoid(x)); the second result, which is for gradients, is not computed."""
    return [_map(b, call, "log_sigmoid"), None]
