"""Convolutions with what is added to their results, and with bounds of them."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from weft.dtype import DTYPES
from weft.graph.op import OPS
from weft.graph.ops import ClampParams, ConvLastParams, MapOp, MapParams, UnaryOp, UnaryParams
from weft.graph.rewrite.match import Fused, Matcher
from weft.graph.tensor import Tensor

__all__ = ["with_bounds", "with_residual"]

_F32 = DTYPES["f32"]


def _unbounded(m: Matcher, t: Tensor | None, last: Tensor) -> tuple[Tensor, ConvLastParams] | None:
    """A convolution that `last` alone reads, as large as it, without bounds of its own."""
    made = m.inner(t, "CONV_2D_LAST", last)
    if made is None or made.ne != last.ne or last.dtype is not _F32 or last.view_src is not None:
        return None
    params = made.params
    assert isinstance(params, ConvLastParams)
    return (made, params) if (params.low, params.high) == (-inf, inf) else None


def with_residual(m: Matcher, last: Tensor) -> Fused | None:
    """A sum of a convolution and a tensor of the same sizes, in either order."""
    if last.op is not OPS["ADD"]:
        return None
    for t, other in (last.src[:2], last.src[1::-1]):
        found = _unbounded(m, t, last)
        if found is None or other is None or other is t or len(found[0].src) > 3:
            continue
        made, params = found
        if other.dtype is not _F32 or other.ne != last.ne or other.nb[0] != _F32.bytes:
            continue
        bias = made.src[2] if len(made.src) > 2 else None
        src = (*made.src[:2], bias, other)
        return Fused(last, "CONV_2D_LAST", src, params, (made,))
    return None


def with_bounds(m: Matcher, last: Tensor) -> Fused | None:
    """A convolution whose result is only read within bounds: relu, relu6, clamp."""
    bounds = _bounds(last)
    found = None if bounds is None else _unbounded(m, last.src[0], last)
    if bounds is None or found is None or not bounds[0] <= bounds[1]:
        return None
    made, params = found
    params = replace(params, low=bounds[0], high=bounds[1])
    return Fused(last, "CONV_2D_LAST", made.src, params, (made,))


def _bounds(node: Tensor) -> tuple[float, float] | None:
    p = node.params
    if isinstance(p, MapParams) and p.op is MapOp.CLAMP:
        return p.a, p.b
    if isinstance(p, ClampParams):
        return p.min, p.max
    if isinstance(p, UnaryParams) and p.op is UnaryOp.RELU:
        return 0.0, inf
    return None
