"""Matrix products, and the form of activations that they read.

Sizes are ggml's `ne`, innermost first. `a | b` means that a divides b.
"""

from __future__ import annotations

from weft.dtype import DTYPES, DType, find_dtype
from weft.graph.costs import experts_moved
from weft.graph.node import (
    FLOATS,
    INTEGERS,
    f32,
    fail,
    make_node,
    member,
    multiple,
    require,
    require_type,
)
from weft.graph.op import MultiplyAdds, declares
from weft.graph.ops.activations import Activation
from weft.graph.params import Params
from weft.graph.size import Size
from weft.graph.tensor import Tensor
from weft.records import dataclass

F32 = DTYPES["f32"]

ACTIVATIONS = (*FLOATS, "q8_0", "q8_1", "q8_K")
"""Types of a matmul's second operand: floats, or the blocks that `quantize` makes of them."""
_NO_WEIGHTS = "w must be f32, f16, bf16 or blocks; convert the array first: .astype('float32')"


@dataclass(frozen=True, slots=True)
class ActivationParams(Params):
    """The function, and the bounds `low` and `high` of CLAMP."""

    op: Activation
    low: float = 0.0
    high: float = 0.0


@dataclass(frozen=True, slots=True)
class CdistParams(Params):
    """The norm of CDIST, which may be infinite."""

    p: float = 2.0


@dataclass(frozen=True, slots=True)
class SolveTriParams(Params):
    """The kind of system; only left, lower, non-unit ones are defined."""

    left: bool = True
    lower: bool = True
    uni: bool = False


@declares(
    "MUL_MAT",
    params=ActivationParams,
    params_optional=True,
    cost=MultiplyAdds(lambda n, s, p: n * s[0][0]),
)
def mul_mat(
    w: Tensor,
    x: Tensor,
    bias: Tensor | None = None,
    activation: Activation | str | None = None,
    low: float = 0.0,
    high: float = 0.0,
) -> Tensor:
    """Dot products of the rows of `w` with the rows of `x`, plus `bias`, through `activation`.

    w: [k, m, w2, w3], x: [k, n, x2, x3] -> f32 [m, n, x2, x3], w2 | x2, w3 | x3: matrix i2 of `x`
    meets matrix i2 / (x2 / w2) of `w`. `w` is float or of a block type; `x` is float, or quantized
    by `quantize`. bias: f32 [m], as the rewrite matmul-bias adds it; few devices take one (else:
    `add`), or an `activation` ("clamp" limits to `low`..`high`), as the rewrite matmul-activation
    adds it (else: `unary`). Raises GraphError where the sizes differ from these, and where rows of
    `w` have gaps. Equals ggml_mul_mat."""
    op = "MUL_MAT"
    require(w.ne[0] == x.ne[0], op, "rows of w and x must have one length", w, x)
    fits = multiple(x.ne[2], w.ne[2]) and multiple(x.ne[3], w.ne[3])
    require(fits, op, "dimensions 2 and 3 of w must divide those of x", w, x)
    require(w.is_contiguous_rows, op, "rows of w must be contiguous; use cont()", w)
    numbers = w.dtype.is_quantized or w.dtype.name in FLOATS
    require(numbers, op, _NO_WEIGHTS, w)
    require_type(x, ACTIVATIONS, op, "x")
    if bias is not None:
        require_type(bias, ("f32",), op, "bias")
        is_row = bias.ne == (w.ne[1], 1, 1, 1) and bias.is_contiguous
        require(is_row, op, "bias must be one row, with an element for each row of w", w, bias)
    params = None
    if activation is not None:
        params = ActivationParams(member(Activation, activation, op), f32(low), f32(high))
    ne = (w.ne[1], x.ne[1], x.ne[2], x.ne[3])
    return make_node(op, F32, ne, w, x, bias, params=params, rank=x.rank)


@declares("MUL_MAT_ID", cost=MultiplyAdds(lambda n, s, p: n * s[0][0], moved=experts_moved))
def mul_mat_id(experts: Tensor, x: Tensor, ids: Tensor) -> Tensor:
    """`mul_mat` with the matrix that `ids` picks for each row, as a mixture of experts needs it.

    experts: [k, m, n_expert], x: [k, n_used or a divisor of it, n_tokens], ids: i32 [n_used,
    n_tokens] -> f32 [m, n_used, n_tokens]. Raises GraphError where the sizes differ from these, and
    where rows of `experts` have gaps. Equals ggml_mul_mat_id."""
    op = "MUL_MAT_ID"
    require_type(ids, ("i32",), op, "ids")
    require(experts.ne[0] == x.ne[0], op, "rows of experts and x must have one length", experts, x)
    require(experts.ne[3] == 1 and x.ne[3] == 1, op, "at most three dimensions", experts, x)
    require(ids.ne[2] == 1 and ids.ne[3] == 1, op, "ids must be a matrix", ids)
    require(ids.ne[1] == x.ne[2], op, "ids must have a row for each token of x", x, ids)
    require(multiple(ids.ne[0], x.ne[1]), op, "x.ne[1] must divide the ids of a token", x, ids)
    require(
        experts.is_contiguous_rows, op, "rows of experts must be contiguous; use cont()", experts
    )
    require_type(x, ACTIVATIONS, op, "x")
    return make_node(op, F32, (experts.ne[1], ids.ne[0], x.ne[2]), experts, x, ids)


@declares("OUT_PROD", cost=MultiplyAdds(lambda n, s, p: n * s[0][1]))
def out_prod(a: Tensor, b: Tensor) -> Tensor:
    """The sum over dimension 1 of the outer products of rows.

    a: [m, k, a2, a3], b: f32 [n, k, b2, b3] -> f32 [m, n, b2, b3], a2 | b2, a3 | b3. Raises
    GraphError where the sizes differ from these, and where rows of `a` have gaps. Equals
    ggml_out_prod."""
    op = "OUT_PROD"
    require(a.ne[1] == b.ne[1], op, "a and b must have the same number of rows", a, b)
    fits = multiple(b.ne[2], a.ne[2]) and multiple(b.ne[3], a.ne[3])
    require(fits, op, "dimensions 2 and 3 of a must divide those of b", a, b)
    require(a.is_contiguous_rows, op, "rows of a must be contiguous; use cont()", a)
    require_type(b, ("f32",), op, "b")
    return make_node(op, F32, (a.ne[0], b.ne[0], b.ne[2], b.ne[3]), a, b)


@declares("SOLVE_TRI", params=SolveTriParams)
def solve_tri(
    a: Tensor, b: Tensor, *, left: bool = True, lower: bool = True, uni: bool = False
) -> Tensor:
    """The solution x of a x = b for lower triangular matrices `a`.

    a: f32 [n, n, ...], b: f32 [k, n, ...] -> f32 [k, n, ...]. Raises GraphError where the sizes
    differ from these, where a source has gaps, and for values of `left`, `lower` and `uni` other
    than the defaults, which ggml does not define. Equals ggml_solve_tri."""
    op = "SOLVE_TRI"
    for role, t in (("a", a), ("b", b)):
        require_type(t, ("f32",), op, role)
        require(t.is_contiguous, op, f"{role} must be contiguous", t)
    require(a.ne[0] == a.ne[1], op, "a must be square", a)
    same = a.ne[1:] == b.ne[1:]
    require(same, op, "a and b must have the same sizes but for the length of a row", a, b)
    if not (left and lower) or uni:
        raise fail(op, "only left, lower, non-unit systems are defined", a, b)
    return make_node(op, F32, b.ne, a, b, params=SolveTriParams(left, lower, uni))


@declares("QUANTIZE", cost=4.0)
def quantize(x: Tensor, dtype: DType | str) -> Tensor:
    """Activations in the form that a matmul's dot product reads, converted once for all its
    readers.

    x: f32 with contiguous rows; `dtype`: q8_0, q8_1 or q8_K (blocks along rows), f16 or bf16. The
    result has the sizes of `x`. Raises GraphError for other types and rows that are not whole
    blocks. ggml converts inside ggml_mul_mat."""
    dt = find_dtype(dtype)
    require_type(x, ("f32",), "QUANTIZE", "x")
    if dt.name not in ("q8_0", "q8_1", "q8_K", "f16", "bf16"):
        raise fail("QUANTIZE", f"no dot product reads activations as {dt.name}", x)
    require(x.is_contiguous_rows, "QUANTIZE", "rows of x must be contiguous; use cont()", x)
    whole = multiple(x.ne[0], dt.block)
    require(whole, "QUANTIZE", f"a row must be whole blocks of {dt.name}", x)
    return make_node("QUANTIZE", dt, x.ne, x)


@declares(
    "CDIST", params=CdistParams, cost=MultiplyAdds(lambda n, s, p: n * s[0][0], of_weights=False)
)
def cdist(a: Tensor, b: Tensor, *, p: float = 2.0) -> Tensor:
    """The distance of each row of `a` from each row of `b`: the p-norm of their difference.

    a: [k, n, x2, x3], b: [k, m, x2, x3], of one float type -> [m, n, x2, x3], where dimensions 2
    and 3 broadcast both ways. `p` goes from 0 (the number of elements that differ) to infinity (the
    largest difference). Raises GraphError for a negative `p` and other sizes or types. Equals
    torch.cdist."""
    op = "CDIST"
    require_type(a, FLOATS, op, "a")
    require(a.dtype is b.dtype, op, "a and b must have one type; use convert()", a, b)
    ne = _pairs_of_rows(op, "a and b", a, b)
    if not p >= 0:
        raise fail(op, f"p = {p} must not be negative", a, b)
    return make_node(op, a.dtype, ne, a, b, params=CdistParams(float(p)))


@declares("MUL_MAT_INT", cost=MultiplyAdds(lambda n, s, p: n * s[0][0], of_weights=False))
def mul_mat_int(w: Tensor, x: Tensor, dtype: DType | str | None = None) -> Tensor:
    """Dot products of the rows of `w` with the rows of `x`, of integers, which wrap around.

    w: [k, m, x2, x3], x: [k, n, x2, x3], of one type i8, i16, i32 or i64 -> [m, n, x2, x3], where
    dimensions 2 and 3 broadcast both ways. `dtype` is the type of the result: the type of the
    sources (the default) or a wider one. Raises GraphError for other types and sizes. Equals
    torch.matmul of integers."""
    op = "MUL_MAT_INT"
    require_type(w, INTEGERS, op, "w")
    require(w.dtype is x.dtype, op, "w and x must have one type; use convert()", w, x)
    to = w.dtype if dtype is None else find_dtype(dtype)
    if to.name not in INTEGERS or to.bytes < w.dtype.bytes:
        raise fail(op, f"the result must be {w.dtype.name} or wider, got {to.name}", w, x)
    return make_node(op, to, _pairs_of_rows(op, "x and w", x, w), w, x)


def _pairs_of_rows(op: str, names: str, a: Tensor, b: Tensor) -> list[Size]:
    """The sizes of a number for each row of `a` and each of `b`: [rows of b, rows of a, ...]."""
    require(a.ne[0] == b.ne[0], op, f"rows of {names} must have one length", a, b)
    outer = [n if m == 1 else m for n, m in zip(a.ne[2:], b.ne[2:], strict=True)]
    fits = all(n in (1, m) for t in (a, b) for n, m in zip(t.ne[2:], outer, strict=True))
    require(fits, op, f"dimensions 2 and 3 of {names} do not broadcast", a, b)
    return [b.ne[1], a.ne[1], *outer]
