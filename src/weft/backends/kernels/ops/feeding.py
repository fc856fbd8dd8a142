"""The launches that make activations bytes: of any tensor, and of the results of NORM_SCALE and GLU
where products read them."""

from __future__ import annotations

from math import prod

from weft.backends.kernels.launch import Call, Launch, Local, Scratch, View
from weft.backends.kernels.ops.bytes import form_of, place_of, span_of
from weft.backends.kernels.ops.table import find_family
from weft.dtype import DType


def _by_fours(call: Call, x: View) -> tuple[Local, tuple[int, ...], tuple[int, ...]]:
    """Memory, grid and group with an item for four elements."""
    items = call.limits.element_items
    return Local(4 * items), (-(-8 * (prod(x.ne) // 32) // items),), (items,)


def quantized(call: Call, x: View, weights: DType) -> tuple[Launch, Scratch]:
    """The launch that makes bytes of activations for such weights, and where they are."""
    form = form_of(weights)
    to = place_of(x, form)
    local, grid, group = _by_fours(call, x)
    defines = (f"TO_{form}", *call.all_f32(x))
    return Launch("quantize.cl", defines, "quantize", (x, to, local), grid, group, x, True), to


def _form(call: Call) -> str | None:
    """The form in which a product reads the result, where that has whole blocks of f32."""
    d = call.dst
    if call.feeds is None or d.dtype.name != "f32":
        return None
    form = form_of(call.feeds)
    return None if d.ne[0] % span_of(form) else form


def _plain(call: Call) -> Launch:
    family = find_family(call.op)
    assert family is not None  # all ops here have one
    (launch,) = family.launches(call)
    return launch


def norm_scale(call: Call) -> list[Launch] | None:
    """The launch of NORM_SCALE whose result products read, or None."""
    form = _form(call)
    if form is None or call.limits.row_items % (span_of(form) // 4):
        return None  # a block is made by items of one group
    plain = _plain(call)
    args = (*plain.args, place_of(call.dst, form), call.row_sums)
    return [plain._replace(defines=(*plain.defines, f"TO_{form}"), args=args, makes=call.dst)]


def glu(call: Call) -> list[Launch] | None:
    """The launch of GLU whose result products read, or None."""
    form = _form(call)
    if form is None:
        return None
    plain = _plain(call)
    local, grid, group = _by_fours(call, call.dst)
    args = (*plain.args, place_of(call.dst, form), local)
    defines = (*plain.defines, f"TO_{form}")
    return [Launch(plain.file, defines, "glu_bytes", args, grid, group, call.dst)]
