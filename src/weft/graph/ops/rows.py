"""Reading and writing rows by number. Sizes are ggml's `ne`, innermost first."""

from __future__ import annotations

from collections.abc import Sequence

from weft.dtype import DTYPES
from weft.graph.costs import rows_read, rows_written
from weft.graph.node import fail, four, make_node, multiple, require, require_type
from weft.graph.op import declares
from weft.graph.size import Size
from weft.graph.tensor import Tensor

F32 = DTYPES["f32"]


@declares("GET_ROWS", cost=rows_read)
def get_rows(a: Tensor, ids: Tensor) -> Tensor:
    """Rows of `a` by number; blocks and floats are decoded to f32, i32 stays i32.

    a: [n, rows, m, k], ids: i32 [r, m, k] -> [n, r, m, k]. Raises GraphError where the sizes differ
    from these, and where rows of `a` have gaps. Equals ggml_get_rows."""
    require_type(ids, ("i32",), "GET_ROWS", "ids")
    require(a.is_contiguous_rows, "GET_ROWS", "rows of a must be contiguous; use cont()", a)
    fits = a.ne[2] == ids.ne[1] and a.ne[3] == ids.ne[2] and ids.ne[3] == 1
    require(fits, "GET_ROWS", "ids must be [r, a.ne[2], a.ne[3]]", a, ids)
    dtype = a.dtype if a.dtype.name == "i32" else F32
    rank = -1 if ids.rank < 0 else min(ids.rank + 1, 4)
    return make_node("GET_ROWS", dtype, (a.ne[0], *ids.ne[:3]), a, ids, rank=rank)


@declares("GET_ROWS_BACK", sources=(2, 3))
def get_rows_back(grad: Tensor, ids: Tensor, ne: Sequence[Size] | Tensor) -> Tensor:
    """The gradient of `get_rows`: zeros of sizes `ne` = [n, rows], to whose row ids[i] row i of
    `grad` is added.

    grad: f32 or f16 [n, r], ids: i32 [r] -> f32 [n, rows]; a tensor as `ne` stands for its sizes.
    Raises GraphError where the sizes differ from these. Equals ggml_get_rows_back."""
    sizes = ne.ne if isinstance(ne, Tensor) else four(ne)
    require_type(ids, ("i32",), "GET_ROWS_BACK", "ids")
    require_type(grad, ("f32", "f16"), "GET_ROWS_BACK", "grad")
    require(grad.n_elements == grad.ne[0] * grad.ne[1], "GET_ROWS_BACK", "needs a matrix", grad)
    fits = ids.n_rows == 1 and ids.ne[0] == grad.ne[1]
    require(fits, "GET_ROWS_BACK", "needs one id for each row of grad", grad, ids)
    if sizes[0] != grad.ne[0] or sizes[2] != 1 or sizes[3] != 1:
        raise fail("GET_ROWS_BACK", f"ne {list(sizes)} must be [grad.ne[0], rows]", grad)
    return make_node("GET_ROWS_BACK", F32, sizes[:2], grad, ids)


@declares("SET_ROWS", cost=rows_written)
def set_rows(dst: Tensor, src: Tensor, ids: Tensor) -> Tensor:
    """Writes row i of `src` into row ids[i] of `dst`, converting its type; the result is a view of
    `dst`.

    dst: [n, rows, m, k], src: f32 or f16 [n, r, m, k], ids: i32 or i64 [r, m', k'], where m'
    divides m and k' divides k (ids repeat along them). The node's sources are (src, ids, dst), as
    in ggml. Raises GraphError where the sizes differ from these, and where a row has gaps. Equals
    ggml_set_rows."""
    op = "SET_ROWS"
    require_type(src, ("f32", "f16"), op, "src")
    require_type(ids, ("i64", "i32"), op, "ids")
    require(src.ne[0] == dst.ne[0], op, "rows of src and dst must have one length", src, dst)
    fits = src.ne[2] == dst.ne[2] and src.ne[3] == dst.ne[3]
    require(fits, op, "src and dst must agree in dimensions 2 and 3", src, dst)
    fits = (
        src.ne[1] == ids.ne[0]
        and multiple(src.ne[2], ids.ne[1])
        and multiple(src.ne[3], ids.ne[2])
        and ids.ne[3] == 1
    )
    require(fits, op, "ids must be [src.ne[1]] with dimensions that divide those of src", src, ids)
    require(src.is_contiguous_rows, op, "rows of src must be contiguous; use cont()", src)
    require(dst.is_contiguous_rows, op, "rows of dst must be contiguous", dst)
    return make_node(op, dst.dtype, dst.ne, src, ids, dst, nb=dst.nb, view_of=dst, rank=dst.rank)
