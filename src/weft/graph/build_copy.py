"""Constructors that move data: copies, conversions, rows by index, joining, repeating, padding.

Sizes in docstrings are ggml's `ne`, innermost first.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.dtype import DTYPES, DType, find_dtype
from weft.graph.build_shape import infer_ne
from weft.graph.node import (
    FLOATS,
    can_repeat,
    fail,
    fixed,
    four,
    leaf,
    like,
    make_node,
    member,
    multiple,
    require,
    require_type,
)
from weft.graph.params import (
    AccParams,
    ConcatParams,
    PadParams,
    PadReflectParams,
    RollParams,
    ScaleMode,
    UpscaleParams,
)
from weft.graph.size import Size, is_at_most
from weft.graph.tensor import Tensor

__all__ = [
    "acc",
    "cast",
    "concat",
    "cont",
    "cpy",
    "dup",
    "get_rows",
    "get_rows_back",
    "pad",
    "pad_reflect_1d",
    "quantize",
    "repeat",
    "repeat_back",
    "roll",
    "set",
    "set_rows",
    "upscale",
]

F32 = DTYPES["f32"]

Four = tuple[int, int, int, int]


# -- copies and conversions ------------------------------------------------------------------------


def dup(x: Tensor) -> Tensor:
    """A contiguous copy."""
    return like("DUP", x)


def cont(x: Tensor, *ne: Size) -> Tensor:
    """A contiguous copy, with sizes `ne` (innermost first, one may be -1) if they are given."""
    sizes = infer_ne(x, ne, "CONT") if ne else x.ne
    require(multiple(sizes[0], x.dtype.block), "CONT", "a row must be whole blocks", x)
    return make_node("CONT", x.dtype, sizes, x)


def cpy(src: Tensor, dst: Tensor) -> Tensor:
    """Writes `src` into the memory of `dst`, converting its type; the result is a view of `dst`.

    Sizes may differ, their product may not: elements go in order."""
    if src.n_elements != dst.n_elements:
        raise fail(
            "CPY",
            f"{src.n_elements} elements are not provably the {dst.n_elements} of dst",
            src,
            dst,
        )
    return make_node("CPY", dst.dtype, dst.ne, src, dst, nb=dst.nb, view_of=dst)


def cast(x: Tensor, dtype: DType | str) -> Tensor:
    """`x` as another type, contiguous. A CPY that is its own second source, as in ggml."""
    dt = find_dtype(dtype)
    require(multiple(x.ne[0], dt.block), "CPY", f"a row is no whole blocks of {dt.name}", x)
    node = make_node("CPY", dt, x.ne, x, x)
    node.src = (x, node)
    return node


def quantize(x: Tensor, dtype: DType | str) -> Tensor:
    """Activations in the form that a matmul's dot product reads, made once for all its readers.

    `dtype` is q8_0, q8_1 or q8_K (blocks along rows), f16 or bf16; `x` f32, same sizes."""
    dt = find_dtype(dtype)
    require_type(x, ("f32",), "QUANTIZE", "x")
    if dt.name not in ("q8_0", "q8_1", "q8_K", "f16", "bf16"):
        raise fail("QUANTIZE", f"no dot product reads activations as {dt.name}", x)
    require(x.is_contiguous_rows, "QUANTIZE", "rows of x must be contiguous; use cont()", x)
    require(multiple(x.ne[0], dt.block), "QUANTIZE", f"a row is no whole blocks of {dt.name}", x)
    return make_node("QUANTIZE", dt, x.ne, x)


def acc(
    a: Tensor, b: Tensor, nb1: Size, nb2: Size, nb3: Size, offset: Size, *, inplace: bool = False
) -> Tensor:
    """`a` with `b` added to the region at byte `offset` with byte strides nb1..nb3; f32."""
    require_type(a, ("f32",), "ACC", "a")
    require_type(b, ("f32",), "ACC", "b")
    return _region("ACC", a, b, nb1, nb2, nb3, offset, inplace)


def set(
    a: Tensor, b: Tensor, nb1: Size, nb2: Size, nb3: Size, offset: Size, *, inplace: bool = False
) -> Tensor:
    """`a` with the region at byte `offset` with byte strides nb1..nb3 replaced by `b`."""
    require_type(a, ("f32", "i32"), "SET", "a")
    require(a.dtype is b.dtype, "SET", "a and b must have one type", a, b)
    return _region("SET", a, b, nb1, nb2, nb3, offset, inplace)


def _region(
    op: str, a: Tensor, b: Tensor, nb1: Size, nb2: Size, nb3: Size, offset: Size, inplace: bool
) -> Tensor:
    require(a.is_contiguous, op, "a must be contiguous", a, b)
    params = AccParams(
        fixed(nb1, op, "stride nb1"),
        fixed(nb2, op, "stride nb2"),
        fixed(nb3, op, "stride nb3"),
        fixed(offset, op, "offset"),
    )
    strides = (a.dtype.bytes, params.nb1, params.nb2, params.nb3)
    end: Size = params.offset + a.dtype.bytes
    for n, stride in zip(b.ne, strides, strict=True):
        end = end + (n - 1) * stride
    if min(*strides, params.offset) < 0 or not is_at_most(end, a.nbytes):
        raise fail(op, f"b with strides {strides} at byte {offset} leaves a", a, b)
    return like(op, a, b, params=params, inplace=inplace)


# -- rows by index ---------------------------------------------------------------------------------


def get_rows(a: Tensor, ids: Tensor) -> Tensor:
    """Rows of `a` by number; blocks are decoded to f32 (i32 stays i32).

    a: [n, rows, m, k], ids: i32 [r, m, k] -> [n, r, m, k]."""
    require_type(ids, ("i32",), "GET_ROWS", "ids")
    require(a.is_contiguous_rows, "GET_ROWS", "rows of a must be contiguous; use cont()", a)
    require(
        a.ne[2] == ids.ne[1] and a.ne[3] == ids.ne[2] and ids.ne[3] == 1,
        "GET_ROWS",
        "ids must be [r, a.ne[2], a.ne[3]]",
        a,
        ids,
    )
    dtype = a.dtype if a.dtype.name == "i32" else F32
    return make_node("GET_ROWS", dtype, (a.ne[0], *ids.ne[:3]), a, ids)


def get_rows_back(grad: Tensor, ids: Tensor, ne: Sequence[Size] | Tensor) -> Tensor:
    """The gradient of get_rows: f32 `ne` = [n, rows] of zeros, row ids[i] += row i of `grad`.

    grad: [n, r], ids: i32 [r]; a tensor stands for its sizes."""
    sizes = ne.ne if isinstance(ne, Tensor) else four(ne)
    require_type(ids, ("i32",), "GET_ROWS_BACK", "ids")
    require_type(grad, ("f32", "f16"), "GET_ROWS_BACK", "grad")
    require(grad.n_elements == grad.ne[0] * grad.ne[1], "GET_ROWS_BACK", "needs a matrix", grad)
    require(
        ids.n_rows == 1 and ids.ne[0] == grad.ne[1],
        "GET_ROWS_BACK",
        "needs one id for each row of grad",
        grad,
        ids,
    )
    if sizes[0] != grad.ne[0] or sizes[2] != 1 or sizes[3] != 1:
        raise fail("GET_ROWS_BACK", f"ne {list(sizes)} must be [grad.ne[0], rows]", grad)
    return make_node("GET_ROWS_BACK", F32, sizes[:2], grad, ids)


def set_rows(dst: Tensor, src: Tensor, ids: Tensor) -> Tensor:
    """Writes row i of `src` into row ids[i] of `dst`, converting its type; a view of `dst`.

    dst: [n, rows, m, k], src: f32 or f16 [n, r, m, k], ids: i32 or i64 [r, m', k'] with m', k'
    dividing m, k (the rest repeats). The node's sources are (src, ids, dst), as in ggml."""
    op = "SET_ROWS"
    require_type(src, ("f32", "f16"), op, "src")
    require_type(ids, ("i64", "i32"), op, "ids")
    require(src.ne[0] == dst.ne[0], op, "rows of src and dst must have one length", src, dst)
    require(
        src.ne[2] == dst.ne[2] and src.ne[3] == dst.ne[3],
        op,
        "src and dst must agree in dimensions 2 and 3",
        src,
        dst,
    )
    require(
        src.ne[1] == ids.ne[0]
        and multiple(src.ne[2], ids.ne[1])
        and multiple(src.ne[3], ids.ne[2])
        and ids.ne[3] == 1,
        op,
        "ids must be [src.ne[1]] with dimensions that divide those of src",
        src,
        ids,
    )
    require(src.is_contiguous_rows, op, "rows of src must be contiguous; use cont()", src)
    require(dst.is_contiguous_rows, op, "rows of dst must be contiguous", dst)
    return make_node(op, dst.dtype, dst.ne, src, ids, dst, nb=dst.nb, view_of=dst)


# -- joining, repeating, moving --------------------------------------------------------------------


def concat(a: Tensor, b: Tensor, dim: int) -> Tensor:
    """`a`, then `b` along dimension `dim` (0 is innermost); the other sizes and the types agree."""
    if not 0 <= dim < 4:
        raise fail("CONCAT", f"dimension {dim} is not in 0..3", a, b)
    require(a.dtype is b.dtype, "CONCAT", "a and b must have one type", a, b)
    require(
        all(a.ne[d] == b.ne[d] for d in range(4) if d != dim),
        "CONCAT",
        f"a and b may differ in dimension {dim} only",
        a,
        b,
    )
    ne = [*a.ne]
    ne[dim] = a.ne[dim] + b.ne[dim]
    return make_node("CONCAT", a.dtype, ne, a, b, params=ConcatParams(dim))


def repeat(x: Tensor, ne: Sequence[Size] | Tensor) -> Tensor:
    """`x` tiled to the sizes `ne` (innermost first), each a multiple of its own; a tensor stands
    for its sizes."""
    target = _target(x, ne)
    require(can_repeat(x, target), "REPEAT", "x does not tile the target", x, target)
    return make_node("REPEAT", x.dtype, target.ne, x)


def repeat_back(x: Tensor, ne: Sequence[Size] | Tensor) -> Tensor:
    """The gradient of repeat: the tiles of `x` summed into one of sizes `ne` (innermost first);
    f32."""
    target = _target(x, ne)
    require_type(x, ("f32",), "REPEAT_BACK", "x")
    require(can_repeat(target, x), "REPEAT_BACK", "the target does not tile x", x, target)
    return make_node("REPEAT_BACK", x.dtype, target.ne, x)


def _target(x: Tensor, ne: Sequence[Size] | Tensor) -> Tensor:
    return ne if isinstance(ne, Tensor) else leaf(x.dtype, ne, "target")


def roll(x: Tensor, shift: Sequence[int]) -> Tensor:
    """Elements moved by shift[d] places along dimension d, those that leave come in behind; f32."""
    shifts = _four_ints(shift, "ROLL", x)
    require_type(x, ("f32",), "ROLL", "x")
    require(x.is_contiguous_rows, "ROLL", "rows of x must be contiguous; use cont()", x)
    for n, s in zip(x.ne, shifts, strict=True):
        # |s| < n, written without abs(), which a sibling module shadows
        if not (is_at_most(s + 1, n) and is_at_most(1 - s, n)):
            raise fail("ROLL", f"shifts {shifts} must stay below the sizes", x)
    return like("ROLL", x, params=RollParams(shifts))


def pad(x: Tensor, left: Sequence[int], right: Sequence[int], *, circular: bool = False) -> Tensor:
    """`left[d]` elements before and `right[d]` after each dimension d: zeros, or wrapped around."""
    before, after = _four_ints(left, "PAD", x), _four_ints(right, "PAD", x)
    require_type(x, FLOATS, "PAD", "x")
    if min(before + after) < 0:
        raise fail("PAD", f"padding {before}, {after} is negative", x)
    ne = [n + p + q for n, p, q in zip(x.ne, before, after, strict=True)]
    return make_node("PAD", x.dtype, ne, x, params=PadParams(before, after, circular))


def pad_reflect_1d(x: Tensor, p0: int, p1: int) -> Tensor:
    """Rows mirrored at their ends, which are not repeated: [n, ...] -> [p0 + n + p1, ...]."""
    op = "PAD_REFLECT_1D"
    require_type(x, ("f32",), op, "x")
    require(x.is_contiguous, op, "x must be contiguous", x)
    if p0 < 0 or p1 < 0 or not is_at_most(max(p0, p1) + 1, x.ne[0]):
        raise fail(op, f"padding {p0}, {p1} must be from 0 to below the row length", x)
    ne = (x.ne[0] + p0 + p1, *x.ne[1:])
    return make_node(op, x.dtype, ne, x, params=PadReflectParams(p0, p1))


def upscale(
    x: Tensor,
    ne: Sequence[Size],
    mode: ScaleMode | str = ScaleMode.NEAREST,
    *,
    align_corners: bool = False,
    antialias: bool = False,
) -> Tensor:
    """`x` interpolated to the sizes `ne` (innermost first), larger or smaller; f32.

    `antialias` goes with bilinear only."""
    kind = member(ScaleMode, mode, "UPSCALE")
    require_type(x, ("f32",), "UPSCALE", "x")
    if antialias and kind is not ScaleMode.BILINEAR:
        raise fail("UPSCALE", f"antialias is defined for bilinear, not {kind.name.lower()}", x)
    sizes = four(ne)
    if not all(is_at_most(1, n) for n in sizes):
        raise fail("UPSCALE", f"target sizes {list(sizes)} must be 1 or more", x)
    return make_node(
        "UPSCALE", x.dtype, sizes, x, params=UpscaleParams(kind, align_corners, antialias)
    )


def _four_ints(values: Sequence[int], op: str, x: Tensor) -> Four:
    if len(values) > 4:
        raise fail(op, f"at most 4 dimensions, got {list(values)}", x)
    v = [*values, *[0] * (4 - len(values))]
    return (v[0], v[1], v[2], v[3])
