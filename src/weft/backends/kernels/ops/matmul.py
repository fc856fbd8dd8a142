"""Matrix products: weights of any format that the kernels decode, activations unchanged."""

from __future__ import annotations

from weft.backends.kernels.launch import Call, Launch, Local, Slot, View, i32
from weft.backends.kernels.ops.table import FLOATS, family, floats, rows_lie, source
from weft.dtype import DType
from weft.graph.tensor import Tensor

DECODED = (
    *FLOATS, "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_K", "q3_K", "q4_K", "q5_K", "q6_K",
    "tq1_0", "tq2_0", "iq4_nl", "iq4_xs", "mxfp4", "nvfp4", "q1_0", "q2_0", "iq1_s", "iq1_m",
    "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s",
)  # fmt: skip
"""Formats that `formats.h` and `codebooks.h` read."""


def decoded(dtype: DType, what: str) -> str | None:
    """The refusal of a format that the kernels do not read; else None."""
    return None if dtype.name in DECODED else f"no kernel decodes {what} of type {dtype.name}"


def used(**formats: View) -> tuple[str, ...]:
    """Defines for a kernel that reads units of these tensors."""
    named = {role: _format(view) for role, view in formats.items()}
    chosen = (f"{role}={name}" for role, name in named.items())
    planes = ("PLANES",) if any(view.layout == "planes" for view in formats.values()) else ()
    return (*chosen, *(f"USE_{name}" for name in sorted(set(named.values()))), *planes)


def _format(view: View) -> str:
    """The kernels' name of the type in its layout."""
    return view.dtype.name + ("_planes" if view.layout == "planes" else "")


def _rule(node: Tensor) -> str | None:
    w, x = source(node, 0), source(node, 1)
    assert w is not None and x is not None
    why = decoded(w.dtype, "weights") or rows_lie(w, "the weights")
    why = why or rows_lie(x, "the activations")
    if why is None and x.dtype.name not in FLOATS:
        why = f"activations must be f32, f16 or bf16, not {x.dtype.name}"
    if why is None and node.dtype.name != "f32":
        why = f"results must be f32, not {node.dtype.name}"
    return why


def _mul_mat_rule(node: Tensor) -> str | None:
    bias = source(node, 2)
    if bias is not None and bias.dtype.name not in FLOATS:
        return f"a bias must be f32, f16 or bf16, not {bias.dtype.name}"
    if node.params is not None:
        return "no function is applied to products here"
    return _rule(node)


def _formats(call: Call, w: View, x: View, *more: str) -> tuple[str, ...]:
    wide = ("WIDE",) if call.limits.wide else ()
    aligned = [f"{role}_ALIGNED" for role, view in (("W", w), ("X", x)) if _by_sixteen(view)]
    return (*used(W=w, X=x), *aligned, *wide, *more)


def _by_sixteen(view: View) -> bool:
    """Whether rows of floats begin at multiples of 16 bytes."""
    return view.dtype.name in FLOATS and not any(n % 16 for n in (view.at, *view.nb[1:]))


def _by_lanes(call: Call, columns: int) -> tuple[str, ...]:
    """Defines of kernels in which lanes share a row."""
    lanes = call.limits.lanes
    return (f"LANES={lanes}", f"COLS={columns}", *(call.over_items if lanes > 1 else ()))


@family("MUL_MAT", refuse=_mul_mat_rule)
def _mul_mat(call: Call) -> list[Launch]:
    w, x, d, limits = call.view(0), call.view(1), call.dst, call.limits
    bias = call.optional(2)
    args = (w, x, bias or x, d, i32(bias is not None))
    rows, columns, planes = d.ne[0], d.ne[1], d.ne[2] * d.ne[3]
    if limits.tile and columns > limits.columns:
        return [_tiles(call, args, rows, columns, planes)]
    # a single column reads its weights once; the loop over more is unrolled for a fixed number
    cols = 1 if columns == 1 else limits.columns
    defines = _formats(call, w, x, *_by_lanes(call, cols))
    items = limits.lanes * limits.rows
    grid = (-(-rows // limits.rows), -(-columns // cols), planes)
    lanes = Local(4 * items)
    return [Launch("matmul.cl", defines, "columns", (*args, lanes), grid, (items, 1, 1))]


def _tiles(call: Call, args: tuple[object, ...], rows: int, columns: int, planes: int) -> Launch:
    tile = call.limits.tile
    defines = _formats(call, call.view(0), call.view(1), "LANES=1", "COLS=1", f"TILE={tile}")
    grid = (-(-rows // tile), -(-columns // tile), planes)
    local = Local(4 * 32 * tile)
    return Launch(
        "matmul.cl", defines, "tiles", (*args, local, local), grid, (tile // 4, tile // 4, 1)
    )


def _mul_mat_id_rule(node: Tensor) -> str | None:
    ids = source(node, 2)
    if ids is not None and ids.dtype.name != "i32":
        return f"ids must be i32, not {ids.dtype.name}"
    return _rule(node)


@family("MUL_MAT_ID", refuse=_mul_mat_id_rule)
def _mul_mat_id(call: Call) -> list[Launch]:
    w, x, ids, d, limits = call.view(0), call.view(1), call.view(2), call.dst, call.limits
    defines = _formats(call, w, x, *_by_lanes(call, 1))
    items = limits.lanes * limits.rows
    grid = (-(-d.ne[0] // limits.rows), d.ne[1], d.ne[2])
    launches = []
    for first, part in w.parts(2, limits.binding):
        args = (
            part, x, ids, d, i32(first), i32(w.ne[2]), Slot.FAULT, Slot.STEP, Local(4 * items)
        )  # fmt: skip
        launches.append(Launch("matmul.cl", defines, "experts", args, grid, (items, 1, 1)))
    return launches


def _out_prod_rule(node: Tensor) -> str | None:
    a = source(node, 0)
    assert a is not None
    if a.dtype.is_quantized:
        return decoded(a.dtype, "source 0") or rows_lie(a, "source 0") or floats(1)(node)
    return floats(0, 1)(node)


@family("OUT_PROD", refuse=_out_prod_rule)
def _out_prod(call: Call) -> list[Launch]:
    a, b, d = call.view(0), call.view(1), call.dst
    if a.dtype.is_quantized:
        items = call.elements(d, d.ne[0] // 32)
        return [Launch("outer.cl", used(W=a), "out_prod_of_blocks", (a, b, d), *items)]
    return [Launch("outer.cl", call.all_f32(a, b, d), "out_prod", (a, b, d), *call.elements(d))]


@family("SOLVE_TRI", refuse=floats(0, 1))
def _solve_tri(call: Call) -> list[Launch]:
    a, b, d, items = call.view(0), call.view(1), call.dst, call.limits.row_items
    grid = (-(-d.ne[0] // items), d.ne[2] * d.ne[3])
    return [Launch("outer.cl", call.all_f32(a, b, d), "solve_tri", (a, b, d), grid, (items, 1))]
