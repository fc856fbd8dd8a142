"""Products of rows with the matrix of their group: mixtures of experts, as MUL_MAT_ID."""

from __future__ import annotations

import numpy as np
import torch

from weft import graph as g
from weft.frontends.fx.builder import Builder, reshaped_to
from weft.frontends.fx.call import Call
from weft.frontends.fx.dtypes import is_float
from weft.frontends.fx.ops.binary import chosen, combined
from weft.frontends.fx.ops.matmul import transposed
from weft.frontends.fx.ops.reduce import reduced
from weft.frontends.fx.registry import visitor, visitor_by_name
from weft.frontends.fx.value import Value
from weft.graph.size import upper

aten = torch.ops.aten


def _groups_of_rows(call: Call) -> str | None:
    x, w = call.fakes()[:2]
    if x.dim() != 2 or w.dim() != 3 or not call.has("offs"):
        return "a grouped product of other than the rows of a matrix"
    if call.has("bias"):
        return "a grouped product with a bias"
    return None if is_float(x.dtype) and is_float(w.dtype) else "a grouped product of integers"


@visitor(aten._grouped_mm.default, check=_groups_of_rows)
@visitor_by_name("transformers::grouped_mm_fallback", check=_groups_of_rows)
def grouped_mm(b: Builder, call: Call) -> Value:
    """Row i of [n, k] times matrix e of [groups, k, m], where group e ends before row offs[e].

    Rows behind the last group give 0."""
    first, second = ("input", "weight") if "input" in call.args else ("self", "mat2")
    x, w = call.value(first), transposed(call.value(second))
    n, groups = x.shape[0], w.shape[0]
    rows = b.constant(np.arange(upper(n)), torch.int64).viewed((n, 1), (1, 1))
    ends = b.converted(call.value("offs"), torch.int64).viewed((1, groups), (0, 1))
    passed = combined(b, "ge", rows, ends, (n, groups), torch.bool)
    group = b.settled(reduced(b, "sum", passed, [1]))
    last = b.of_size(groups - 1, torch.int64)
    ids = b.converted(combined(b, "min", group, last, group.shape), torch.int32)
    products = g.mul_mat_id(
        b.rows(w, stored=True),
        reshaped_to(b.dense(x), (x.shape[1], 1, n)),
        reshaped_to(b.flat(ids), (1, n)),
    )
    inside = combined(b, "le", group, last, group.shape, torch.bool)
    result = Value.whole(products, call.out.dtype, call.shape())
    return chosen(b, inside, result, b.scalar(0.0, result.dtype), result.shape)
