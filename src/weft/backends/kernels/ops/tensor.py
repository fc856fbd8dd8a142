"""Plain tensors as PyTorch programs use them: arithmetic, functions, conversions, reductions."""

from __future__ import annotations

from math import prod

import numpy as np

from weft.backends.kernels.launch import Call, Launch, Local, Slot, View, f32, i32, i64
from weft.backends.kernels.ops.table import WHOLE, Numbers, family, floats
from weft.dtype import DType
from weft.graph.ops import MapOp
from weft.graph.tensor import Tensor

# ---- elementwise ---------------------------------------------------------------------------------


@family("BINARY", refuse=Numbers(0, 1))
def _binary(call: Call) -> list[Launch]:
    a, b, d = call.view(0), call.view(1), call.dst
    args = (a, b, d, i32(call.params.op), i32(8 * a.dtype.bytes), Slot.FAULT, Slot.STEP)
    return [Launch("tensor.cl", (), "binary_nd", args, *call.elements(d))]


def _limits(dtype: DType, low: float, high: float) -> tuple[int, int]:
    """The limits of CLAMP within an integer type; for floats they do not count."""
    if dtype.name not in WHOLE:
        return 0, 0
    most = (1 << (8 * dtype.bytes - 1)) - 1
    least = -most - 1

    def inside(x: float) -> int:
        return least if x <= least else most if x >= most else int(x)

    return inside(low), inside(high)


def _single(x: float) -> float:
    """A float64 as a float32 holds it, with infinities outside its range."""
    with np.errstate(over="ignore"):
        return float(np.float32(x))


@family("MAP", refuse=Numbers(0))
def _map(call: Call) -> list[Launch]:
    s, d, p = call.view(0), call.dst, call.params
    low, high = _limits(s.dtype, p.a, p.b) if p.op is MapOp.CLAMP else (0, 0)
    values = f32(_single(p.a), _single(p.b), _single(p.c), 0)
    args = (s, d, i32(p.op), values, i64(low), i64(high))
    return [Launch("map.cl", (), "map_nd", args, *call.elements(d))]


def _where_rule(node: Tensor) -> str | None:
    if node.dtype.is_quantized:
        return f"no kernel moves elements of {node.dtype.name}"
    return None


@family("WHERE", refuse=_where_rule)
def _where(call: Call) -> list[Launch]:
    condition, a, b, d = call.view(0), call.view(1), call.view(2), call.dst
    args = (condition, a, b, d, i32(d.dtype.bytes))
    return [Launch("tensor.cl", (), "where", args, *call.elements(d))]


@family("CONVERT", refuse=Numbers(0))
def _convert(call: Call) -> list[Launch]:
    s, d = call.view(0), call.dst
    args = (s, d, i32(call.params.boolean))
    return [Launch("tensor.cl", (), "convert_nd", args, *call.elements(d))]


# ---- along axes ----------------------------------------------------------------------------------

_FILE = "tensor_reduce.cl"


def _groups(call: Call, s: View, axes: int) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """The number of elements that become one, and a group for each result."""
    n = prod(size for k, size in enumerate(s.ne) if axes >> k & 1)
    return n, (call.dst.n_elements,), (call.limits.row_items,)


@family("REDUCE", refuse=Numbers(0))
def _reduce(call: Call) -> list[Launch]:
    s, d, p = call.view(0), call.dst, call.params
    n, grid, group = _groups(call, s, p.axes)
    args = (s, d, i32(p.op), i32(p.axes), i64(n), Local(8 * group[0]))
    return [Launch(_FILE, call.over_items, "reduce_nd", args, grid, group)]


@family("ARG_REDUCE", refuse=Numbers(0, index=True))
def _arg_reduce(call: Call) -> list[Launch]:
    s, d, p = call.view(0), call.dst, call.params
    axes = 15 if p.axis < 0 else 1 << p.axis
    n, grid, group = _groups(call, s, axes)
    args = (s, d, i32(not p.largest), i32(axes), i64(n), Local(16 * group[0]))
    return [Launch(_FILE, call.over_items, "arg_reduce", args, grid, group)]


@family("CUMULATE", refuse=Numbers(0))
def _cumulate(call: Call) -> list[Launch]:
    s, d, p = call.view(0), call.dst, call.params
    n = prod(size for k, size in enumerate(s.ne) if k != p.axis)
    args = (s, d, i32(p.op), i32(p.axis), i64(n))
    return [Launch(_FILE, (), "cumulate", args, *call.in_line(n))]


@family("CUMULATE_ARG", refuse=Numbers(0, index=True))
def _cumulate_arg(call: Call) -> list[Launch]:
    s, d, p = call.view(0), call.dst, call.params
    n = prod(size for k, size in enumerate(s.ne) if k != p.axis)
    args = (s, d, i32(not p.largest), i32(p.axis), i64(n))
    return [Launch(_FILE, (), "cumulate_arg", args, *call.in_line(n))]


@family("SEARCH_SORTED", refuse=Numbers(0, 1, index=True))
def _search_sorted(call: Call) -> list[Launch]:
    rows, values, d = call.view(0), call.view(1), call.dst
    args = (rows, values, d, i32(call.params.right))
    return [Launch(_FILE, (), "search_sorted", args, *call.elements(d))]


@family("CDIST", refuse=floats(0, 1))
def _cdist(call: Call) -> list[Launch]:
    a, b, d = call.view(0), call.view(1), call.dst
    return [Launch(_FILE, (), "cdist", (a, b, d, f32(call.params.p)), *call.elements(d))]
