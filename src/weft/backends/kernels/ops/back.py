"""Gradients, and the ops of a loss."""

from __future__ import annotations

from weft.backends.kernels.launch import Call, Launch, Slot, i32, i64
from weft.backends.kernels.ops.table import family, floats, source
from weft.graph.size import upper
from weft.graph.tensor import Tensor

_FILE = "back.cl"

_MOST = 4096
"""The number of indices that every element of a gradient may read."""


@family("REPEAT_BACK", refuse=floats(0))
def _repeat_back(call: Call) -> list[Launch]:
    s, d = call.view(0), call.dst
    return [Launch(_FILE, (), "repeat_back", (s, d), *call.elements(d))]


def _get_rows_back_rule(node: Tensor) -> str | None:
    ids = source(node, 1)
    assert ids is not None
    if upper(ids.n_elements) > _MOST:
        return f"up to {upper(ids.n_elements)} indices at once, {_MOST} is most"
    return floats(0)(node)


@family("GET_ROWS_BACK", refuse=_get_rows_back_rule)
def _get_rows_back(call: Call) -> list[Launch]:
    s, ids, d = call.view(0), call.view(1), call.dst
    args = (s, ids, d, i32(ids.n_elements), Slot.FAULT, Slot.STEP)
    return [Launch(_FILE, (), "get_rows_back", args, *call.elements(d))]


@family("CROSS_ENTROPY_LOSS", refuse=floats(0, 1))
def _cross_entropy(call: Call) -> list[Launch]:
    a, b, d, items = call.view(0), call.view(1), call.dst, call.limits.row_items
    args = (a, b, d, i64(a.n_elements // a.ne[0]), call.row_sums)
    return [Launch(_FILE, call.over_items, "cross_entropy", args, (1,), (items,))]
