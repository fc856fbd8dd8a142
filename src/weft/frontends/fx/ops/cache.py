"""Writing into a buffer of the program: rows of a KV cache, in place.

Exported programs replace a buffer by a copy with some rows changed. Where no node reads the old
rows, only the changed ones are written, by SET_ROWS into the buffer itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.fx import Node

from weft import graph as g
from weft.frontends.fx.builder import Builder, reshaped_to
from weft.frontends.fx.call import Call
from weft.frontends.fx.dtypes import is_float
from weft.frontends.fx.layout import Value, broadcast_strides, product
from weft.frontends.fx.ops.binary import chosen, combined
from weft.frontends.fx.registry import visitor
from weft.graph.size import Size

aten = torch.ops.aten


def rows_written(
    b: Builder, call: Call, v: Value, indices: Sequence[Value | None], values: Value
) -> Value | None:
    """index_put of a buffer along one dimension by a list of numbers, as SET_ROWS; else None.

    Negative numbers count from the end, as in PyTorch."""
    axes = [d for d, i in enumerate(indices) if i is not None]
    source = call.args["self"]
    if len(axes) != 1 or call.raw("accumulate", False) or not isinstance(source, Node):
        return None
    ids = indices[axes[0]]
    assert ids is not None
    if not is_float(v.dtype) or ids.rank != 1 or ids.dtype not in (torch.int64, torch.int32):
        return None
    if not b.may_overwrite(v, source):
        return None
    return written(b, v, axes[0], _from_start(b, ids, v.shape[axes[0]]), values)


def _from_start(b: Builder, ids: Value, n: Size) -> Value:
    """Numbers of `n` rows without those below 0, computed once for all caches that use them."""
    array = b.array(ids)
    if array is not None and (array.size == 0 or array.min() >= 0):
        return ids
    key = ("from start", ids.tensor, ids.shape, ids.strides, ids.offset, n)
    if key not in b.memo:
        is_below = combined(b, "lt", ids, b.scalar(0, ids.dtype), ids.shape, torch.bool)
        moved = combined(b, "add", ids, b.of_size(n, ids.dtype), ids.shape)
        b.memo[key] = b.flat(chosen(b, is_below, moved, ids, ids.shape))
    return Value.whole(b.memo[key], ids.dtype, ids.shape)


def written(b: Builder, v: Value, dim: int, ids: Value, values: Value) -> Value:
    """The buffer with rows `ids` along `dim` replaced, in its own memory."""
    inner, outer = product(v.shape[dim + 1 :]), product(v.shape[:dim])
    n = ids.shape[0]
    shape = (*v.shape[:dim], n, *v.shape[dim + 1 :])
    wide = values.viewed(shape, broadcast_strides(values.shape, values.strides, shape))
    if dim == v.rank - 2 and v.rank <= 4 and wide.strides[-1] == 1:
        # rows of heads as they lie
        dst, src = reshaped_to(v.tensor, v.shape[::-1]), b.rows(wide)
    else:
        dst = reshaped_to(v.tensor, (inner, v.shape[dim], outer))
        src = reshaped_to(b.dense(wide), (inner, n, outer))
    result = g.set_rows(dst, src, b.flat(ids))
    b.put(result)
    return Value.whole(result, v.dtype, v.shape)


@visitor(aten.index_copy.default)
def index_copy(b: Builder, call: Call) -> Value:
    """Rows along a dimension replaced by the rows of another tensor."""
    v, ids = call.value("self"), call.value("index")
    source = b.converted(call.value("source"), v.dtype)
    dim = call.dim("dim", v.rank)
    node = call.args["self"]
    ids = ids.viewed((ids.n_elements,), ids.strides[-1:] or (1,))
    if not v.rank:
        v, source = v.viewed((1,), (1,)), source.viewed((1,), (1,))
    if is_float(v.dtype) and isinstance(node, Node) and b.may_overwrite(v, node):
        return written(b, v, dim, ids, source)
    inner, outer = product(v.shape[dim + 1 :]), product(v.shape[:dim])
    t = reshaped_to(b.dense(v), (inner, v.shape[dim], outer))
    s = reshaped_to(b.dense(source), (inner, ids.shape[0], outer))
    return b.result(call, g.index_put(t, [None, b.flat(ids)], _without_one(s, ids)))


def _without_one(s: g.Tensor, ids: Value) -> g.Tensor:
    """Values without the dimension of a single index, as INDEX_PUT counts them."""
    return reshaped_to(s, (s.ne[0], s.ne[2])) if ids.shape[0] == 1 else s
