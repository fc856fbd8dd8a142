"""Elementwise ops and reductions on plain tensors, as NumPy computes them, floats in float64.

Where NumPy and PyTorch differ, PyTorch's rule is written out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.backends.reference.elementwise import erf, gelu, gelu_erf
from weft.backends.reference.kernel import Call, kernel
from weft.graph import ops as g

Array = NDArray[Any]


def values(call: Call, i: int) -> Array:
    """Source `i`: integers unchanged, floats as float64."""
    x = call.read(i)
    return x if x.dtype.kind == "i" else x.astype(np.float64)


def _divisor(a: Array, b: Array) -> None:
    if a.dtype.kind == "i" and (b == 0).any():
        raise ZeroDivisionError("an integer is divided by 0")


def _floor_div(a: Array, b: Array) -> Array:
    _divisor(a, b)
    whole: Array = np.floor_divide(a, b)
    return whole


def _trunc_div(a: Array, b: Array) -> Array:
    _divisor(a, b)
    quotient: Array = np.floor_divide(a, b)
    # the quotient is one too low where it is negative and not whole
    cut: Array = quotient + ((quotient < 0) & (quotient * b != a))
    return cut


def _remainder(a: Array, b: Array) -> Array:
    _divisor(a, b)
    remainder: Array = np.mod(a, b)
    return remainder


def _fmod(a: Array, b: Array) -> Array:
    _divisor(a, b)
    return np.fmod(a, b)


def _power(a: Array, b: Array) -> Array:
    if a.dtype.kind != "i":
        return np.power(a, b)
    whole = np.power(a, np.maximum(b, 0))
    # a power below 1 becomes 0; powers of 1 and -1 are never fractions
    odd = np.where(b % 2 == 0, 1, a)
    return np.where(b >= 0, whole, np.where(np.abs(a) == 1, odd, 0))


def _shift(a: Array, b: Array, left: bool) -> Array:
    bits = a.dtype.itemsize * 8
    inside = (b >= 0) & (b < bits)
    by = np.where(inside, b, bits - 1)
    if left:
        return np.where(inside, np.left_shift(a, by), 0)
    return np.right_shift(a, by)


_BINARY: dict[g.BinaryOp, Callable[[Array, Array], Array]] = {
    g.BinaryOp.ADD: np.add,
    g.BinaryOp.SUB: np.subtract,
    g.BinaryOp.MUL: np.multiply,
    g.BinaryOp.DIV: np.divide,
    g.BinaryOp.FLOOR_DIV: _floor_div,
    g.BinaryOp.TRUNC_DIV: _trunc_div,
    g.BinaryOp.REMAINDER: _remainder,
    g.BinaryOp.FMOD: _fmod,
    g.BinaryOp.POW: _power,
    g.BinaryOp.MIN: np.minimum,
    g.BinaryOp.MAX: np.maximum,
    g.BinaryOp.ATAN2: np.arctan2,
    g.BinaryOp.EQ: np.equal,
    g.BinaryOp.NE: np.not_equal,
    g.BinaryOp.LT: np.less,
    g.BinaryOp.LE: np.less_equal,
    g.BinaryOp.GT: np.greater,
    g.BinaryOp.GE: np.greater_equal,
    g.BinaryOp.LOGICAL_AND: np.logical_and,
    g.BinaryOp.LOGICAL_OR: np.logical_or,
    g.BinaryOp.LOGICAL_XOR: np.logical_xor,
    g.BinaryOp.BIT_AND: np.bitwise_and,
    g.BinaryOp.BIT_OR: np.bitwise_or,
    g.BinaryOp.BIT_XOR: np.bitwise_xor,
    g.BinaryOp.SHIFT_LEFT: lambda a, b: _shift(a, b, True),
    g.BinaryOp.SHIFT_RIGHT: lambda a, b: _shift(a, b, False),
}


@kernel("BINARY")
def binary(call: Call) -> None:
    """A function of two numbers, whose sizes broadcast both ways."""
    p: g.BinaryParams = call.params
    a, b = values(call, 0), values(call, 1)
    if p.op is g.BinaryOp.TRUNC_DIV and a.dtype.kind != "i":
        # the quotient is rounded to the type, then truncated
        call.dst.write(np.trunc(call.dst.decode(call.dst.encode(a / b))))
        return
    call.dst.write(_BINARY[p.op](a, b))


def _clamp(x: Array, p: g.MapParams) -> Array:
    if x.dtype.kind != "i":
        return np.minimum(np.maximum(x, p.a), p.b)
    limits = np.iinfo(x.dtype)
    low = limits.min if p.a <= limits.min else limits.max if p.a >= limits.max else int(p.a)
    high = limits.min if p.b <= limits.min else limits.max if p.b >= limits.max else int(p.b)
    limited: Array = np.minimum(np.maximum(x, x.dtype.type(low)), x.dtype.type(high))
    return limited


def _elu(x: Array, p: g.MapParams) -> Array:
    return np.where(x > 0, x * p.b, p.a * p.b * np.expm1(np.minimum(x, 0) * p.c))


def _softplus(x: Array, beta: float, threshold: float) -> Array:
    scaled = x * beta
    return np.where(scaled > threshold, x, np.logaddexp(0, scaled) / beta)


_erfc = np.vectorize(math.erfc, otypes=[np.float64])

_MAP: dict[g.MapOp, Callable[[Array, g.MapParams], Array]] = {
    g.MapOp.ABS: lambda x, p: np.abs(x),
    g.MapOp.NEG: lambda x, p: np.negative(x),
    g.MapOp.SIGN: lambda x, p: (x > 0).astype(x.dtype) - (x < 0),
    g.MapOp.BIT_NOT: lambda x, p: np.invert(x),
    g.MapOp.CLAMP: _clamp,
    g.MapOp.ROUND_EVEN: lambda x, p: np.rint(x),
    g.MapOp.EXP2: lambda x, p: np.exp2(x),
    g.MapOp.LOG2: lambda x, p: np.log2(x),
    g.MapOp.LOG10: lambda x, p: np.log10(x),
    g.MapOp.LOG1P: lambda x, p: np.log1p(x),
    g.MapOp.RSQRT: lambda x, p: 1 / np.sqrt(x),
    g.MapOp.RECIPROCAL: lambda x, p: 1 / x,
    g.MapOp.TAN: lambda x, p: np.tan(x),
    g.MapOp.ASIN: lambda x, p: np.arcsin(x),
    g.MapOp.ACOS: lambda x, p: np.arccos(x),
    g.MapOp.ATAN: lambda x, p: np.arctan(x),
    g.MapOp.SINH: lambda x, p: np.sinh(x),
    g.MapOp.COSH: lambda x, p: np.cosh(x),
    g.MapOp.ASINH: lambda x, p: np.arcsinh(x),
    g.MapOp.ACOSH: lambda x, p: np.arccosh(x),
    g.MapOp.ATANH: lambda x, p: np.arctanh(x),
    g.MapOp.ERF: lambda x, p: erf(x),
    g.MapOp.ERFC: lambda x, p: _erfc(x),
    g.MapOp.ELU: _elu,
    g.MapOp.SOFTPLUS: lambda x, p: _softplus(x, p.a, p.b),
    g.MapOp.SOFTSHRINK: lambda x, p: np.where(x > p.a, x - p.a, np.where(x < -p.a, x + p.a, x * 0)),
    g.MapOp.HARDSHRINK: lambda x, p: np.where((x >= -p.a) & (x <= p.a), 0, x),
    g.MapOp.THRESHOLD: lambda x, p: np.where(x <= p.a, p.b, x),
    g.MapOp.HARDSIGMOID: lambda x, p: np.minimum(np.maximum(x + 3, 0), 6) / 6,
    g.MapOp.MISH: lambda x, p: x * np.tanh(np.logaddexp(0, x)),
    g.MapOp.LOG_SIGMOID: lambda x, p: -np.logaddexp(0, -x),
    g.MapOp.LEAKY_RELU: lambda x, p: np.where(x > 0, x, x * p.a),
    g.MapOp.POW: lambda x, p: np.power(x, p.a),
    g.MapOp.GELU: lambda x, p: gelu_erf(x),
    g.MapOp.GELU_TANH: lambda x, p: gelu(x),
    g.MapOp.LOGICAL_NOT: lambda x, p: x == 0,
    g.MapOp.IS_NAN: lambda x, p: np.isnan(x),
    g.MapOp.IS_INF: lambda x, p: np.isinf(x),
    g.MapOp.IS_FINITE: lambda x, p: np.isfinite(x),
}


@kernel("MAP")
def map_elements(call: Call) -> None:
    """A function of each element."""
    p: g.MapParams = call.params
    call.dst.write(_MAP[p.op](values(call, 0), p))


@kernel("WHERE")
def where(call: Call) -> None:
    """src1 where src0 is not 0, else src2, bit by bit."""
    condition, a, b = (call.view(i).units for i in range(3))
    call.dst.units[...] = np.where(condition != 0, a, b)


@kernel("CONVERT")
def convert(call: Call) -> None:
    """The elements in another type: floats truncate, integers wrap around."""
    p: g.ConvertParams = call.params
    x = call.read(0)
    if p.boolean:
        x = x != 0
    elif x.dtype.kind != "i" and call.dst.dtype.storage.kind == "i":
        # through i64, as processors convert
        x = x.astype(np.int64)
    call.dst.write(x)


# -- reductions ------------------------------------------------------------------------------------

_REDUCE: dict[g.ReduceOp, Callable[..., Array]] = {
    g.ReduceOp.SUM: np.sum,
    g.ReduceOp.MEAN: np.mean,
    g.ReduceOp.MAX: np.max,
    g.ReduceOp.MIN: np.min,
    g.ReduceOp.PROD: np.prod,
    g.ReduceOp.ANY: np.any,
    g.ReduceOp.ALL: np.all,
}


@kernel("REDUCE")
def reduce(call: Call) -> None:
    """One number for all elements along the axes."""
    p: g.ReduceParams = call.params
    axes = tuple(3 - d for d in range(4) if p.axes >> d & 1)
    x = values(call, 0)
    if p.op in (g.ReduceOp.SUM, g.ReduceOp.PROD) and x.dtype.kind == "i":
        x = x.astype(np.int64)
    call.dst.write(_REDUCE[p.op](x, axis=axes, keepdims=True))


@kernel("ARG_REDUCE")
def arg_reduce(call: Call) -> None:
    """The first position of the largest or smallest element; a NaN counts as either."""
    p: g.ArgReduceParams = call.params
    x = call.read(0)
    find = np.argmax if p.largest else np.argmin
    position = find(x, axis=None if p.axis < 0 else 3 - p.axis)
    call.dst.write(np.asarray(position, np.int64).reshape(call.dst.shape))


@kernel("CUMULATE")
def cumulate(call: Call) -> None:
    """Running sums or products along an axis."""
    p: g.CumulateParams = call.params
    x = values(call, 0)
    if x.dtype.kind == "i":
        x = x.astype(np.int64)
    run = np.cumsum if p.op is g.CumulateOp.SUM else np.cumprod
    call.dst.write(run(x, axis=3 - p.axis))


@kernel("CUMULATE_ARG")
def cumulate_arg(call: Call) -> None:
    """The last position, up to each element, of the largest or smallest so far; or of a NaN."""
    p: g.ArgReduceParams = call.params
    x, axis = call.read(0), 3 - p.axis
    best = (np.maximum if p.largest else np.minimum).accumulate(x, axis=axis)
    at: Array = np.indices(x.shape, sparse=True)[axis]
    places = np.where((x == best) | (x != x), at, 0)
    call.dst.write(np.maximum.accumulate(places, axis=axis))
