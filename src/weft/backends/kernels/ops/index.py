"""Plain tensors by index, and padding."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from weft import quants
from weft.backends.kernels.launch import Call, Launch, Slot, View, i32
from weft.backends.kernels.ops.table import FLOATS, Numbers, family, source
from weft.dtype import DType
from weft.graph.ops import PadMode, ScatterMode
from weft.graph.size import upper
from weft.graph.tensor import Tensor

_FILE = "gather.cl"

_MOST = 4096
"""The number of indices that every element of a result may read. Each element searches for its
index, instead of each index writing its element, so that equal indices have an order."""


def _moves(node: Tensor) -> str | None:
    if node.dtype.is_quantized:
        return f"no kernel moves elements of {node.dtype.name}"
    return None


@family("GATHER", refuse=_moves)
def _gather(call: Call) -> list[Launch]:
    s, ids, d = call.view(0), call.view(1), call.dst
    args = (s, ids, d, i32(call.params.axis), i32(d.dtype.bytes), Slot.FAULT, Slot.STEP)
    return [Launch(_FILE, (), "gather", args, *call.elements(d))]


def _few(n: int) -> str | None:
    if n > _MOST:
        return f"up to {n} indices at once; every element looks at all of them, so {_MOST} is most"
    return None


_SUMS = Numbers(0)


def _adds(node: Tensor) -> bool:
    """Whether SCATTER or INDEX_PUT adds to what is there."""
    if node.op.name == "INDEX_PUT":
        return bool(node.params.accumulate)  # type: ignore[union-attr]
    return node.params.mode is ScatterMode.ADD  # type: ignore[union-attr]


def _summed(node: Tensor) -> Sequence[Tensor]:
    return _SUMS.computed(node) if _adds(node) else ()


def _scatter_rule(node: Tensor) -> str | None:
    ids = source(node, 1)
    assert ids is not None
    return _few(upper(ids.ne[node.params.axis])) or (_SUMS if _adds(node) else _moves)(node)  # type: ignore[union-attr]


@family("SCATTER", refuse=_scatter_rule, computed=_summed)
def _scatter(call: Call) -> list[Launch]:
    s, ids, v, d, p = call.view(0), call.view(1), call.view(2), call.dst, call.params
    adds = p.mode is ScatterMode.ADD
    args = (s, ids, v, d, i32(p.axis), i32(adds), i32(d.dtype.bytes), Slot.FAULT, Slot.STEP)
    return [Launch(_FILE, (), "scatter", args, *call.elements(d))]


def _by_axis(call: Call, first: int) -> list[View]:
    """An index tensor for each of four dimensions; an arbitrary one where there is none."""
    remaining = iter(call.src[first:])
    by_axis = [next(remaining) if call.params.axes >> k & 1 else None for k in range(4)]
    some = next(t for t in by_axis if t is not None)
    return [t or some for t in by_axis]


@family("INDEX", refuse=_moves)
def _index(call: Call) -> list[Launch]:
    s, d, p = call.view(0), call.dst, call.params
    args = (
        s, *_by_axis(call, 1), d, i32(p.axes), i32(p.rank), i32(p.first), i32(d.dtype.bytes),
        Slot.FAULT, Slot.STEP,
    )  # fmt: skip
    return [Launch(_FILE, (), "index_nd", args, *call.elements(d))]


def _together(tensors: Any) -> list[Any]:
    """The sizes that index tensors broadcast to."""
    return [max((t.ne[k] for t in tensors), key=upper) for k in range(4)]


def _index_put_rule(node: Tensor) -> str | None:
    indices = [t for t in node.src[2:] if t is not None]
    why = _few(prod(upper(n) for n in _together(indices)))
    return why or (_SUMS if _adds(node) else _moves)(node)


@family("INDEX_PUT", refuse=_index_put_rule, computed=_summed)
def _index_put(call: Call) -> list[Launch]:
    s, v, d, p = call.view(0), call.view(1), call.dst, call.params
    ids = _by_axis(call, 2)
    sizes = _together(ids)
    args = (
        s, v, *ids, d, i32(p.axes), i32(p.rank), i32(p.first), i32(*sizes), i32(prod(sizes)),
        i32(p.accumulate), i32(d.dtype.bytes), Slot.FAULT, Slot.STEP,
    )  # fmt: skip
    return [Launch(_FILE, (), "index_put", args, *call.elements(d))]


def _filling(dtype: DType, value: float) -> bytes:
    """An element with this value, in the lowest bytes of a `ulong`."""
    with np.errstate(over="ignore"):
        if dtype.name in FLOATS:
            stored = quants.to_storage(np.array([value], np.float32), dtype)
        else:
            stored = np.array([value]).astype(dtype.storage)
    return stored.tobytes().ljust(8, b"\0")


@family("PAD_ND", refuse=_moves, computed=Numbers(0, index=True).computed)
def _pad_nd(call: Call) -> list[Launch]:
    s, d, p = call.view(0), call.dst, call.params
    fill = _filling(d.dtype, p.value if p.mode is PadMode.CONSTANT else 0.0)
    args = (s, d, i32(*p.left), i32(p.mode), fill, i32(d.dtype.bytes))
    return [Launch(_FILE, (), "pad_nd", args, *call.elements(d))]
