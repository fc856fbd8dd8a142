"""Several ops in one node. Sizes are ggml's `ne`, innermost first.

Rewrites make these nodes for devices that have kernels for them; a graph written by hand uses the
constructors where one node is wanted on every device.
"""

from __future__ import annotations

from weft.dtype import DType, find_dtype
from weft.graph.node import f32, fail, make_node, multiple, require, require_type
from weft.graph.op import declares
from weft.graph.ops.activations import GluParams
from weft.graph.ops.rotary import RopeParams
from weft.graph.params import Params
from weft.graph.tensor import Tensor
from weft.records import dataclass

BLOCKS = ("q8_0", "q8_1", "q8_K")
"""Block types that a matmul reads activations in."""


@dataclass(frozen=True, slots=True)
class NormScaleParams(Params):
    """Epsilon, and whether NORM (`centred`) or RMS_NORM is scaled."""

    eps: float
    centred: bool = False


@declares("NORM_SCALE", params=NormScaleParams, cost=6.0)
def norm_scale(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    addend: Tensor | None = None,
    *,
    eps: float,
    centred: bool = False,
    dtype: DType | str = "f32",
) -> Tensor:
    """rms_norm(x + addend) * weight + bias, or with `centred` norm(x + addend) * weight + bias.

    x: f32 [n, ...] with contiguous rows, weight, bias: f32 [n], addend: f32 with the sizes of `x`
    -> the sizes of `x`, as f32 or the blocks `dtype` that a matmul reads (see `quantize`). Raises
    GraphError where the sizes differ from these, for a negative `eps` and for other types. Equals
    ggml_rms_norm or ggml_norm between ggml_add and ggml_mul."""
    op = "NORM_SCALE"
    dt = find_dtype(dtype)
    require_type(x, ("f32",), op, "x")
    require(x.is_contiguous_rows, op, "rows of x must be contiguous; use cont()", x)
    for role, t in (("weight", weight), ("bias", bias)):
        if t is not None:
            require_type(t, ("f32",), op, role)
            fits = t.ne == (x.ne[0], 1, 1, 1) and t.is_contiguous
            require(fits, op, f"{role} must be one row, as long as those of x", x, t)
    if addend is not None:
        require_type(addend, ("f32",), op, "addend")
        same = addend.ne == x.ne and addend.is_contiguous_rows
        require(same, op, "addend must have the shape of x, with contiguous rows", x, addend)
    if not eps >= 0:
        raise fail(op, f"eps = {eps} must not be negative", x)
    _require_blocks(op, dt, x, ("f32", *BLOCKS))
    params = NormScaleParams(f32(eps), centred)
    return make_node(op, dt, x.ne, x, weight, bias, addend, params=params)


@declares("GLU_QUANTIZE", sources=(1, 2), params=GluParams, cost=14.0)
def glu_quantize(gated: Tensor, dtype: DType | str) -> Tensor:
    """`quantize(gated, dtype)` in one step, of a node that `glu` or one of its forms returned.

    gated: f32 [n, ...] -> the same sizes as q8_0, q8_1 or q8_K. Raises GraphError for another node
    or type, and for rows that are not whole blocks. Equals ggml_glu and the conversion inside
    ggml_mul_mat."""
    op = "GLU_QUANTIZE"
    if not isinstance(gated.params, GluParams):
        raise fail(op, "needs the result of glu()", gated)
    dt = find_dtype(dtype)
    _require_blocks(op, dt, gated, BLOCKS)
    return make_node(op, dt, gated.ne, *gated.src, params=gated.params)


@declares("ROPE_SET_ROWS", sources=(4, 5), params=RopeParams, cost=8.0)
def rope_set_rows(rotated: Tensor, cache: Tensor, ids: Tensor) -> Tensor:
    """`set_rows(cache, rotated as [d * heads, tokens], ids)` in one step; a view of `cache`.

    rotated: the result of `rope` for [d, heads, tokens]. cache: [d * heads, rows], of a type whose
    blocks divide d. ids: i32 or i64 [tokens]. Raises GraphError where the sizes differ from these,
    and for a node other than ROPE. Equals ggml_rope_ext before ggml_set_rows."""
    op = "ROPE_SET_ROWS"
    if rotated.op.name != "ROPE" or not isinstance(rotated.params, RopeParams):
        raise fail(op, "needs the result of rope()", rotated)
    d, heads, tokens, batch = rotated.ne
    require_type(ids, ("i64", "i32"), op, "ids")
    require(ids.ne == (tokens, 1, 1, 1), op, "ids must have one number for each token", ids)
    fits = batch == 1 and cache.ne[0] == d * heads and cache.ne[2:] == (1, 1)
    require(fits, op, "a row of cache must hold the heads of a token", rotated, cache)
    require(multiple(d, cache.dtype.block), op, "a head must be whole blocks of cache", cache)
    require(cache.is_contiguous_rows, op, "rows of cache must be contiguous", cache)
    x, positions, *factors = rotated.src
    return make_node(
        op, cache.dtype, cache.ne, x, positions, ids, cache, *factors,
        params=rotated.params, nb=cache.nb, view_of=cache,
    )  # fmt: skip


def _require_blocks(op: str, dtype: DType, x: Tensor, names: tuple[str, ...]) -> None:
    if dtype.name not in names:
        raise fail(op, f"makes {', '.join(names)}, not {dtype.name}", x)
    require(multiple(x.ne[0], dtype.block), op, f"a row must be whole blocks of {dtype.name}", x)
