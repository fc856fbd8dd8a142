"""Attention over a cache."""

from __future__ import annotations

from weft.backends.kernels.launch import Call, Launch, Local, Scratch, ScratchSlot, f32, i32
from weft.backends.kernels.ops.matmul import decoded, used
from weft.backends.kernels.ops.norm import slopes
from weft.backends.kernels.ops.table import FLOATS, family, floats, rows_lie, source
from weft.graph.size import upper
from weft.graph.tensor import Tensor

_LARGEST_HEAD = 1024
"""The largest head, whose query and result must fit local memory (devices have 32 KiB or more)."""

_ITEMS, _CELLS = 64, 32
"""Items of a group of `flash.cl`, and cells that it reads at once."""
_RESULTS = 64
"""Results that an item of it keeps in registers, where more than 8 rows share a cell."""
_WIDEST = 576
"""The largest head there; an item has up to 72 results then."""
_GROUPS = 512
"""Groups that fill any GPU: more rows than that need no parts."""


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
    return _flash(call) or _by_queries(call)


def _by_queries(call: Call) -> list[Launch]:
    q, k, v, d, p = call.view(0), call.view(1), call.view(2), call.dst, call.params
    mask, sinks, limits = call.optional(3), call.optional(4), call.limits
    # many items share the elements of a value better than its few units
    by_element = not limits.wide and v.dtype.name in FLOATS
    defines = (
        *used(K=k, V=v), f"CELLS={limits.cells}", *(("BY_ELEMENT",) if by_element else ()),
        *call.over_items, *(("CAP",) if p.logit_softcap else ()),
    )  # fmt: skip
    local = 4 * (limits.attention_items + k.ne[0] + limits.cells + v.ne[0])
    args = (
        q, k, v, mask or q, sinks or q, d, i32(mask is not None), i32(sinks is not None),
        f32(p.scale), f32(p.logit_softcap), slopes(q.ne[2], p.max_bias), Local(local),
    )  # fmt: skip
    grid = (1, q.ne[1], q.ne[2] * q.ne[3])
    group = (limits.attention_items, 1, 1)
    return [Launch("attention.cl", defines, "attention", args, grid, group)]


# ---- flash.cl ------------------------------------------------------------------------------------


def _flash(call: Call) -> list[Launch] | None:
    """Cells read once for the rows that share them, in parts where there are few rows; None where
    `flash.cl` does not support the device, the types or the sizes."""
    q, k, v, d, p, limits = (
        call.view(0),
        call.view(1),
        call.view(2),
        call.dst,
        call.params,
        call.limits,
    )
    mask, sinks = call.optional(3), call.optional(4)
    if not limits.part_cells or limits.max_group < _ITEMS or not k.ne[1]:
        return None
    if {q.dtype.name, d.dtype.name} != {"f32"} or k.ne[2:] != v.ne[2:]:
        return None
    heads, shared = k.ne[2] * q.ne[3], q.ne[2] // k.ne[2]
    rows = q.ne[1] * shared
    each = _rows_of_items(rows, v.ne[0], limits.local_bytes)
    if max(k.ne[0], v.ne[0]) > _WIDEST or not each:
        return None
    tiles = -(-rows // (8 * each))
    parts = _parts(k.ne[1], tiles * heads, limits.part_cells) if limits.few else 1
    cells = -(-k.ne[1] // parts // _CELLS) * _CELLS
    parts = -(-k.ne[1] // cells)
    defines = (
        *used(K=k, V=v), f"DK={k.ne[0]}", f"DV={v.ne[0]}", f"R={each}",
        *call.over_items, *(("CAP",) if p.logit_softcap else ()),
    )  # fmt: skip
    to = Scratch(ScratchSlot.NODE, 4 * heads * rows * parts * (v.ne[0] + 2))
    result = (d,) if parts == 1 else (to, d.packed)
    args = (
        q, k, v, mask or q, sinks or q, *result, i32(mask is not None), i32(sinks is not None),
        f32(p.scale), f32(p.logit_softcap), slopes(q.ne[2], p.max_bias), i32(cells), i32(parts),
        Local(_local_bytes(each)),
    )  # fmt: skip
    launches = [Launch("flash.cl", defines, "flash", args, (tiles, heads, parts), (_ITEMS, 1, 1))]
    if parts > 1:
        numbers = i32(k.ne[2]), i32(shared), i32(heads), i32(rows), i32(parts)
        ends = (to, sinks or q, d, *numbers, i32(sinks is not None))
        launches.append(Launch("flash.cl", defines, "join", ends, (rows, heads), (_ITEMS, 1)))
    return launches


def _rows_of_items(rows: int, size: int, local_bytes: int) -> int:
    """The number of rows whose results an item computes, a power of two; 0 where local memory is
    too small for one."""
    fits = [
        n
        for n in (4, 2, 1)
        if _local_bytes(n) <= local_bytes and (n == 1 or n * size <= 8 * _RESULTS)
    ]
    return next((n for n in fits if n == 1 or rows > 4 * n), 0)


def _local_bytes(each: int) -> int:
    """Bytes of local memory of a group: 64 elements of 32 cells and of the rows' queries, the
    rows' weights of these cells, and 8 numbers for each row."""
    rows = 8 * each
    return 4 * (_CELLS * 65 + 64 * rows + _CELLS * rows + 8 * rows)


def _parts(cells: int, groups: int, of_part: int) -> int:
    """The number of parts in which cells are read, so that all parts together fill the device."""
    return max(1, min(-(-cells // of_part), _GROUPS // groups))
