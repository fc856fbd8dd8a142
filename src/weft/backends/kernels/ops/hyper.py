"""DeepSeek's index scores and hyper-connections."""

from __future__ import annotations

from weft.backends.kernels.launch import Call, Launch, f32, i32
from weft.backends.kernels.ops.matmul import decoded, used
from weft.backends.kernels.ops.table import family, floats, rows_lie, source
from weft.graph.tensor import Tensor

_FILE = "hyper.cl"


def _indexer_rule(node: Tensor) -> str | None:
    q, k = source(node, 0), source(node, 1)
    assert q is not None and k is not None
    why = decoded(k.dtype, "keys") or rows_lie(k, "the keys") or rows_lie(q, "the queries")
    return why or floats(0, 2, 3)(node)


@family("LIGHTNING_INDEXER", refuse=_indexer_rule)
def _indexer(call: Call) -> list[Launch]:
    k = call.view(1)
    args = (*(call.view(i) for i in range(4)), call.dst)
    d = call.dst
    items = call.limits.element_items
    grid = (-(-d.ne[0] // items), d.ne[1], d.ne[3])
    return [Launch(_FILE, used(K=k), "indexer", args, grid, (items, 1, 1))]


@family("DSV4_HC_COMB", refuse=floats(0, 1, 2))
def _hc_comb(call: Call) -> list[Launch]:
    d, p = call.dst, call.params
    args = (*(call.view(i) for i in range(3)), d, f32(p.eps), i32(p.n_iter))
    return [Launch(_FILE, (), "hc_comb", args, *call.in_line(d.ne[2]))]


@family("DSV4_HC_PRE", refuse=floats(0, 1))
def _hc_pre(call: Call) -> list[Launch]:
    d, p = call.dst, call.params
    args = (call.view(0), call.view(1), d, i32(p.gated), f32(p.scale))
    return [Launch(_FILE, (), "hc_pre", args, *call.elements(d))]


@family("DSV4_HC_POST", refuse=floats(0, 1, 2, 3))
def _hc_post(call: Call) -> list[Launch]:
    x, comb = call.view(0), call.optional(3)
    args = (x, call.view(1), call.view(2), comb or x, call.dst, i32(comb is not None))
    return [Launch(_FILE, (), "hc_post", args, *call.elements(call.dst))]
