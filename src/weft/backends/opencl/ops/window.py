"""Pooling, windows, relative positions."""

from __future__ import annotations

import math

import numpy as np

from weft.backends.opencl.launch import Call, Launch, f32, i32
from weft.backends.opencl.ops.table import FLOATS, family, floats
from weft.backends.opencl.ops.tensor import numbers
from weft.graph.ops import PadMode, Pool2dParams, PoolKind, PoolNdParams, PoolOp
from weft.graph.tensor import Tensor

__all__: list[str] = []

_FILE = "window.cl"

_LOWEST = float(np.finfo(np.float32).min)
"""The maximum of an empty window in ggml."""


def _pool(call: Call, p: PoolNdParams, lowest: float) -> list[Launch]:
    s, d = call.view(0), call.dst
    args = (
        s, d, i32(p.kind), i32(p.dims), i32(*p.kernel, 1), i32(*p.stride, 1), i32(*p.padding, 0),
        i32(*p.dilation, 1), i32(p.adaptive), i32(p.count_include_pad), i32(p.divisor), f32(lowest),
    )  # fmt: skip
    return [Launch(_FILE, call.all_f32(s, d), "pool", args, *call.elements(d))]


@family("POOL_ND", refuse=numbers(0))
def _pool_nd(call: Call) -> list[Launch]:
    return _pool(call, call.params, -math.inf)


@family("POOL_1D", "POOL_2D", refuse=floats(0))
def _pool_2d(call: Call) -> list[Launch]:
    """Pooling as in ggml, whose mean is over the whole window in two dimensions."""
    p = call.params
    kind = PoolKind.MAX if p.op is PoolOp.MAX else PoolKind.AVG
    if isinstance(p, Pool2dParams):
        kernel, stride, padding = (p.k0, p.k1, 1), (p.s0, p.s1, 1), (p.p0, p.p1, 0)
        shape = PoolNdParams(kind, 2, kernel, stride, padding, divisor=p.k0 * p.k1)
    else:
        along = (p.k0, 1, 1), (p.s0, 1, 1), (p.p0, 0, 0)
        shape = PoolNdParams(kind, 1, *along, count_include_pad=False)
    return _pool(call, shape, _LOWEST)


@family("WIN_PART", "WIN_UNPART", refuse=floats(0))
def _windows(call: Call) -> list[Launch]:
    s, d = call.view(0), call.dst
    args = (s, d, i32(call.params.w), i32(d.dtype.bytes))
    return [Launch(_FILE, (), call.op.lower(), args, *call.elements(d))]


def _rel_pos_rule(node: Tensor) -> str | None:
    return None if node.dtype.name in FLOATS else f"no kernel moves rows of {node.dtype.name}"


@family("GET_REL_POS", refuse=_rel_pos_rule)
def _rel_pos(call: Call) -> list[Launch]:
    s, d = call.view(0), call.dst
    return [Launch(_FILE, (), "rel_pos", (s, d, i32(d.dtype.bytes)), *call.elements(d))]


@family("PAD_REFLECT_1D", refuse=floats(0))
def _pad_reflect(call: Call) -> list[Launch]:
    s, d = call.view(0), call.dst
    left = i32(call.params.p0, 0, 0, 0)
    args = (s, d, left, i32(PadMode.REFLECT), bytes(8), i32(d.dtype.bytes))
    return [Launch("gather.cl", (), "pad_nd", args, *call.elements(d))]
