"""Products of weights in planes with activations as bytes, which are the cpu's: a few columns
by lanes that share rows, many by tiles in local memory. Tokens that choose experts go the same
ways: the columns of many are sorted by expert, and a tile has columns of one.

Four products of bytes at a time are whole numbers, which are scaled and added unit by unit. A
result has one order of its sums for up to `Limits.few` columns and another one for more; in neither
does it depend on how many columns there are. Other weights are left to `matmul`.
"""

from __future__ import annotations

from typing import Any

from weft.backends.kernels.launch import (
    Call,
    Launch,
    Limits,
    Local,
    Scratch,
    ScratchSlot,
    Slot,
    View,
    i32,
)
from weft.backends.kernels.ops.bytes import read_bytes, same
from weft.backends.kernels.ops.feeding import glu, norm_scale, quantized
from weft.backends.kernels.ops.table import NO_OWN, OwnKernels
from weft.errors import DeviceError

_LEVELS = ("iq4_nl", "iq4_xs", "mxfp4")
"""Formats whose codes name levels, which kernels look up in a table in local memory."""
_LANE_COLUMNS = 8
"""The most columns whose sums a lane has."""
_FEW_OF_EXPERT = 32
"""Columns of an expert, on average, up to which larger tiles would be empty for the most part."""
_MOST_SORTERS = 256
"""The most items that sort columns by expert."""
_WORDS = 22
"""Words of a unit of a row and of a column of a tile in local memory."""


def fits(limits: Limits) -> bool:
    """Whether the groups of a device have the sizes that these kernels need."""
    items, local, tile = limits.lanes * limits.rows, limits.local_bytes, _tile(limits)
    return (
        tile % 4 == 0
        and limits.element_items % 64 == 0
        and (tile // 4) ** 2 <= limits.max_group
        and max(_tile_bytes(tile), 4 * _LANE_COLUMNS * items) + 1024 <= local
    )


def _tile(limits: Limits) -> int:
    """Rows and columns of a tile, on processors too, whose other products have none."""
    return limits.tile or 16


def _step(tile: int) -> int:
    """Units that a tile takes at once: as many as keep all items busy."""
    return max(1, tile // 32)


def _tile_bytes(tile: int) -> int:
    return 4 * _WORDS * tile * _step(tile)


def _of_weights(w: View) -> tuple[tuple[str, ...], tuple[Local, ...]]:
    """The defines for a format, and the memory of its table."""
    levels = (Local(4 * 256),) if w.dtype.name in _LEVELS else ()
    return (f"CODES_{w.dtype.name}",), levels


def _by_lanes(call: Call, columns: int) -> tuple[tuple[str, ...], Local, int, tuple[int, ...]]:
    """Defines, memory, groups along rows, and the group, for the columns of a lane."""
    lanes, rows = call.limits.lanes, 2 if columns <= 2 else 1
    items = lanes * call.limits.rows
    shared = call.over_items if lanes > 1 else ()
    defines = (f"LANES={lanes}", f"COLS={columns}", f"ROWS={rows}", *shared)
    groups = -(-call.dst.ne[0] // (rows * call.limits.rows))
    return defines, Local(4 * items * rows * columns), groups, (items, 1, 1)


def _mul_mat(call: Call) -> list[Launch] | None:
    """The launches of MUL_MAT, or None."""
    w, x, d, bias = call.view(0), call.view(1), call.dst, call.optional(2)
    if not read_bytes(w.dtype, w.layout) or call.params is not None:
        return None
    quantize, codes = quantized(call, x, w.dtype)
    defines, levels = _of_weights(w)
    args: tuple[Any, ...] = (w, codes, x.packed, bias or x, d, i32(bias is not None))
    if d.ne[1] > call.limits.few:
        return [quantize, _tiles(call, defines, args, levels)]
    columns = min(_LANE_COLUMNS, 1 << (d.ne[1] - 1).bit_length())  # of a lane: 1, 2, 4 or 8
    more, sums, groups, group = _by_lanes(call, columns)
    grid = (groups, -(-d.ne[1] // columns), d.ne[2] * d.ne[3])
    args = (*args, sums, *levels)
    return [quantize, Launch("gemv.cl", (*defines, *more), "gemv", args, grid, group)]


def _tiles(
    call: Call, defines: tuple[str, ...], args: tuple[Any, ...], levels: tuple[Local, ...]
) -> Launch:
    d, tile = call.dst, _tile(call.limits)
    more, memory, group = _of_tiles(tile)
    grid = (-(-d.ne[0] // tile), -(-d.ne[1] // tile), d.ne[2] * d.ne[3])
    return Launch("gemm.cl", (*defines, *more), "gemm", (*args, *memory, *levels), grid, group)


def _of_tiles(tile: int) -> tuple[tuple[str, ...], tuple[Local, ...], tuple[int, ...]]:
    """Defines, memory and group of a kernel with tiles."""
    step = _step(tile)
    memory = (Local(4 * 12 * tile * step), Local(4 * 10 * tile * step))
    return (f"TILE={tile}", f"STEP={step}"), memory, (tile // 4, tile // 4, 1)


def _mul_mat_id(call: Call) -> list[Launch] | None:
    """The launches of MUL_MAT_ID, or None."""
    w, x, ids, d = call.view(0), call.view(1), call.view(2), call.dst
    if not read_bytes(w.dtype, w.layout):
        return None
    quantize, codes = quantized(call, x, w.dtype)
    defines, levels = _of_weights(w)
    if d.ne[2] > call.limits.few and 4 * w.ne[2] <= call.limits.local_bytes:
        return [quantize, *_experts_by_tiles(call, codes, defines, levels)]
    more, sums, groups, group = _by_lanes(call, 1)
    args = (w, codes, x.packed, ids, d, Slot.FAULT, Slot.STEP, sums, *levels)
    grid = (groups, d.ne[1], d.ne[2])
    return [quantize, Launch("gemv.cl", (*defines, *more), "gemv_experts", args, grid, group)]


def _experts_by_tiles(
    call: Call, codes: Scratch, defines: tuple[str, ...], levels: tuple[Local, ...]
) -> list[Launch]:
    """The launch that sorts columns by expert, and the one that multiplies them."""
    w, x, ids, d, limits = call.view(0), call.view(1), call.view(2), call.dst, call.limits
    chosen, experts = ids.ne[0] * ids.ne[1], w.ne[2]
    tile = _tile(limits)
    if chosen <= _FEW_OF_EXPERT * experts:
        tile = min(tile, _FEW_OF_EXPERT)
    n_tiles = chosen // tile + min(chosen, experts)
    order = Scratch(ScratchSlot.EXPERTS, 16 * n_tiles + 4 * chosen)
    numbers = i32(experts), i32(n_tiles), i32(tile)
    args = (ids, order, *numbers, Slot.FAULT, Slot.STEP, Local(4 * experts))
    items = min(_MOST_SORTERS, limits.max_group, 1 << (experts - 1).bit_length())
    sort = Launch("experts.cl", (), "by_expert", args, (1,), (items,))
    more, memory, group = _of_tiles(tile)
    products = (w, codes, x.packed, order, i32(n_tiles), d, *memory, *levels)
    grid = (-(-d.ne[0] // tile), n_tiles, 1)
    defines = (*defines, *more, "EXPERTS")
    return [sort, Launch("gemm.cl", defines, "gemm_experts", products, grid, group)]


def _mul_mat_add(call: Call, add: Call) -> list[Launch] | None:
    """The launches of MUL_MAT for few columns and of ADD, which adds a tensor of the same size, as
    a residual stream; or None."""
    d, total = call.dst, add.dst
    this = 0 if same(add.view(0), d) else 1
    other = add.view(1 - this)
    if not same(add.view(this), d) or not d.ne == other.ne == total.ne:
        return None
    if d.ne[1] > call.limits.few or any(v.dtype.name != "f32" for v in (other, total)):
        return None
    launches = _mul_mat(call)
    if launches is None:
        return None
    *before, last = launches
    # the product is stored, too, as others may read it
    defines, args = (*last.defines, "ADDED"), (*last.args, other, total)
    return [*before, last._replace(defines=defines, args=args)]


PRODUCTS = OwnKernels(
    {"MUL_MAT": _mul_mat, "MUL_MAT_ID": _mul_mat_id, "NORM_SCALE": norm_scale, "GLU": glu},
    {("MUL_MAT", "ADD"): _mul_mat_add},
    read_bytes,
)


def products(name: str, limits: Limits, activations: str | None, *, wanted: bool) -> OwnKernels:
    """The kernels of products for a device with weights in planes: these where `activations` is
    `"native"`, or None and they are `wanted`.

    Raises DeviceError for other activations."""
    require_activations(name, activations)
    use = wanted if activations is None else activations == "native"
    return PRODUCTS if use and fits(limits) else NO_OWN


def require_activations(name: str, activations: str | None) -> None:
    """Raises DeviceError for activations that the device `name` does not have."""
    if activations not in (None, "native", "f32"):
        raise DeviceError(f"{name}: activations must be 'native' or 'f32', got {activations!r}")
