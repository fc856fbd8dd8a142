"""HOST, a node that calls a function of this process, for what a library does better than a kernel.

It is in no op table, because native code does not know it: graphs with such nodes are not written
as text or into files, and the `host` device alone runs them (`weft.backends.host`), on memory that
the host can address.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, TypeAlias

from numpy.typing import NDArray

from weft.dtype import DType
from weft.graph.node import make_node, require
from weft.graph.op import Op
from weft.graph.params import Params
from weft.graph.size import Size
from weft.graph.tensor import Tensor
from weft.records import dataclass

_numbers = count()

Computes: TypeAlias = Callable[[Sequence[NDArray[Any]], NDArray[Any], Mapping[str, int]], None]


class HostFunction:
    """A function with a name: `compute(sources, out, values)` fills `out`.

    Arrays are flat and of the tensors' storage types; `values` are the values of the symbols. It
    keeps no array and writes none but `out`. Functions are equal where they are the same object.
    `why` says why no other device computes it."""

    def __init__(self, name: str, compute: Computes, why: str = "") -> None:
        self.name = name
        self.why = why
        self.compute = compute
        self._number = next(_numbers)

    def __float__(self) -> float:
        """A number of its own, by which records of parameters differ."""
        return float(self._number)

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class HostParams(Params):
    """The function of HOST."""

    function: HostFunction


HOST = Op("HOST", -1, 0, 1 << 16, params=HostParams, cost=0.0)
"""The op of every host function; it has no number in native code."""


def host_call(function: HostFunction, dtype: DType, ne: Sequence[Size], *sources: Tensor) -> Tensor:
    """The node of a host function of contiguous tensors. Raises GraphError for other tensors."""
    for t in sources:
        require(t.is_contiguous, "HOST", f"{function.name} reads contiguous tensors", t)
    return make_node(HOST, dtype, ne, *sources, params=HostParams(function))
