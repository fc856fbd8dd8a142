"""Copies and conversions, whole or of a region. Sizes are ggml's `ne`, innermost first."""

from __future__ import annotations

from weft.dtype import DType, find_dtype
from weft.graph.costs import copied
from weft.graph.node import fail, fixed, like, make_node, multiple, require, require_type
from weft.graph.op import declares
from weft.graph.ops.views import infer_ne
from weft.graph.params import Params
from weft.graph.size import Size, is_at_most
from weft.graph.tensor import Tensor
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class AccParams(Params):
    """The byte strides and the byte offset of the region of `a` that ACC and SET write."""

    nb1: int
    nb2: int
    nb3: int
    offset: int


@declares("DUP", cost=0.0)
def dup(x: Tensor) -> Tensor:
    """A contiguous copy; the type and sizes of `x`. It takes every type and raises no GraphError.
    Equals ggml_dup."""
    return like("DUP", x)


@declares("CONT", cost=0.0)
def cont(x: Tensor, *ne: Size) -> Tensor:
    """A contiguous copy of `x`, with sizes `ne` (innermost first, one may be -1) if they are given.

    Raises GraphError where `ne` holds another number of elements, and where a row is not whole
    blocks. Equals ggml_cont and ggml_cont_4d."""
    sizes = infer_ne(x, ne, "CONT") if ne else x.ne
    require(multiple(sizes[0], x.dtype.block), "CONT", "a row must be whole blocks", x)
    return make_node("CONT", x.dtype, sizes, x, rank=len(ne) if ne else x.rank)


@declares("CPY", cost=copied)
def cpy(src: Tensor, dst: Tensor) -> Tensor:
    """Writes `src` into the memory of `dst`, converting its type; the result is a view of `dst`.

    The sizes may differ, the number of elements may not: elements go in order, innermost dimension
    first. Raises GraphError where the numbers are not provably the same. Equals ggml_cpy."""
    if src.n_elements != dst.n_elements:
        raise fail(
            "CPY",
            f"{src.n_elements} elements are not provably the {dst.n_elements} of dst",
            src,
            dst,
        )
    return make_node("CPY", dst.dtype, dst.ne, src, dst, nb=dst.nb, view_of=dst, rank=dst.rank)


def cast(x: Tensor, dtype: DType | str) -> Tensor:
    """`x` as another type, contiguous; the sizes of `x`. The node is a CPY whose second source is
    itself, as in ggml.

    Raises GraphError where a row is not whole blocks of `dtype`. Equals ggml_cast."""
    dt = find_dtype(dtype)
    require(multiple(x.ne[0], dt.block), "CPY", f"a row must be whole blocks of {dt.name}", x)
    node = make_node("CPY", dt, x.ne, x, x)
    node.src = (x, node)
    return node


@declares("ACC", params=AccParams)
def acc(
    a: Tensor, b: Tensor, nb1: Size, nb2: Size, nb3: Size, offset: Size, *, inplace: bool = False
) -> Tensor:
    """`a` with `b` added to the region at byte `offset` whose dimensions 1 to 3 are nb1..nb3 bytes
    apart.

    a, b: f32, `a` contiguous; the result has the sizes of `a`. Raises GraphError where the region
    leaves `a`, and for symbolic strides. Equals ggml_acc."""
    require_type(a, ("f32",), "ACC", "a")
    require_type(b, ("f32",), "ACC", "b")
    return _region("ACC", a, b, nb1, nb2, nb3, offset, inplace)


@declares("SET", params=AccParams)
def set(
    a: Tensor, b: Tensor, nb1: Size, nb2: Size, nb3: Size, offset: Size, *, inplace: bool = False
) -> Tensor:
    """`a` with the region at byte `offset`, whose dimensions 1 to 3 are nb1..nb3 bytes apart,
    replaced by `b`.

    a, b: both f32 or both i32, `a` contiguous; the result has the sizes of `a`. Raises GraphError
    where the region leaves `a`, and for symbolic strides. Equals ggml_set."""
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
