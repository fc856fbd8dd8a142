"""The work of a node before any device is known, from the declaration of its op."""

from __future__ import annotations

from math import prod

from weft.graph.costs import (
    Sizes,
    Values,
    Work,
    expert_share,
    ne_at,
    sources_moved,
)
from weft.graph.op import MultiplyAdds
from weft.graph.size import evaluate
from weft.graph.tensor import Tensor

__all__ = ["Work", "expert_share", "nbytes_at", "work"]

_NONE = Work(0.0, 0.0, False)
_ABSENT = Sizes((1, 1, 1, 1))


def work(node: Tensor, values: Values) -> Work:
    """The operations and bytes of `node`; 0 for views and leaves."""
    if node.op.is_view or node.op.name == "NONE":
        return _NONE
    ne = ne_at(node, values)
    if 0 in ne:
        return _NONE
    cost = node.op.cost
    if isinstance(cost, float):
        return Work(cost * prod(ne), sources_moved(node, values), False)
    if isinstance(cost, MultiplyAdds):
        sizes = [_ABSENT if s is None else Sizes(ne_at(s, values)) for s in node.src]
        count = cost.formula(prod(ne), sizes, node.params)
        return Work(2.0 * count, (cost.moved or sources_moved)(node, values), cost.of_weights)
    own: Work = cost(node, values)
    return own


def nbytes_at(tensor: Tensor, values: Values) -> int:
    """`tensor.nbytes` with these values: the bytes that a copy of it moves."""
    return evaluate(tensor.nbytes, values)
