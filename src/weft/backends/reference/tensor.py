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
from weft.graph.ops import (
    ArgReduceParams,
    BinaryOp,
    BinaryParams,
    ConvertParams,
    CumulateOp,
    CumulateParams,
    MapOp,
    MapParams,
    ReduceOp,
    ReduceParams,
)

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


_BINARY: dict[BinaryOp, Callable[[Array, Array], Array]] = {
    BinaryOp.ADD: np.add,
    BinaryOp.SUB: np.subtract,
    BinaryOp.MUL: np.multiply,
    BinaryOp.DIV: np.divide,
    BinaryOp.FLOOR_DIV: _floor_div,
    BinaryOp.TRUNC_DIV: _trunc_div,
    BinaryOp.REMAINDER: _remainder,
    BinaryOp.FMOD: _fmod,
    BinaryOp.POW: _power,
    BinaryOp.MIN: np.minimum,
    BinaryOp.MAX: np.maximum,
    BinaryOp.ATAN2: np.arctan2,
    BinaryOp.EQ: np.equal,
    BinaryOp.NE: np.not_equal,
    BinaryOp.LT: np.less,
    BinaryOp.LE: np.less_equal,
    BinaryOp.GT: np.greater,
    BinaryOp.GE: np.greater_equal,
    BinaryOp.LOGICAL_AND: np.logical_and,
    BinaryOp.LOGICAL_OR: np.logical_or,
    BinaryOp.LOGICAL_XOR: np.logical_xor,
    BinaryOp.BIT_AND: np.bitwise_and,
    BinaryOp.BIT_OR: np.bitwise_or,
    BinaryOp.BIT_XOR: np.bitwise_xor,
    BinaryOp.SHIFT_LEFT: lambda a, b: _shift(a, b, True),
    BinaryOp.SHIFT_RIGHT: lambda a, b: _shift(a, b, False),
}


@kernel("BINARY")
def binary(call: Call) -> None:
    """A function of two numbers, whose sizes broadcast both ways."""
    p: BinaryParams = call.params
    a, b = values(call, 0), values(call, 1)
    if p.op is BinaryOp.TRUNC_DIV and a.dtype.kind != "i":
        # the quotient is rounded to the type, then truncated
        call.dst.write(np.trunc(call.dst.decode(call.dst.encode(a / b))))
        return
    call.dst.write(_BINARY[p.op](a, b))


def _clamp(x: Array, p: MapParams) -> Array:
    if x.dtype.kind != "i":
        return np.minimum(np.maximum(x, p.a), p.b)
    limits = np.iinfo(x.dtype)
    low = limits.min if p.a <= limits.min else limits.max if p.a >= limits.max else int(p.a)
    high = limits.min if p.b <= limits.min else limits.max if p.b >= limits.max else int(p.b)
    limited: Array = np.minimum(np.maximum(x, x.dtype.type(low)), x.dtype.type(high))
    return limited


def _elu(x: Array, p: MapParams) -> Array:
    return np.where(x > 0, x * p.b, p.a * p.b * np.expm1(np.minimum(x, 0) * p.c))


def _softplus(x: Array, beta: float, threshold: float) -> Array:
    scaled = x * beta
    return np.where(scaled > threshold, x, np.logaddexp(0, scaled) / beta)


_erfc = np.vectorize(math.erfc, otypes=[np.float64])

_MAP: dict[MapOp, Callable[[Array, MapParams], Array]] = {
    MapOp.ABS: lambda x, p: np.abs(x),
    MapOp.NEG: lambda x, p: np.negative(x),
    MapOp.SIGN: lambda x, p: (x > 0).astype(x.dtype) - (x < 0),
    MapOp.BIT_NOT: lambda x, p: np.invert(x),
    MapOp.CLAMP: _clamp,
    MapOp.ROUND_EVEN: lambda x, p: np.rint(x),
    MapOp.EXP2: lambda x, p: np.exp2(x),
    MapOp.LOG2: lambda x, p: np.log2(x),
    MapOp.LOG10: lambda x, p: np.log10(x),
    MapOp.LOG1P: lambda x, p: np.log1p(x),
    MapOp.RSQRT: lambda x, p: 1 / np.sqrt(x),
    MapOp.RECIPROCAL: lambda x, p: 1 / x,
    MapOp.TAN: lambda x, p: np.tan(x),
    MapOp.ASIN: lambda x, p: np.arcsin(x),
    MapOp.ACOS: lambda x, p: np.arccos(x),
    MapOp.ATAN: lambda x, p: np.arctan(x),
    MapOp.SINH: lambda x, p: np.sinh(x),
    MapOp.COSH: lambda x, p: np.cosh(x),
    MapOp.ASINH: lambda x, p: np.arcsinh(x),
    MapOp.ACOSH: lambda x, p: np.arccosh(x),
    MapOp.ATANH: lambda x, p: np.arctanh(x),
    MapOp.ERF: lambda x, p: erf(x),
    MapOp.ERFC: lambda x, p: _erfc(x),
    MapOp.ELU: _elu,
    MapOp.SOFTPLUS: lambda x, p: _softplus(x, p.a, p.b),
    MapOp.SOFTSHRINK: lambda x, p: np.where(x > p.a, x - p.a, np.where(x < -p.a, x + p.a, x * 0)),
    MapOp.HARDSHRINK: lambda x, p: np.where((x >= -p.a) & (x <= p.a), 0, x),
    MapOp.THRESHOLD: lambda x, p: np.where(x <= p.a, p.b, x),
    MapOp.HARDSIGMOID: lambda x, p: np.minimum(np.maximum(x + 3, 0), 6) / 6,
    MapOp.MISH: lambda x, p: x * np.tanh(np.logaddexp(0, x)),
    MapOp.LOG_SIGMOID: lambda x, p: -np.logaddexp(0, -x),
    MapOp.LEAKY_RELU: lambda x, p: np.where(x > 0, x, x * p.a),
    MapOp.POW: lambda x, p: np.power(x, p.a),
    MapOp.GELU: lambda x, p: gelu_erf(x),
    MapOp.GELU_TANH: lambda x, p: gelu(x),
    MapOp.LOGICAL_NOT: lambda x, p: x == 0,
    MapOp.IS_NAN: lambda x, p: np.isnan(x),
    MapOp.IS_INF: lambda x, p: np.isinf(x),
    MapOp.IS_FINITE: lambda x, p: np.isfinite(x),
}


@kernel("MAP")
def map_elements(call: Call) -> None:
    """A function of each element."""
    p: MapParams = call.params
    call.dst.write(_MAP[p.op](values(call, 0), p))


@kernel("WHERE")
def where(call: Call) -> None:
    """src1 where src0 is not 0, else src2, bit by bit."""
    condition, a, b = (call.view(i).units for i in range(3))
    call.dst.units[...] = np.where(condition != 0, a, b)


@kernel("CONVERT")
def convert(call: Call) -> None:
    """The elements in another type: floats truncate, integers wrap around."""
    p: ConvertParams = call.params
    x = call.read(0)
    if p.boolean:
        x = x != 0
    elif x.dtype.kind != "i" and call.dst.dtype.storage.kind == "i":
        # through i64, as processors convert
        x = x.astype(np.int64)
    call.dst.write(x)


# -- reductions ------------------------------------------------------------------------------------

_REDUCE: dict[ReduceOp, Callable[..., Array]] = {
    ReduceOp.SUM: np.sum,
    ReduceOp.MEAN: np.mean,
    ReduceOp.MAX: np.max,
    ReduceOp.MIN: np.min,
    ReduceOp.PROD: np.prod,
    ReduceOp.ANY: np.any,
    ReduceOp.ALL: np.all,
}


@kernel("REDUCE")
def reduce(call: Call) -> None:
    """One number for all elements along the axes."""
    p: ReduceParams = call.params
    axes = tuple(3 - d for d in range(4) if p.axes >> d & 1)
    x = values(call, 0)
    if p.op in (ReduceOp.SUM, ReduceOp.PROD) and x.dtype.kind == "i":
        x = x.astype(np.int64)
    call.dst.write(_REDUCE[p.op](x, axis=axes, keepdims=True))


@kernel("ARG_REDUCE")
def arg_reduce(call: Call) -> None:
    """The first position of the largest or smallest element; a NaN counts as either."""
    p: ArgReduceParams = call.params
    x = call.read(0)
    find = np.argmax if p.largest else np.argmin
    position = find(x, axis=None if p.axis < 0 else 3 - p.axis)
    call.dst.write(np.asarray(position, np.int64).reshape(call.dst.shape))


@kernel("CUMULATE")
def cumulate(call: Call) -> None:
    """Running sums or products along an axis."""
    p: CumulateParams = call.params
    x = values(call, 0)
    if x.dtype.kind == "i":
        x = x.astype(np.int64)
    run = np.cumsum if p.op is CumulateOp.SUM else np.cumprod
    call.dst.write(run(x, axis=3 - p.axis))


@kernel("CUMULATE_ARG")
def cumulate_arg(call: Call) -> None:
    """The last position, up to each element, of the largest or smallest so far; or of a NaN."""
    p: ArgReduceParams = call.params
    x, axis = call.read(0), 3 - p.axis
    best = (np.maximum if p.largest else np.minimum).accumulate(x, axis=axis)
    at: Array = np.indices(x.shape, sparse=True)[axis]
    places = np.where((x == best) | (x != x), at, 0)
    call.dst.write(np.maximum.accumulate(places, axis=axis))
