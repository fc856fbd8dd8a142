"""Activations that nobody but a matmul reads, made as the blocks it wants."""

from __future__ import annotations

from weft.graph.op import OPS
from weft.graph.rewrite.match import Fused, Matcher
from weft.graph.tensor import Tensor

__all__ = ["glu", "norm"]


def _quantized(m: Matcher, last: Tensor, op: str, fused: str) -> Fused | None:
    if last.op is not OPS["QUANTIZE"] or not last.dtype.is_quantized:
        return None
    made = m.inner(last.src[0], op, last)
    if made is None or made.ne != last.ne:
        return None
    return Fused(last, fused, made.src, made.params, (made,))


def norm(m: Matcher, last: Tensor) -> Fused | None:
    """A scaled norm."""
    return _quantized(m, last, "NORM_SCALE", "NORM_SCALE")


def glu(m: Matcher, last: Tensor) -> Fused | None:
    """A gated activation."""
    return _quantized(m, last, "GLU", "GLU_QUANTIZE")
