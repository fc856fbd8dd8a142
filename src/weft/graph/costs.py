"""The work of a node before any device is known: operations, and bytes to and from memory.

Each op states its cost at its constructor (`weft.graph.op.Cost`). The functions from `copied` on
are for ops whose bytes differ from the bytes of their tensors, or whose operations depend on sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log2, prod

from weft.graph.size import evaluate
from weft.graph.tensor import Tensor
from weft.records import dataclass

Values = Mapping[str, int]
"""The values of the symbols, by name."""


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one node with the symbols at given values."""

    flops: float
    nbytes: float
    """Bytes read and written."""
    is_product: bool
    """The speed depends on the type of a weight."""


class Sizes(tuple[int, ...]):
    """The sizes of a source, as formulas of costs read them."""

    __slots__ = ()

    @property
    def elements(self) -> int:
        """The product of all sizes."""
        return prod(self)

    def first(self, n: int) -> int:
        """The product of the innermost `n` sizes."""
        return prod(self[:n])


def ne_at(tensor: Tensor, values: Values) -> tuple[int, ...]:
    """The sizes of `tensor` with these values of the symbols."""
    return tuple([n if isinstance(n, int) else evaluate(n, values) for n in tensor.ne])


def elements_bytes(tensor: Tensor, values: Values) -> float:
    """The bytes of all elements of `tensor`, without gaps."""
    return prod(ne_at(tensor, values)) * tensor.dtype.bytes / tensor.dtype.block


def sources_moved(node: Tensor, values: Values) -> float:
    """The bytes of the result and of every source, each counted once."""
    moved = elements_bytes(node, values)
    counted: list[Tensor | None] = [None, node]
    for src in node.src:
        if src is not None and src not in counted:
            counted.append(src)
            moved += elements_bytes(src, values)
    return moved


def source(node: Tensor, i: int) -> Tensor:
    """Source `i` of a node, or the node itself where it has no such source."""
    tensor = node.src[i] if i < len(node.src) else None
    return node if tensor is None else tensor


def expert_share(node: Tensor, values: Values) -> float:
    """The part of the stacked experts of a MUL_MAT_ID node that a batch uses, at most 1."""
    weights, ids = source(node, 0), source(node, 2)
    n_expert = max(ne_at(weights, values)[2], 1)
    return min(1.0, prod(ne_at(ids, values)) / n_expert)


def experts_moved(node: Tensor, values: Values) -> float:
    """The bytes of a MUL_MAT_ID node; of its experts only those that a batch uses count."""
    moved = elements_bytes(source(node, 0), values) * expert_share(node, values)
    return moved + elements_bytes(source(node, 1), values) + elements_bytes(node, values)


# -- rules of single ops ---------------------------------------------------------------------------


def copied(node: Tensor, values: Values) -> Work:
    """The work of a copy; the second source is the memory of the result and is not read."""
    moved = elements_bytes(source(node, 0), values) + elements_bytes(node, values)
    return Work(0.0, moved, False)


def rows_read(node: Tensor, values: Values) -> Work:
    """The work of reading rows: of the first source, only the rows in the result are read."""
    table = source(node, 0)
    read = table.dtype.bytes / table.dtype.block * prod(ne_at(node, values))
    return Work(0.0, read + elements_bytes(node, values), False)


def rows_written(node: Tensor, values: Values) -> Work:
    """The work of writing rows: of the result, only the rows in the first source are written."""
    rows = source(node, 0)
    written = prod(ne_at(rows, values)) * node.dtype.bytes / node.dtype.block
    return Work(0.0, written + elements_bytes(rows, values), False)


def sorting(node: Tensor, values: Values) -> Work:
    """The work of sorting: 4 operations for each element and each halving of a row."""
    ne = ne_at(source(node, 0), values)
    moved = elements_bytes(source(node, 0), values) + elements_bytes(node, values)
    return Work(4.0 * max(prod(ne), 1) * max(log2(max(ne[0], 2)), 1.0), moved, False)


def state_updates(node: Tensor, values: Values) -> Work:
    """The work of a state that every token updates: 6 operations for each element and token."""
    sources = [s for s in node.src if s is not None]
    moved = sum((elements_bytes(s, values) for s in sources), elements_bytes(node, values))
    largest = max((float(prod(ne_at(s, values))) for s in sources), default=0.0)
    return Work(6.0 * largest * ne_at(source(node, 0), values)[0], moved, False)
