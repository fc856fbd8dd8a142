"""Arithmetic with broadcasting, functions, gates."""

from __future__ import annotations

from typing import Any

from weft.backends.kernels.enums import Arithmetic, Elementwise
from weft.backends.kernels.launch import Call, Launch, Slot, f32, i32
from weft.backends.kernels.ops.table import family, floats
from weft.graph.ops import UnaryParams
from weft.graph.tensor import Tensor

_BINARY = Arithmetic.__members__


@family(*_BINARY, refuse=floats(0, 1))
def _binary(call: Call) -> list[Launch]:
    a, b, d = call.view(0), call.view(1), call.dst
    args = (a, b, d, i32(_BINARY[call.op]))
    return [Launch("binary.cl", call.all_f32(a, b, d), "binary", args, *call.elements(d))]


def _add_id_rule(node: Tensor) -> str | None:
    ids = node.src[2]
    if ids is not None and ids.dtype.name != "i32":
        return f"ids must be i32, not {ids.dtype.name}"
    return floats(0, 1)(node)


@family("ADD_ID", refuse=_add_id_rule)
def _add_id(call: Call) -> list[Launch]:
    a, b, ids, d = call.view(0), call.view(1), call.view(2), call.dst
    args = (a, b, ids, d, Slot.FAULT, Slot.STEP)
    return [Launch("binary.cl", call.all_f32(a, b, d), "add_id", args, *call.elements(d))]


def _numbers(op: str, p: Any) -> tuple[float, float, float, float]:
    if op == "SCALE":
        return p.s, p.b, 0, 0
    if op == "CLAMP":
        return p.min, p.max, 0, 0
    if op == "FILL":
        return p.c, 0, 0, 0
    if op == "LEAKY_RELU":
        return p.negative_slope, 0, 0, 0
    if isinstance(p, UnaryParams):
        return p.alpha_n, p.alpha_p, p.beta, p.eps
    return 0, 0, 0, 0


@family("UNARY", *Elementwise.__members__, refuse=floats(0))
def _unary(call: Call) -> list[Launch]:
    a, d = call.view(0), call.dst
    op = call.params.op if call.op == "UNARY" else Elementwise[call.op]
    args = (a, d, i32(op), f32(*_numbers(call.op, call.params)))
    return [Launch("unary.cl", call.all_f32(a, d), "unary", args, *call.elements(d))]


@family("GLU", refuse=floats(0, 1))
def _glu(call: Call) -> list[Launch]:
    x, d, p = call.view(0), call.dst, call.params
    gate = call.optional(1)
    from_x = from_gate = 0
    if gate is None:
        gate, half = x, x.ne[0] // 2
        from_x, from_gate = (half, 0) if p.swapped else (0, half)
    args = (x, gate, d, i32(p.op), i32(from_x), i32(from_gate), f32(p.alpha), f32(p.limit))
    return [Launch("glu.cl", call.all_f32(x, gate, d), "glu", args, *call.elements(d))]
