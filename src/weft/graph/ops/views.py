"""Views: other sizes and strides over the same memory, no work at run time.

Sizes (`ne`), strides (`nb`, bytes) and offsets (bytes) are in ggml's order, innermost first.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.graph.node import as_size, fail, four, make_node, multiple, require
from weft.graph.op import declares
from weft.graph.size import Size, exact_div, is_at_most
from weft.graph.tensor import Tensor, contiguous_nb


@declares("RESHAPE", view=True)
def reshape(x: Tensor, *ne: Size) -> Tensor:
    """The elements of `x` in order, with sizes `ne` (innermost first; one may be -1).

    Raises GraphError where `x` has gaps, where a row is not whole blocks, and where `ne` does not
    hold the elements of `x`: with symbolic sizes the products must be the same polynomial. Equals
    ggml_reshape_4d."""
    require(x.is_contiguous, "RESHAPE", "x must be contiguous; use cont()", x)
    sizes = infer_ne(x, ne, "RESHAPE")
    require(multiple(sizes[0], x.dtype.block), "RESHAPE", "a row must be whole blocks", x)
    return make_node("RESHAPE", x.dtype, sizes, x, view_of=x, rank=len(ne))


def reshape_like(x: Tensor, other: Tensor) -> Tensor:
    """`reshape` to the sizes of `other`. Equals ggml_reshape."""
    return reshape(x, *other.ne[: len(other.shape)])


def infer_ne(x: Tensor, ne: Sequence[Size], op: str) -> list[Size]:
    """`ne` (innermost first) with a -1 replaced by the size that remains for the elements of `x`.

    Raises GraphError where `ne` does not hold as many elements as `x`."""
    sizes = list(ne)
    unknown = [i for i, n in enumerate(sizes) if n == -1]
    if len(unknown) > 1:
        raise fail(op, f"only one size may be -1, got {sizes}", x)
    known: Size = 1
    for n in sizes:
        known = known if n == -1 else known * n
    if unknown:
        remaining = exact_div(x.n_elements, known)
        if remaining is None:
            raise fail(op, f"cannot tell the -1 of {sizes} from {x.n_elements} elements", x)
        sizes[unknown[0]] = remaining
    elif x.n_elements != known:
        raise fail(op, f"{sizes} has {known} elements, not provably the {x.n_elements} of x", x)
    return list(four(sizes))


@declares("VIEW", view=True)
def view(x: Tensor, ne: Sequence[Size], nb: Sequence[Size] = (), offset: Size = 0) -> Tensor:
    """Sizes `ne` and strides `nb` (innermost first) over the memory of `x`, from byte `offset` on.

    Absent strides continue the given ones without gaps. Raises GraphError where the view is not
    inside the memory of the base tensor for every value of the symbols, and where it splits blocks.
    Equals ggml_view_4d."""
    sizes, offset = four(ne), as_size(offset)
    if len(nb) > 4:
        raise fail("VIEW", f"at most 4 strides, got {list(nb)}", x)
    strides = [as_size(n) for n in nb] or [x.dtype.bytes]
    while len(strides) < 4:
        d = len(strides)
        strides.append(contiguous_nb(x.dtype, sizes)[1] if d == 1 else strides[-1] * sizes[d - 1])
    whole = multiple(sizes[0], x.dtype.block)
    require(whole, "VIEW", f"a row of {sizes[0]} elements must be whole blocks", x)
    if not multiple(offset, x.dtype.bytes):
        raise fail("VIEW", f"offset {offset} is not whole elements of {x.dtype.bytes} bytes", x)
    node = make_node(
        "VIEW", x.dtype, sizes, x, nb=strides, view_of=x, view_offs=offset, rank=len(ne)
    )
    base = node.view_src
    assert base is not None
    if not is_at_most(node.view_offs + node.nbytes, base.nbytes):
        raise fail(
            "VIEW",
            f"sizes {list(sizes)} with strides {strides} at byte {node.view_offs} are not provably "
            f"inside the {base.nbytes} bytes of the base",
            base,
        )
    return node


def view_1d(x: Tensor, ne0: Size, offset: Size = 0) -> Tensor:
    """[ne0] elements from byte `offset` of `x`; errors as `view`. Equals ggml_view_1d."""
    return view(x, (ne0,), (), offset)


def view_2d(x: Tensor, ne0: Size, ne1: Size, nb1: Size, offset: Size = 0) -> Tensor:
    """[ne0, ne1] with rows `nb1` bytes apart, from byte `offset` of `x`; errors as `view`. Equals
    ggml_view_2d."""
    return view(x, (ne0, ne1), (x.dtype.bytes, nb1), offset)


def view_3d(
    x: Tensor, ne0: Size, ne1: Size, ne2: Size, nb1: Size, nb2: Size, offset: Size = 0
) -> Tensor:
    """[ne0, ne1, ne2] with byte strides nb1 and nb2, from byte `offset` of `x`; errors as `view`.
    Equals ggml_view_3d."""
    return view(x, (ne0, ne1, ne2), (x.dtype.bytes, nb1, nb2), offset)


def view_4d(
    x: Tensor,
    ne0: Size,
    ne1: Size,
    ne2: Size,
    ne3: Size,
    nb1: Size,
    nb2: Size,
    nb3: Size,
    offset: Size = 0,
) -> Tensor:
    """[ne0, ne1, ne2, ne3] with byte strides nb1 to nb3, from byte `offset` of `x`; errors as
    `view`. Equals ggml_view_4d."""
    return view(x, (ne0, ne1, ne2, ne3), (x.dtype.bytes, nb1, nb2, nb3), offset)


@declares("PERMUTE", view=True)
def permute(x: Tensor, a0: int, a1: int, a2: int, a3: int) -> Tensor:
    """Dimension k of `x` becomes dimension a_k of the result (ggml's sense, not NumPy's).

    Raises GraphError where a0 to a3 are not an order of 0 to 3, and where dimension 0 of a block
    type would move. Equals ggml_permute."""
    axes = (a0, a1, a2, a3)
    if sorted(axes) != [0, 1, 2, 3]:
        raise fail("PERMUTE", f"axes {axes} are not an order of 0, 1, 2, 3", x)
    require(a0 == 0 or not x.dtype.is_quantized, "PERMUTE", "rows of blocks cannot be split", x)
    ne, nb = list(x.ne), list(x.nb)
    for k, axis in enumerate(axes):
        ne[axis], nb[axis] = x.ne[k], x.nb[k]
    return make_node("PERMUTE", x.dtype, ne, x, nb=nb, view_of=x)


@declares("TRANSPOSE", view=True)
def transpose(x: Tensor) -> Tensor:
    """Dimensions 0 and 1 exchanged: [a, b, ...] -> [b, a, ...].

    Raises GraphError for block types. Equals ggml_transpose."""
    require(not x.dtype.is_quantized, "TRANSPOSE", "rows of blocks cannot be split", x)
    ne = (x.ne[1], x.ne[0], x.ne[2], x.ne[3])
    nb = (x.nb[1], x.nb[0], x.nb[2], x.nb[3])
    return make_node("TRANSPOSE", x.dtype, ne, x, nb=nb, view_of=x)
