"""Copies, conversions, rows by index, and other ops that move elements."""

from __future__ import annotations

from weft.backends.kernels.launch import Call, Launch, Slot, View, i32, i64
from weft.backends.kernels.ops.matmul import DECODED, used
from weft.backends.kernels.ops.table import FLOATS, family, source
from weft.dtype import DType
from weft.graph.tensor import Tensor

_FILE = "copy.cl"
_NUMBERS = (*FLOATS, "i32", "i16")
_ENCODED = ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl")
"""Formats that `blocks.h` writes."""


def _written(dtype: DType) -> str | None:
    """The reason why rows cannot be written as a type other than floats; else None."""
    if dtype.name in _ENCODED:
        return None
    return f"results must be floats or {', '.join(_ENCODED)}, not {dtype.name}"


def _conversion(source_type: DType, target: DType) -> str | None:
    """The reason why elements of one type cannot become another; else None."""
    a, b = source_type, target
    if a is b:
        return "an i2_s tensor is not copied here" if a.tail else None
    if a.name in _NUMBERS and b.name in _NUMBERS:
        return None
    if a.name in DECODED and b.name in FLOATS:
        return None
    if a.name in FLOATS and b.is_quantized:
        return _written(b)
    return f"{a.name} is not converted to {b.name} here"


def _copy_rule(node: Tensor) -> str | None:
    s = source(node, 0)
    assert s is not None
    return _conversion(s.dtype, node.dtype)


@family("CPY", "CONT", refuse=_copy_rule)
def _copy(call: Call) -> list[Launch]:
    return [_converted(call, call.view(0), call.dst)]


def _converted(call: Call, s: View, d: View) -> Launch:
    n = s.n_elements
    if s.dtype is d.dtype:
        n //= s.dtype.block
        sizes = (i32(s.ne[0] // s.dtype.block), i32(d.ne[0] // d.dtype.block))
        args = (s, d, *sizes, i32(s.dtype.bytes), i64(n))
        return Launch(_FILE, (), "move", args, *call.in_line(n))
    if s.dtype.is_quantized:
        n //= 32
        return Launch(_FILE, used(W=s), "decode", (s, d, i64(n)), *call.in_line(n))
    if d.dtype.is_quantized:
        n //= 32
        defines = _put(d)
        return Launch(_FILE, defines, "encode", (s, d, i64(n)), *call.in_line(n))
    return Launch(_FILE, (), "convert", (s, d, i64(n)), *call.in_line(n))


def _put(d: View) -> tuple[str, ...]:
    """Defines for a kernel that writes blocks."""
    return f"PUT={d.dtype.name}", f"PUT_{d.dtype.name}"


# ---- rows by index -------------------------------------------------------------------------------


def _ids_rule(node: Tensor, i: int) -> str | None:
    ids = source(node, i)
    if ids is not None and ids.dtype.name not in ("i32", "i64"):
        return f"indices must be i32 or i64, not {ids.dtype.name}"
    return None


def _get_rows_rule(node: Tensor) -> str | None:
    s = source(node, 0)
    assert s is not None
    if s.dtype.name not in (*DECODED, "i32"):
        return f"no kernel decodes rows of type {s.dtype.name}"
    if s.dtype is not node.dtype and node.dtype.name not in FLOATS:
        return f"rows of {s.dtype.name} cannot become {node.dtype.name} here"
    if s.dtype is node.dtype and s.dtype.is_quantized:
        return "rows of blocks are decoded here, not kept"
    return _ids_rule(node, 1)


@family("GET_ROWS", refuse=_get_rows_rule)
def _get_rows(call: Call) -> list[Launch]:
    s, ids, d = call.view(0), call.view(1), call.dst
    launches = []
    for first, part in s.parts(1, call.limits.binding):
        args = (part, ids, d, i32(first), i32(s.ne[1]), Slot.FAULT, Slot.STEP)
        if s.dtype.is_quantized:
            items = call.elements(d, d.ne[0] // 32)
            launches.append(Launch(_FILE, used(W=s), "get_rows_of_blocks", args, *items))
        else:
            launches.append(Launch(_FILE, (), "get_rows", args, *call.elements(d)))
    return launches


def _set_rows_rule(node: Tensor) -> str | None:
    s = source(node, 0)
    assert s is not None
    if s.dtype.name not in FLOATS:
        return f"rows must be f32, f16 or bf16, not {s.dtype.name}"
    if node.dtype.name not in FLOATS:
        return _written(node.dtype) or _ids_rule(node, 1)
    return _ids_rule(node, 1)


@family("SET_ROWS", refuse=_set_rows_rule)
def _set_rows(call: Call) -> list[Launch]:
    s, ids, d = call.view(0), call.view(1), call.dst
    args = (s, ids, d, Slot.FAULT, Slot.STEP)
    if d.dtype.is_quantized:
        items = call.elements(s, s.ne[0] // 32)
        return [Launch(_FILE, _put(d), "set_rows_of_blocks", args, *items)]
    return [Launch(_FILE, (), "set_rows", args, *call.elements(s))]


# ---- parts ---------------------------------------------------------------------------------------


def _same_type_rule(node: Tensor) -> str | None:
    for t in node.src:
        if t is not None and t.dtype is not node.dtype:
            return f"{t.dtype.name} is not converted to {node.dtype.name} here"
    if node.dtype.is_quantized:
        return f"blocks of {node.dtype.name} are not moved here"
    return None


@family("CONCAT", refuse=_same_type_rule)
def _concat(call: Call) -> list[Launch]:
    a, b, d, dim = call.view(0), call.view(1), call.dst, call.params.dim
    size = i32(d.dtype.bytes)
    return [
        Launch(_FILE, (), "place", (s, d, i32(dim), i32(start), size), *call.elements(s))
        for s, start in ((a, 0), (b, a.ne[dim]))
    ]


@family("REPEAT", refuse=_same_type_rule)
def _repeat(call: Call) -> list[Launch]:
    s, d = call.view(0), call.dst
    return [Launch(_FILE, (), "repeat", (s, d, i32(d.dtype.bytes)), *call.elements(d))]


def _region_rule(node: Tensor) -> str | None:
    types = {t.dtype.name for t in (*node.src[:2], node) if t is not None}
    if len(types) == 1 and types <= {*FLOATS, "i32"}:
        return None
    return f"types must agree and be f32, f16, bf16 or i32, not {', '.join(sorted(types))}"


@family("SET", "ACC", refuse=_region_rule)
def _region(call: Call) -> list[Launch]:
    a, b, d, p = call.view(0), call.view(1), call.dst, call.params
    part = d.part(b.ne, (d.dtype.bytes, p.nb1, p.nb2, p.nb3), p.offset)
    args = (b, part, i32(call.op == "ACC"))
    written = Launch(_FILE, (), "region", args, *call.elements(b))
    if (a.buffer, a.at) == (d.buffer, d.at):
        return [written]  # in place
    return [_converted(call, a, d), written]
