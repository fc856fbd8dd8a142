"""Pooling, windows, relative positions."""

from __future__ import annotations

import math

import numpy as np

from weft.backends.kernels.launch import Call, Launch, f32, i32
from weft.backends.kernels.ops.table import FLOATS, Numbers, family, floats
from weft.graph.ops import PoolKind
from weft.graph.tensor import Tensor

_FILE = "window.cl"

_LOWEST = float(np.finfo(np.float32).min)
"""The least that MAX_FINITE gives."""


@family("POOL_ND", refuse=Numbers(0), computed=Numbers(0, index=True).computed)
def _pool_nd(call: Call) -> list[Launch]:
    s, d, p = call.view(0), call.dst, call.params
    finite = p.kind is PoolKind.MAX_FINITE
    kind, lowest = (PoolKind.MAX, _LOWEST) if finite else (p.kind, -math.inf)
    args = (
        s, d, i32(kind), i32(p.dims), i32(*p.kernel, 1), i32(*p.stride, 1), i32(*p.padding, 0),
        i32(*p.dilation, 1), i32(p.adaptive), i32(p.count_include_pad), i32(p.divisor), f32(lowest),
    )  # fmt: skip
    return [Launch(_FILE, call.all_f32(s, d), "pool", args, *call.elements(d))]


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
