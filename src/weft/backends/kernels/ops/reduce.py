"""Largest elements of rows, masks, generators."""

from __future__ import annotations

import math

from weft.backends.kernels.enums import Kept
from weft.backends.kernels.launch import Call, Launch, f32, i32
from weft.backends.kernels.ops.table import family, floats
from weft.graph.tensor import Tensor

_FILE = "reduce.cl"


def _index_rule(node: Tensor) -> str | None:
    if node.dtype.name != "i32":
        return f"indices must be i32, not {node.dtype.name}"
    return floats(0, result=False)(node)


@family("ARGMAX", refuse=_index_rule)
def _argmax(call: Call) -> list[Launch]:
    s, d = call.view(0), call.dst
    args = (s, d, call.row_sums, call.row_sums)
    defines = (*call.all_f32(s), *call.over_items)
    return [Launch(_FILE, defines, "argmax", args, *call.by_rows(s))]


@family("TRI", "DIAG", "DIAG_MASK_INF", "DIAG_MASK_ZERO", refuse=floats(0))
def _masked(call: Call) -> list[Launch]:
    s, d = call.view(0), call.dst
    kind, n_past, other = int(Kept.DIAGONAL), 0, 0.0
    if call.op == "TRI":
        kind = int(call.params.kind)
    elif call.op != "DIAG":
        kind, n_past = int(Kept.UP_TO_PAST), call.params.n_past
        other = -math.inf if call.op == "DIAG_MASK_INF" else 0.0
    args = (s, d, i32(kind), i32(n_past), f32(other))
    return [Launch(_FILE, call.all_f32(s, d), "masked", args, *call.elements(d))]


@family("ARANGE", refuse=floats())
def _arange(call: Call) -> list[Launch]:
    d, p = call.dst, call.params
    return [Launch(_FILE, (), "arange", (d, f32(p.start), f32(p.step)), *call.in_line(d.ne[0]))]


@family("TIMESTEP_EMBEDDING", refuse=floats(0))
def _timesteps(call: Call) -> list[Launch]:
    s, d, p = call.view(0), call.dst, call.params
    args = (s, d, i32(p.dim), f32(math.log(p.max_period)))
    return [Launch(_FILE, call.all_f32(s, d), "timesteps", args, *call.elements(d))]
