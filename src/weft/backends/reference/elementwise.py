"""Elementwise ops: arithmetic with broadcasting, activations, gated activations.

Functions are computed in float64 and rounded once. Parameters are float32 numbers, as in ggml.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from weft.backends.reference.kernel import Call, check_index, f32, kernel, repeat_to
from weft.graph import ops as g

F64 = NDArray[np.float64]


def _second(call: Call) -> F64:
    """src1 repeated to the destination's shape."""
    return repeat_to(call.f64(1), call.dst.shape)


@kernel("ADD", "ADD1")
def add(call: Call) -> None:
    """src0 + src1; ADD1's src1 is a single number."""
    call.dst.write(call.f64(0) + _second(call))


@kernel("SUB")
def sub(call: Call) -> None:
    """src0 - src1."""
    call.dst.write(call.f64(0) - _second(call))


@kernel("MUL")
def mul(call: Call) -> None:
    """src0 * src1."""
    call.dst.write(call.f64(0) * _second(call))


@kernel("DIV")
def div(call: Call) -> None:
    """src0 / src1."""
    call.dst.write(call.f64(0) / _second(call))


@kernel("ADD_ID")
def add_id(call: Call) -> None:
    """src0[:, i1, i2] + row ids[i1, i2] of src1 (a bias per expert)."""
    a, b, ids = call.f64(0), call.f64(1)[0, 0], call.read(2)[0, 0]
    check_index(ids, b.shape[0], "expert")
    call.dst.write(a + b[ids][None])


@kernel("SCALE")
def scale(call: Call) -> None:
    """src0 * s + b."""
    p: g.ScaleParams = call.params
    call.dst.write(call.f64(0) * f32(p.s) + f32(p.b))


@kernel("SQR")
def sqr(call: Call) -> None:
    """src0 squared."""
    call.dst.write(np.square(call.f64(0)))


@kernel("SQRT")
def sqrt(call: Call) -> None:
    """Square root; NaN below zero."""
    call.dst.write(np.sqrt(call.f64(0)))


@kernel("LOG")
def log(call: Call) -> None:
    """Natural logarithm."""
    call.dst.write(np.log(call.f64(0)))


@kernel("SIN")
def sin(call: Call) -> None:
    """Sine of radians."""
    call.dst.write(np.sin(call.f64(0)))


@kernel("COS")
def cos(call: Call) -> None:
    """Cosine of radians."""
    call.dst.write(np.cos(call.f64(0)))


@kernel("CLAMP")
def clamp(call: Call) -> None:
    """src0 limited to two bounds."""
    p: g.ClampParams = call.params
    call.dst.write(np.clip(call.read(0), np.float32(p.min), np.float32(p.max)))


@kernel("FILL")
def fill(call: Call) -> None:
    """The same value everywhere."""
    p: g.FillParams = call.params
    call.dst.write(np.full(call.dst.shape, np.float32(p.c)))


@kernel("LEAKY_RELU")
def leaky_relu(call: Call) -> None:
    """x above zero, slope * x below."""
    p: g.LeakyReluParams = call.params
    x = call.f64(0)
    call.dst.write(np.fmax(x, 0) + f32(p.negative_slope) * np.fmin(x, 0))


# Activations. GELU is ggml's tanh form with its ends cut off; ggml itself reads it from a table
# of f16 values, which costs a relative error of about 3e-4.


def _sigmoid(x: F64) -> F64:
    return 1 / (1 + np.exp(-x))


def _relu(x: F64) -> F64:
    return np.where(x > 0, x, 0)


def _silu(x: F64) -> F64:
    y: F64 = x / (1 + np.exp(-x))
    return y


def gelu(x: F64) -> F64:
    y = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * x * (1 + 0.044715 * x * x)))
    return np.where(x <= -10, 0, np.where(x >= 10, x, y))


def _gelu_quick(x: F64) -> F64:
    return x * _sigmoid(1.702 * x)


erf = np.vectorize(math.erf, otypes=[np.float64])  # NumPy has no erf


def gelu_erf(x: F64) -> F64:
    y: F64 = 0.5 * x * (1 + erf(x / math.sqrt(2)))
    return y


def _hard_sigmoid(x: F64) -> F64:
    return np.fmin(1, np.fmax(0, (x + 3) / 6))


def _softplus(x: F64) -> F64:
    return np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 20))))


UNARY: dict[g.UnaryOp, Callable[[F64], F64]] = {
    g.UnaryOp.ABS: np.abs,
    g.UnaryOp.SGN: lambda x: (x > 0).astype(np.float64) - (x < 0),
    g.UnaryOp.NEG: np.negative,
    g.UnaryOp.STEP: lambda x: (x > 0).astype(np.float64),
    g.UnaryOp.TANH: np.tanh,
    g.UnaryOp.ELU: lambda x: np.where(x > 0, x, np.expm1(x)),
    g.UnaryOp.RELU: _relu,
    g.UnaryOp.SIGMOID: _sigmoid,
    g.UnaryOp.GELU: gelu,
    g.UnaryOp.GELU_QUICK: _gelu_quick,
    g.UnaryOp.SILU: _silu,
    g.UnaryOp.HARDSWISH: lambda x: x * _hard_sigmoid(x),
    g.UnaryOp.HARDSIGMOID: _hard_sigmoid,
    g.UnaryOp.EXP: np.exp,
    g.UnaryOp.EXPM1: np.expm1,
    g.UnaryOp.SOFTPLUS: _softplus,
    g.UnaryOp.GELU_ERF: gelu_erf,
    g.UnaryOp.FLOOR: np.floor,
    g.UnaryOp.CEIL: np.ceil,
    # half away from zero; NumPy's own round is half to even
    g.UnaryOp.ROUND: lambda x: np.trunc(x + np.copysign(0.5, x)),
    g.UnaryOp.TRUNC: np.trunc,
}


def _xielu(x: F64, p: g.UnaryParams) -> F64:
    """xIELU (arXiv 2411.13010); alpha_n and alpha_p come after their softplus."""
    alpha_n, alpha_p, beta, eps = f32(p.alpha_n), f32(p.alpha_p), f32(p.beta), f32(p.eps)
    negative = (np.expm1(np.minimum(x, eps)) - x) * alpha_n
    return np.where(x > 0, alpha_p * x * x, negative) + beta * x


def activated(x: F64, function: g.Activation, low: float, high: float) -> F64:
    """The function of a product or convolution; CLAMP alone has bounds."""
    if function is g.Activation.CLAMP:
        return np.minimum(np.maximum(x, low), high)
    return UNARY[g.UnaryOp[function.name]](x)


@kernel("UNARY")
def unary(call: Call) -> None:
    """A function of each element."""
    p: g.UnaryParams = call.params
    x = call.f64(0)
    call.dst.write(_xielu(x, p) if p.op is g.UnaryOp.XIELU else UNARY[p.op](x))


def _swiglu_oai(x: F64, gate: F64, p: g.GluParams) -> F64:
    """OpenAI's gpt-oss form: both halves clamped, the multiplier shifted by one."""
    x = np.minimum(x, f32(p.limit))
    return x * _sigmoid(f32(p.alpha) * x) * (np.clip(gate, -f32(p.limit), f32(p.limit)) + 1)


def _swiglu_clamp(x: F64, gate: F64, p: g.GluParams) -> F64:
    limit = f32(p.limit)
    return _silu(np.minimum(x, limit)) * np.clip(gate, -limit, limit)


_GLU: dict[g.GluOp, Callable[[F64, F64, g.GluParams], F64]] = {
    g.GluOp.REGLU: lambda x, gate, p: _relu(x) * gate,
    g.GluOp.GEGLU: lambda x, gate, p: gelu(x) * gate,
    g.GluOp.SWIGLU: lambda x, gate, p: _silu(x) * gate,
    g.GluOp.SWIGLU_OAI: _swiglu_oai,
    g.GluOp.GEGLU_ERF: lambda x, gate, p: gelu_erf(x) * gate,
    g.GluOp.GEGLU_QUICK: lambda x, gate, p: _gelu_quick(x) * gate,
    g.GluOp.SWIGLU_CLAMP: _swiglu_clamp,
}


@kernel("GLU")
def glu(call: Call) -> None:
    """activation(x) * gate: x and gate are src0 and src1, or the halves of src0's rows."""
    call.dst.write(_gated(call))


@kernel("GLU_QUANTIZE")
def glu_quantize(call: Call) -> None:
    """GLU in the form that a matmul reads: q8_0, q8_1 or q8_K blocks."""
    call.dst.write_activation(_gated(call))


def _gated(call: Call) -> F64:
    p: g.GluParams = call.params
    if call.optional(1) is not None:
        x, gate = call.f64(0), call.f64(1)
    else:
        x, gate = np.split(call.f64(0), 2, axis=-1)
        if p.swapped:
            x, gate = gate, x
    return _GLU[p.op](x, gate, p)
