"""Norms with the weights and biases that follow them."""

from __future__ import annotations

from weft.dtype import DTYPES
from weft.graph.op import OPS
from weft.graph.ops import EpsParams, NormScaleParams
from weft.graph.rewrite.match import Fused, Matcher, is_row
from weft.graph.tensor import Tensor

__all__ = ["of_sum", "with_bias", "with_weight"]

_F32 = DTYPES["f32"]


def _plain(t: Tensor) -> bool:
    return t.dtype is _F32 and t.view_src is None


def with_weight(m: Matcher, last: Tensor) -> Fused | None:
    """A norm times a row, rounded as one after the other would be."""
    if last.op is not OPS["MUL"] or not _plain(last):
        return None
    weight = last.src[1]
    for op in ("RMS_NORM", "NORM"):
        normed = m.inner(last.src[0], op, last)
        if normed is None or normed.ne != last.ne or not is_row(weight, last, _F32):
            continue
        assert isinstance(normed.params, EpsParams)
        params = NormScaleParams(normed.params.eps, op == "NORM")
        return Fused(last, "NORM_SCALE", (normed.src[0], weight), params, (normed,))
    return None


def with_bias(m: Matcher, last: Tensor) -> Fused | None:
    """The row that is added to a scaled norm."""
    if last.op is not OPS["ADD"] or not _plain(last):
        return None
    scaled, bias = m.inner(last.src[0], "NORM_SCALE", last), last.src[1]
    if scaled is None or len(scaled.src) != 2 or scaled.ne != last.ne:
        return None
    if not is_row(bias, last, _F32):
        return None
    return Fused(last, "NORM_SCALE", (*scaled.src, bias), scaled.params, (scaled,))


def of_sum(m: Matcher, last: Tensor) -> Fused | None:
    """The sum that is normed, where nobody else reads it. A sum that is kept (a residual stream)
    stays a node of its own."""
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
