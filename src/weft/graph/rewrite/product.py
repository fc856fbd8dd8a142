"""Matrix products with the row that is added to them."""

from __future__ import annotations

from weft.dtype import DTYPES
from weft.graph.op import OPS
from weft.graph.rewrite.match import Fused, Matcher, is_row
from weft.graph.tensor import Tensor

__all__ = ["with_bias"]

_F32 = DTYPES["f32"]


def with_bias(m: Matcher, last: Tensor) -> Fused | None:
    """A product gets the bias as a source."""
    if last.op is not OPS["ADD"] or last.dtype is not _F32 or last.view_src is not None:
        return None
    product, bias = m.inner(last.src[0], "MUL_MAT", last), last.src[1]
    if product is None or len(product.src) != 2 or product.ne != last.ne:
        return None
    if not is_row(bias, last, _F32):
        return None
    return Fused(last, "MUL_MAT", (*product.src, bias), product.params, (product,))
