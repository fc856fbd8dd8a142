"""Attention over a cache."""

from __future__ import annotations

from weft.backends.kernels.launch import Call, Launch, Local, f32, i32
from weft.backends.kernels.ops.matmul import decoded, used
from weft.backends.kernels.ops.norm import slopes
from weft.backends.kernels.ops.table import FLOATS, family, floats, rows_lie, source
from weft.graph.size import upper
from weft.graph.tensor import Tensor

_LARGEST_HEAD = 1024
"""The largest head, whose query and result must fit local memory (devices have 32 KiB or more)."""


def _rule(node: Tensor) -> str | None:
    k, v = source(node, 1), source(node, 2)
    assert k is not None and v is not None
    for t, what in ((k, "keys"), (v, "values")):
        why = decoded(t.dtype, what) or rows_lie(t, f"the {what}")
        if why is not None:
            return why
        if upper(t.ne[0]) > _LARGEST_HEAD:
            return f"heads of {upper(t.ne[0])} are larger than {_LARGEST_HEAD}"
    return floats(0, 3, 4)(node)


@family("FLASH_ATTN_EXT", refuse=_rule)
def _attention(call: Call) -> list[Launch]:
    q, k, v, d, p = call.view(0), call.view(1), call.view(2), call.dst, call.params
    mask, sinks, limits = call.optional(3), call.optional(4), call.limits
    # many items share the elements of a value better than its few units
    by_element = not limits.wide and v.dtype.name in FLOATS
    defines = (
        *used(K=k, V=v), f"CELLS={limits.cells}", *(("BY_ELEMENT",) if by_element else ()),
        *(("CAP",) if p.logit_softcap else ()),
    )  # fmt: skip
    local = 4 * (limits.attention_items + k.ne[0] + limits.cells + v.ne[0])
    args = (
        q, k, v, mask or q, sinks or q, d, i32(mask is not None), i32(sinks is not None),
        f32(p.scale), f32(p.logit_softcap), slopes(q.ne[2], p.max_bias), Local(local),
    )  # fmt: skip
    grid = (1, q.ne[1], q.ne[2] * q.ne[3])
    group = (limits.attention_items, 1, 1)
    return [Launch("attention.cl", defines, "attention", args, grid, group)]
