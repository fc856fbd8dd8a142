"""Matrix products with the row that is added to them, and the function of what comes out."""

from __future__ import annotations

from weft.dtype import DTYPES
from weft.graph.op import OPS
from weft.graph.ops import Activation, ActivationParams, MapOp, MapParams, UnaryOp, UnaryParams
from weft.graph.rewrite.match import Fused, Matcher, is_row
from weft.graph.tensor import Tensor

__all__ = ["with_activation", "with_bias"]

_F32 = DTYPES["f32"]

_UNARY = {UnaryOp[a.name]: ActivationParams(a) for a in Activation if a.name in UnaryOp.__members__}

# the same functions as UNARY's, NaNs and all
_MAP = {
    MapOp.GELU: ActivationParams(Activation.GELU_ERF),
    MapOp.GELU_TANH: ActivationParams(Activation.GELU),
}


def with_bias(m: Matcher, last: Tensor) -> Fused | None:
    """A product gets the bias as a source."""
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


def with_activation(m: Matcher, last: Tensor) -> Fused | None:
    """A product, with a bias or without, applies a function to its results."""
    if last.dtype is not _F32 or last.view_src is not None or not last.is_contiguous:
        return None
    params = _activation(last)
    product = None if params is None else m.inner(last.src[0], "MUL_MAT", last)
    if product is None or product.params is not None or product.ne != last.ne:
        return None
    return Fused(last, "MUL_MAT", product.src, params, (product,))


def _activation(node: Tensor) -> ActivationParams | None:
    """What the node computes of its first source, where a product can do it."""
    p = node.params
    if node.op is OPS["UNARY"] and isinstance(p, UnaryParams):
        return _UNARY.get(p.op)
    if node.op is not OPS["MAP"] or not isinstance(p, MapParams):
        return None
    if p.op is MapOp.CLAMP:
        return ActivationParams(Activation.CLAMP, p.a, p.b)
    return _MAP.get(p.op)
