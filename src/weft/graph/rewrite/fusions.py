"""The patterns of all rewrites, and the table of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf

import numpy as np

from weft.dtype import DTYPES
from weft.graph import ops as g
from weft.graph.op import OPS
from weft.graph.rewrite.match import Fused, Matcher, is_row
from weft.graph.size import Size, is_at_most
from weft.graph.tensor import Tensor
from weft.records import dataclass

_F32 = DTYPES["f32"]

Match = Callable[[Matcher, Tensor], Fused | None]
"""`match(matcher, last)`: the replacement of a match that ends with `last`; None: no match."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A named rewrite."""

    name: str
    pattern: str
    """The nodes that it finds and the node that replaces them, for people."""
    match: Match


REWRITES: dict[str, Rewrite] = {}
"""All rewrites by name, in the order in which they are tried: the order of this file."""


def _rewrite(name: str, pattern: str) -> Callable[[Match], Match]:
    def enter(match: Match) -> Match:
        REWRITES[name] = Rewrite(name, pattern, match)
        return match

    return enter


@_rewrite("softmax-mask-scale", "SOFT_MAX(ADD(SCALE(x), mask)) -> SOFT_MAX(x, mask, scale)")
def _softmax_with_mask_and_scale(m: Matcher, last: Tensor) -> Fused | None:
    """A softmax of scores that are scaled and masked first, for graphs that spell it out."""
    if last.op is not OPS["SOFT_MAX"] or not isinstance(last.params, g.SoftMaxParams):
        return None
    if len(last.src) != 1 or last.params.max_bias or last.view_src is not None:
        return None
    x, mask, removed = last.src[0], None, []
    added = m.inner(x, "ADD", last) if last.params.scale == 1.0 else None
    if added is not None and _is_mask(added.src[1], added):
        removed.append(added)
        x, mask = added.src[0], added.src[1]
    scaled = m.inner(x, "SCALE", removed[-1] if removed else last)
    scale = last.params.scale
    if scaled is not None and isinstance(scaled.params, g.ScaleParams) and not scaled.params.b:
        removed.append(scaled)
        x = scaled.src[0]
        scale = float(np.float32(scale * scaled.params.s))
    if not removed or x is None or x.ne != last.ne or not x.is_contiguous:
        return None
    if x.dtype is not DTYPES["f32"]:
        return None
    params = g.SoftMaxParams(scale, 0.0)
    return Fused(last, "SOFT_MAX", (x,) if mask is None else (x, mask), params, tuple(removed))


def _is_mask(mask: Tensor | None, scores: Tensor) -> bool:
    """A mask that SOFT_MAX takes: whole rows, repeated over heads and batches only."""
    if mask is None or mask.dtype.name not in ("f32", "f16") or not mask.is_contiguous:
        return False
    x = scores.src[0]
    if x is None or x.ne != scores.ne or mask.ne[:2] != scores.ne[:2]:
        return False
    return all(is_at_most(1, mask.ne[d]) and scores.ne[d] % mask.ne[d] == 0 for d in (2, 3))


def _plain(t: Tensor) -> bool:
    return t.dtype is _F32 and t.view_src is None


@_rewrite("norm-scale", "MUL(NORM or RMS_NORM(x), weight) -> NORM_SCALE(x, weight)")
def _norm_with_weight(m: Matcher, last: Tensor) -> Fused | None:
    """A norm times a row, rounded as one after the other would be."""
    if last.op is not OPS["MUL"] or not _plain(last):
        return None
    weight = last.src[1]
    for op in ("RMS_NORM", "NORM"):
        normed = m.inner(last.src[0], op, last)
        if normed is None or normed.ne != last.ne or not is_row(weight, last, _F32):
            continue
        assert isinstance(normed.params, g.EpsParams)
        params = g.NormScaleParams(normed.params.eps, op == "NORM")
        return Fused(last, "NORM_SCALE", (normed.src[0], weight), params, (normed,))
    return None


@_rewrite("norm-scale-bias", "ADD(NORM_SCALE(x, weight), bias) -> NORM_SCALE(x, weight, bias)")
def _norm_with_bias(m: Matcher, last: Tensor) -> Fused | None:
    """A scaled norm plus a row."""
    if last.op is not OPS["ADD"] or not _plain(last):
        return None
    scaled, bias = m.inner(last.src[0], "NORM_SCALE", last), last.src[1]
    if scaled is None or len(scaled.src) != 2 or scaled.ne != last.ne:
        return None
    if not is_row(bias, last, _F32):
        return None
    return Fused(last, "NORM_SCALE", (*scaled.src, bias), scaled.params, (scaled,))


@_rewrite("add-norm", "NORM_SCALE(ADD(a, b), weight, bias) -> NORM_SCALE(a, weight, bias, b)")
def _norm_of_sum(m: Matcher, last: Tensor) -> Fused | None:
    """A norm of a sum that nobody else reads. A sum that is kept (a residual stream) stays a node
    of its own."""
    if last.op is not OPS["NORM_SCALE"] or len(last.src) > 3 or last.view_src is not None:
        return None
    total = m.inner(last.src[0], "ADD", last)
    if total is None or total.dtype is not _F32:
        return None
    a, b = total.src
    for t in (a, b):
        if t is None or t.dtype is not _F32 or t.ne != last.ne or not t.is_contiguous_rows:
            return None
    bias = last.src[2] if len(last.src) == 3 else None
    return Fused(last, "NORM_SCALE", (a, last.src[1], bias, b), last.params, (total,))


_UNARY = {
    g.UnaryOp[a.name]: g.ActivationParams(a)
    for a in g.Activation
    if a.name in g.UnaryOp.__members__
}

# the same functions as in UNARY, also for NaN
_MAP = {
    g.MapOp.GELU: g.ActivationParams(g.Activation.GELU_ERF),
    g.MapOp.GELU_TANH: g.ActivationParams(g.Activation.GELU),
}


@_rewrite("matmul-bias", "ADD(MUL_MAT(w, x), bias) -> MUL_MAT(w, x, bias)")
def _product_with_bias(m: Matcher, last: Tensor) -> Fused | None:
    """A matrix product plus a row, which becomes a source of the product."""
    if last.op is not OPS["ADD"] or last.dtype is not _F32 or last.view_src is not None:
        return None
    product, bias = m.inner(last.src[0], "MUL_MAT", last), last.src[1]
    if product is None or len(product.src) != 2 or product.ne != last.ne:
        return None
    if product.params is not None:
        return None  # its function comes before the bias
    if not is_row(bias, last, _F32):
        return None
    return Fused(last, "MUL_MAT", (*product.src, bias), product.params, (product,))


@_rewrite(
    "matmul-activation",
    "f(MUL_MAT(w, x, bias)) -> MUL_MAT(w, x, bias, f); f of UNARY, or MAP's clamp",
)
def _product_with_activation(m: Matcher, last: Tensor) -> Fused | None:
    """A function of a matrix product, with a bias or without."""
    if last.dtype is not _F32 or last.view_src is not None or not last.is_contiguous:
        return None
    params = _activation(last)
    product = None if params is None else m.inner(last.src[0], "MUL_MAT", last)
    if product is None or product.params is not None or product.ne != last.ne:
        return None
    return Fused(last, "MUL_MAT", product.src, params, (product,))


def _activation(node: Tensor) -> g.ActivationParams | None:
    """The function that the node applies to its first source, where a product can apply it."""
    p = node.params
    if node.op is OPS["UNARY"] and isinstance(p, g.UnaryParams):
        return _UNARY.get(p.op)
    if node.op is not OPS["MAP"] or not isinstance(p, g.MapParams):
        return None
    if p.op is g.MapOp.CLAMP:
        return g.ActivationParams(g.Activation.CLAMP, p.a, p.b)
    return _MAP.get(p.op)


def _convolution(
    m: Matcher, t: Tensor | None, last: Tensor
) -> tuple[Tensor, g.ConvLastParams] | None:
    """A convolution without a function that `last` alone reads and that has the sizes of `last`."""
    made = m.inner(t, "CONV_2D_LAST", last)
    if made is None or made.ne != last.ne or last.dtype is not _F32 or last.view_src is not None:
        return None
    params = made.params
    assert isinstance(params, g.ConvLastParams)
    plain = params.function is g.Activation.CLAMP and (params.low, params.high) == (-inf, inf)
    return (made, params) if plain else None


@_rewrite("conv-pad", "CONV_2D_LAST(PAD_ND(x), w) -> CONV_2D_LAST(x, w) with more padding")
def _convolution_with_padding(m: Matcher, last: Tensor) -> Fused | None:
    """A convolution of data that got zeros around them, perhaps more of them on one side."""
    if last.op is not OPS["CONV_2D_LAST"]:
        return None
    padded, params = m.inner(last.src[0], "PAD_ND", last), last.params
    if padded is None or padded.src[0] is None or padded.src[0].nb[0] != _F32.bytes:
        return None
    pad = padded.params
    assert isinstance(params, g.ConvLastParams) and isinstance(pad, g.PadNdParams)
    sides = (*pad.left, *pad.right)
    ends = pad.left[0], pad.left[3], pad.right[0], pad.right[3]
    if pad.mode is not g.PadMode.CONSTANT or pad.value != 0 or min(sides) < 0 or any(ends):
        return None
    before = (params.padding[0] + pad.left[1], params.padding[1] + pad.left[2])
    after = (params.padding_after[0] + pad.right[1], params.padding_after[1] + pad.right[2])
    params = replace(params, padding=before, padding_after=after)
    return Fused(last, "CONV_2D_LAST", (padded.src[0], *last.src[1:]), params, (padded,))


@_rewrite("conv-scale", "CONV_2D_LAST(MUL(x, s), w) -> CONV_2D_LAST(x, w, scale s); s a channel")
def _convolution_with_scale(m: Matcher, last: Tensor) -> Fused | None:
    """A convolution of one tap whose data are multiplied by a factor for each channel: squeeze and
    excitation."""
    if last.op is not OPS["CONV_2D_LAST"] or len(last.src) > 4:
        return None
    data, weight, params = last.src[0], last.src[1], last.params
    assert data is not None and weight is not None and isinstance(params, g.ConvLastParams)
    if params.groups != 1 or weight.ne[2:] != (1, 1):
        return None
    reshaped = m.inner(data, "RESHAPE", last)
    product = m.inner(data if reshaped is None else data.src[0], "MUL", reshaped or last)
    factor = None if product is None else product.src[1]
    if product is None or factor is None:
        return None
    c, w, h, n = data.ne
    merged = (c, w * h, n, 1), (c, 1, n, 1)  # the sizes where products of images merge dimensions
    if (product.ne, factor.ne) not in ((data.ne, (c, 1, 1, n)), merged):
        return None
    x, scale = _in_sizes(product.src[0], data.ne), _in_sizes(factor, (c, 1, 1, n))
    if x is None or scale is None or x.dtype is not _F32 or scale.dtype is not _F32:
        return None
    if x.nb[0] != _F32.bytes or not scale.is_contiguous:
        return None
    src = (x, *last.src[1:], *[None] * (4 - len(last.src)), scale)
    removed = (product,) if reshaped is None else (product, reshaped)
    return Fused(last, "CONV_2D_LAST", src, params, removed)


def _in_sizes(t: Tensor | None, ne: tuple[Size, ...]) -> Tensor | None:
    """The tensor, or what it is a reshaped view of, where that has these sizes."""
    if t is not None and t.ne != ne and t.op is OPS["RESHAPE"]:
        t = t.src[0]
    return t if t is not None and t.ne == ne else None


@_rewrite("conv-add", "ADD(CONV_2D_LAST(x, w, bias), r) -> CONV_2D_LAST(x, w, bias, r)")
def _convolution_with_residual(m: Matcher, last: Tensor) -> Fused | None:
    """A sum of a convolution and a tensor of the same sizes, in either order."""
    if last.op is not OPS["ADD"]:
        return None
    for t, other in (last.src[:2], last.src[1::-1]):
        found = _convolution(m, t, last)
        if found is None or other is None or other is t:
            continue
        made, params = found
        if other.dtype is not _F32 or other.ne != last.ne or other.nb[0] != _F32.bytes:
            continue
        x, weight, bias, residual, scale = (*made.src, None, None, None)[:5]
        if residual is not None:
            continue
        src = (x, weight, bias, other) if scale is None else (x, weight, bias, other, scale)
        return Fused(last, "CONV_2D_LAST", src, params, (made,))
    return None


@_rewrite(
    "conv-activation",
    "f(CONV_2D_LAST(...)) -> CONV_2D_LAST(..., f); f of UNARY, or a clamp",
)
def _convolution_with_function(m: Matcher, last: Tensor) -> Fused | None:
    """A convolution of whose result only a function is read: relu6, silu, hard swish."""
    bounds, function = _bounds(last), _activation(last)
    if bounds is None and function is None:
        return None
    found = _convolution(m, last.src[0], last)
    if found is None:
        return None
    made, params = found
    if bounds is not None:
        if not bounds[0] <= bounds[1]:
            return None
        params = replace(params, low=bounds[0], high=bounds[1])
    else:
        assert function is not None
        params = replace(params, function=function.op)
    return Fused(last, "CONV_2D_LAST", made.src, params, (made,))


def _bounds(node: Tensor) -> tuple[float, float] | None:
    p = node.params
    if isinstance(p, g.MapParams) and p.op is g.MapOp.CLAMP:
        return p.a, p.b
    if isinstance(p, g.ClampParams):
        return p.min, p.max
    if isinstance(p, g.UnaryParams) and p.op is g.UnaryOp.RELU:
        return 0.0, inf
    return None


def _quantized(m: Matcher, last: Tensor, op: str, fused: str) -> Fused | None:
    if last.op is not OPS["QUANTIZE"] or not last.dtype.is_quantized:
        return None
    made = m.inner(last.src[0], op, last)
    if made is None or made.ne != last.ne:
        return None
    return Fused(last, fused, made.src, made.params, (made,))


@_rewrite("norm-quantize", "QUANTIZE(NORM_SCALE(...)) -> NORM_SCALE(...) as blocks")
def _norm_as_blocks(m: Matcher, last: Tensor) -> Fused | None:
    """A scaled norm that only matrix products read, as the blocks that they take."""
    return _quantized(m, last, "NORM_SCALE", "NORM_SCALE")


@_rewrite("glu-quantize", "QUANTIZE(GLU(a, b)) -> GLU_QUANTIZE(a, b)")
def _glu_as_blocks(m: Matcher, last: Tensor) -> Fused | None:
    """A gated activation that only matrix products read, as the blocks that they take."""
    return _quantized(m, last, "GLU", "GLU_QUANTIZE")


@_rewrite(
    "rope-cache", "SET_ROWS(RESHAPE(ROPE(k)), cells, cache) -> ROPE_SET_ROWS(k, ..., cells, cache)"
)
def _rope_into_cache(m: Matcher, last: Tensor) -> Fused | None:
    """Keys on their way into the cache: ROPE of [d, heads, tokens], its heads side by side, written
    to a row for each token."""
    if last.op is not OPS["SET_ROWS"]:
        return None
    rows, cells, cache = last.src[0], last.src[1], last.src[2]
    side_by_side = m.inner(rows, "RESHAPE", last)
    if side_by_side is None or cells is None or cache is None:
        return None
    rotated = m.inner(side_by_side.src[0], "ROPE", side_by_side)
    if rotated is None:
        return None
    d, heads, tokens, batch = rotated.ne
    if batch != 1 or side_by_side.ne != (d * heads, tokens, 1, 1):
        return None
    if cells.ne != (tokens, 1, 1, 1) or d % last.dtype.block != 0:
        return None
    x, positions, *factors = rotated.src
    src = (x, positions, cells, cache, *factors)
    return Fused(last, "ROPE_SET_ROWS", src, rotated.params, (rotated, side_by_side))
