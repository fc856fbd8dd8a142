"""`Value` and `Carried`: the value of a node of an exported program while the graph is built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from weft.frontends.fx.layout import channels_last, contiguous, is_contiguous, memory_order, product
from weft.graph.size import Size
from weft.graph.tensor import Tensor
from weft.records import dataclass

__all__ = ["Carried", "Value"]


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
