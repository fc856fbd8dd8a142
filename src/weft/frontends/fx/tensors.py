"""weft tensors over contiguous ones, with other sizes, parts or strides."""

from __future__ import annotations

from collections.abc import Sequence

from weft import graph as g
from weft.frontends.fx.layout import contiguous, is_contiguous, product
from weft.frontends.fx.value import Value
from weft.graph.size import Size
from weft.graph.tensor import Tensor

__all__ = ["reshaped_to", "strided", "window"]


def window(v: Value, ne: Sequence[Size]) -> Tensor:
    """A contiguous part of a tensor."""
    if v.is_whole:
        return reshaped_to(v.tensor, ne)
    return g.view(v.tensor, ne, (), v.offset * v.tensor.dtype.bytes)


def reshaped_to(t: Tensor, ne: Sequence[Size]) -> Tensor:
    """A contiguous tensor with other sizes; the tensor itself where it has them."""
    sizes = (*ne, *[1] * (4 - len(ne)))
    return t if t.ne == sizes else g.reshape(t, *sizes)


def strided(t: Tensor, ne: Sequence[Size], steps: Sequence[Size], offset: Size) -> Tensor:
    """A view with strides in elements, innermost first; the tensor itself where the view is all of
    it."""
    shape, strides = tuple(reversed(ne)), tuple(reversed(steps))
    if offset == 0 and is_contiguous(shape, strides) and product(ne) == t.n_elements:
        return reshaped_to(t, ne)
    size = t.dtype.bytes
    full = contiguous(shape)[::-1]
    # strides of dimensions of one element do not count; kernels expect them as without gaps
    nb = [size * (s if n != 1 else f) for n, s, f in zip(ne, steps, full, strict=True)]
    while len(nb) < 4:
        nb.append(nb[-1] * ne[len(nb) - 1] if nb else size)
        ne = [*ne, 1]
    return g.view(t, ne, nb, offset * size)
