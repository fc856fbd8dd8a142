"""`Structures`: recognises a graph that was planned before when it is built again.

Two graphs are the same when their tensors agree, one by one in graph order, in everything that
plans and programs depend on: types, sizes, strides, ops, parameters, sources, names, flags, and the
kind of memory they are bound to. The arrays that they are bound to may differ: a program can be
bound to others, as long as the same tensors share them.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Iterable
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from weft.backends.memory import HostMemory
from weft.graph.graph import Graph
from weft.graph.params import pack
from weft.graph.tensor import Tensor
from weft.records import dataclass

_KEPT = 32


@dataclass(slots=True, eq=False)
class Structure:
    """A graph's tensors by number, without the graph itself, which the cache must not keep
    alive."""

    key: object
    """The same object for graphs that are the same."""
    size: tuple[int, int]
    """The numbers of nodes and leaves."""
    number: dict[Tensor, int]
    """The graph's tensors in order, then the bases outside that its leaves view."""
    tensors: list[Tensor]
    """The keys of `number`."""
    datas: list[Any]
    """The memory that the tensors are bound to, each array once."""
    has_work: bool
    """At least one node is computed."""

    def to(self, other: Structure, tensor: Tensor) -> Tensor:
        """The tensor of an equal graph in the place of one of this graph; a tensor of neither is
        returned itself."""
        number = self.number.get(tensor)
        return tensor if number is None else other.tensors[number]


class Structures:
    """The structures of the graphs that were used last."""

    def __init__(self, *, any_data: bool = True) -> None:
        """`any_data` False tells graphs apart that are bound to different memory."""
        self._any_data = any_data
        self._first: dict[Hashable, Structure] = {}
        self._seen: WeakKeyDictionary[Graph, Structure] = WeakKeyDictionary()

    def of(self, graph: Graph) -> Structure:
        """The structure of a graph, which is examined once unless it grows."""
        size = len(graph.nodes), len(graph.leaves)
        structure = self._seen.get(graph)
        if structure is None or structure.size != size:
            structure = self._seen[graph] = self._examine(graph, size)
        return structure

    def _examine(self, graph: Graph, size: tuple[int, int]) -> Structure:
        bases = (t.view_src for t in graph.tensors if t.view_src is not None)
        tensors = [*graph.tensors, *dict.fromkeys(base for base in bases if base not in graph)]
        number = {t: i for i, t in enumerate(tensors)}
        datas = _datas(tensors)
        arrays: dict[int, int] = {}
        key: Hashable = size[1], tuple([_tensor_key(t, number, arrays) for t in tensors])
        first = self._first.get(key)
        if first is not None and not self._can_share(first.datas, datas):
            key = key, tuple(map(id, datas))
            first = self._first.get(key)
        token = object() if first is None else first.key
        has_work = any(not node.op.is_view for node in graph.nodes)
        structure = Structure(token, size, number, tensors, datas, has_work)
        if first is None:
            put(self._first, key, structure)
        return structure

    def _can_share(self, known: list[Any], datas: list[Any]) -> bool:
        """Whether a program that is bound to `known` memory may be bound to `datas` instead."""
        if all(a is b for a, b in zip(known, datas, strict=True)):
            return True
        # steps are ordered by the bytes of the host that they share
        return self._any_data and _are_apart(known) and _are_apart(datas)

    def clear(self) -> None:
        """Drops all structures."""
        self._first.clear()
        self._seen.clear()


def put(cache: dict[Any, Any], key: Hashable, value: Any) -> None:
    """Adds an entry to a cache, and drops the oldest entry of a full one."""
    if len(cache) >= _KEPT:
        del cache[next(iter(cache))]
    cache[key] = value


def _tensor_key(t: Tensor, number: dict[Tensor, int], arrays: dict[int, int]) -> Hashable:
    bound: Hashable = None
    if (b := t.buffer) is not None:
        array = None if b.data is None else arrays.setdefault(id(b.data), len(arrays))
        bound = b.usage, id(b.type), b.offset, array, getattr(b.data, "nbytes", None), type(b.data)
    params: Hashable = None
    if t.params is not None:
        numbers = pack(t.params)
        params = struct.pack(f"{len(numbers)}d", *numbers)  # 0.0 and -0.0 differ
    # a source in no list is an error that `check_graph` reports
    src = tuple([None if s is None else number.get(s, id(s)) for s in t.src])
    view = None if t.view_src is None else number[t.view_src]
    return (
        t.name, t.dtype.id, t.ne, t.nb, t.op.name, type(t.params), params, src, view, t.view_offs,
        t.flags, bound,
    )  # fmt: skip


def _datas(tensors: Iterable[Tensor]) -> list[Any]:
    by_id = {id(t.buffer.data): t.buffer.data for t in tensors if t.buffer is not None}
    return [data for data in by_id.values() if data is not None]


def _are_apart(datas: Iterable[Any]) -> bool:
    """Whether no two pieces of host memory share bytes."""
    ranges = []
    for data in datas:
        host = data.host() if isinstance(data, HostMemory) else data
        if isinstance(host, np.ndarray):
            ranges.append((host.ctypes.data, host.ctypes.data + host.nbytes))
    ranges.sort()
    return all(a[1] <= b[0] for a, b in pairwise(ranges))
