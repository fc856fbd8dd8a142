"""Values of the nodes of an exported program: shapes and strides of lazy views, outermost first, in
elements.

A value is a contiguous tensor plus a shape, strides and an offset over it, as in PyTorch; views
cost nothing until an op needs a weft tensor. Strides of 0 are expanded dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from weft.graph.size import Expr, Size, exact_div
from weft.graph.tensor import Tensor
from weft.records import dataclass

Dims = list[tuple[Size, ...]]
"""For each dimension, its size and then the stride of each operand."""


def product(sizes: Sequence[Size]) -> Size:
    """All sizes multiplied."""
    total: Size = 1
    for n in sizes:
        total = total * n
    return total


def contiguous(shape: Sequence[Size]) -> tuple[Size, ...]:
    """Strides without gaps."""
    strides: list[Size] = []
    step: Size = 1
    for n in reversed(shape):
        strides.append(step)
        step = step * n
    return tuple(reversed(strides))


def is_contiguous(shape: Sequence[Size], strides: Sequence[Size]) -> bool:
    """Whether the elements provably lie in order without gaps."""
    expected: Size = 1
    for n, s in zip(reversed(shape), reversed(strides), strict=True):
        if n == 1:
            continue
        if s != expected:
            return False
        expected = expected * n
    return True


def memory_order(shape: Sequence[Size], strides: Sequence[Size]) -> tuple[int, ...] | None:
    """The dimensions in their order in memory, outermost first, where the elements provably have no
    gaps; else None.

    Dimensions of one element come first, except in `channels_last`."""
    if is_contiguous(shape, strides):
        return tuple(range(len(shape)))
    result: list[int] = []
    expected: Size = 1
    left = [d for d, n in enumerate(shape) if n != 1]
    while left:
        inner = [d for d in left if strides[d] == expected]
        if len(inner) != 1:
            return None
        result.append(inner[0])
        left.remove(inner[0])
        expected = expected * shape[inner[0]]
    order = tuple(reversed(result))
    last = channels_last(len(shape))
    if order == tuple(d for d in last if shape[d] != 1):
        return last
    ones = tuple(d for d, n in enumerate(shape) if n == 1)
    return (*ones, *order)


def channels_last(rank: int) -> tuple[int, ...]:
    """The order of PyTorch's channels_last: batch, the dimensions behind the channels, channels."""
    return (0, *range(2, rank), 1) if rank > 2 else tuple(range(rank))


def inverse(order: Sequence[int]) -> tuple[int, ...]:
    """The permutation that undoes one."""
    return tuple(order.index(d) for d in range(len(order)))


def joint_dims(shape: Sequence[Size], *strides: Sequence[Size]) -> Dims:
    """The fewest dimensions that describe all operands at once.

    Dimensions of one element are dropped, and neighbours merged where every operand steps through
    both as through one."""
    dims: Dims = []
    for i, n in enumerate(shape):
        if n == 1:
            continue
        steps = tuple(s[i] for s in strides)
        if dims and all(
            outer == inner * n for outer, inner in zip(dims[-1][1:], steps, strict=True)
        ):
            dims[-1] = (dims[-1][0] * n, *steps)
        else:
            dims.append((n, *steps))
    return dims


def coalesce(shape: Sequence[Size], strides: Sequence[Size]) -> Dims:
    """`joint_dims` of one operand: pairs of size and stride."""
    return joint_dims(shape, strides)


def folded_ne(shape: Sequence[Size]) -> tuple[Size, ...]:
    """weft sizes (innermost first) of a dense tensor of any rank; dimensions outside the last three
    are one."""
    tail = list(shape[-3:][::-1])
    if len(shape) > 3:
        tail.append(product(shape[:-3]))
    return tuple(tail) or (1,)


def broadcast_strides(
    shape: Sequence[Size], strides: Sequence[Size], target: Sequence[Size]
) -> tuple[Size, ...]:
    """Strides that read `shape` as `target`: new and repeated dimensions get 0."""
    lead = len(target) - len(shape)
    result: list[Size] = [0] * lead
    for n, s, m in zip(shape, strides, target[lead:], strict=True):
        result.append(0 if n == 1 and m != 1 else s)
    return tuple(result)


def restride(
    shape: Sequence[Size], strides: Sequence[Size], target: Sequence[Size]
) -> tuple[Size, ...] | None:
    """Strides of `target` over the same elements in the same order, or None where it takes a copy.

    Both shapes are split into groups of equal products, from the inside; in a group the old
    dimensions must step as one."""
    old = [(n, s) for n, s in zip(shape, strides, strict=True) if n != 1]
    result: list[Size] = [1] * len(target)
    i, j = len(old), len(target)
    while j > 0:
        if target[j - 1] == 1:
            j -= 1
            result[j] = 1
            continue
        if i == 0:
            return None
        i -= 1
        j -= 1
        first, begin = j + 1, i
        n_old, n_new = old[i][0], target[j]
        while n_old != n_new:
            if _goes_into(n_old, n_new) and i > 0:
                i -= 1
                n_old = n_old * old[i][0]
            elif j > 0:
                j -= 1
                n_new = n_new * target[j]
            else:
                return None
        for k in range(begin, i, -1):
            if old[k - 1][1] != old[k][1] * old[k][0]:
                return None
        step = old[begin][1]
        for k in range(first - 1, j - 1, -1):
            result[k] = step
            step = step * target[k]
    return tuple(result) if i == 0 else None


def _goes_into(small: Size, big: Size) -> bool:
    if isinstance(small, Expr) or isinstance(big, Expr):
        return exact_div(big, small) is not None
    return small < big


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A view of a contiguous tensor, in PyTorch's terms: shape and strides outermost first, in
    elements.

    Views of views cost nothing; the builder makes a weft tensor of one when an op needs it. Values
    compare by identity."""

    tensor: Tensor
    """The contiguous tensor, of a type of `dtypes.STORED` or f32; its own sizes do not matter."""
    dtype: torch.dtype
    """The type in the exported program; float16 and bfloat16 may be f32 in `tensor`."""
    shape: tuple[Size, ...]
    strides: tuple[Size, ...]
    offset: Size = 0

    @staticmethod
    def whole(tensor: Tensor, dtype: torch.dtype, shape: Sequence[Size]) -> Value:
        """All elements of a contiguous tensor, as `shape`."""
        return Value(tensor, dtype, tuple(shape), contiguous(shape))

    def entry(self, i: Size) -> Value:
        """Slice number `i` along the first dimension, without it."""
        return self.viewed(self.shape[1:], self.strides[1:], self.offset + i * self.strides[0])

    @property
    def rank(self) -> int:
        """Number of dimensions; 0 for a scalar."""
        return len(self.shape)

    @property
    def n_elements(self) -> Size:
        """Product of the sizes."""
        return product(self.shape)

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie in order without gaps."""
        return is_contiguous(self.shape, self.strides)

    @property
    def is_whole(self) -> bool:
        """Whether this is all of `tensor`, in order."""
        return self.offset == 0 and self.is_contiguous and self.n_elements == self.tensor.n_elements

    @property
    def order(self) -> tuple[int, ...] | None:
        """The dimensions in their order in memory, outermost first, where this is all of `tensor`;
        else None."""
        if self.offset != 0 or self.n_elements != self.tensor.n_elements:
            return None
        return memory_order(self.shape, self.strides)

    @property
    def reading_order(self) -> tuple[int, ...]:
        """The order of dimensions in which a copy is fastest.

        It is `order`, channels last for part of such a value, else the order of the shape."""
        usual = tuple(range(self.rank))
        if self.order is not None:
            return self.order
        if self.rank < 4 or self.strides[1] != 1 or 1 in (self.shape[1], self.strides[-1]):
            return usual
        return channels_last(self.rank)

    def permuted(self, order: Sequence[int]) -> Value:
        """Dimension order[i] becomes dimension i; only a view."""
        return self.viewed([self.shape[d] for d in order], [self.strides[d] for d in order])

    def viewed(
        self, shape: Sequence[Size], strides: Sequence[Size], offset: Size | None = None
    ) -> Value:
        """Another view of the same tensor; one without elements begins where the tensor does."""
        at = self.offset if offset is None else offset
        if any(isinstance(n, int) and n == 0 for n in shape):
            at = 0
        return replace(self, shape=tuple(shape), strides=tuple(strides), offset=at)

    def as_type(self, dtype: torch.dtype) -> Value:
        """The same elements under another name of their type."""
        return replace(self, dtype=dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Carried:
    """A value that weft has no type or no size for, as bytes that it hands from PyTorch to
    PyTorch."""

    tensor: Tensor
    dtype: torch.dtype
    shape: tuple[Size, ...]
    """The sizes, or where the tensor starts with its sizes, their bounds."""
    counted: bool = False
    """The tensor starts with the sizes (an int64 for each), because they depend on data."""
    is_number: bool = False
    """A number that was read out of a tensor."""
