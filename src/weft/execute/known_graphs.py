"""`KnownGraphs`: graphs that were planned before, recognised when the same graph is built again.

Two graphs are the same when their tensors agree, one by one in graph order, in everything that
plans and programs depend on: types, sizes, strides, ops, parameters, sources, names, flags, and the
kind of memory they are bound to. The arrays that they are bound to may differ: a program can be
bound to others, as long as the same tensors share them.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Iterable
from dataclasses import field, replace
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from weft.backends.memory import HostMemory
from weft.graph.graph import Graph
from weft.graph.params import pack
from weft.graph.tensor import Tensor
from weft.records import dataclass
from weft.schedule import Schedule

__all__ = ["KnownGraph", "KnownGraphs", "Match"]

_KEPT = 32


@dataclass(slots=True, eq=False)
class KnownGraph:
    """A graph that plans exist for."""

    graph: Graph
    tensors: list[Tensor]
    """Its tensors in order, then the bases outside that its leaves view."""
    datas: list[Any]
    """The memory that they are bound to, each array once."""
    has_work: bool
    """At least one of its nodes is computed."""


@dataclass(slots=True, eq=False)
class Match:
    """A graph of the user, and the known graph that equals it (itself, if it is new)."""

    graph: Graph
    known: KnownGraph
    tensors: list[Tensor]
    """The tensors of `graph`, in the order of `known.tensors`."""
    datas: list[Any]
    """The memory that `graph` is bound to, in the order of `known.datas`."""
    _to_known: dict[Tensor, Tensor] = field(default_factory=dict)
    _from_known: dict[Tensor, Tensor] = field(default_factory=dict)

    @property
    def is_known(self) -> bool:
        """Whether both graphs are one object."""
        return self.graph is self.known.graph

    @property
    def has_other_data(self) -> bool:
        """Whether the user's graph is bound to other memory than the known graph."""
        mine, others = self.datas, self.known.datas
        return mine is not others and any(a is not b for a, b in zip(mine, others, strict=True))

    def to_known(self, tensor: Tensor) -> Tensor:
        """The known graph's tensor for one of the user's graph; any other tensor is returned
        itself."""
        if not self.is_known and not self._to_known:
            self._to_known.update(zip(self.tensors, self.known.tensors, strict=True))
        return self._to_known.get(tensor, tensor)

    def from_known(self, tensor: Tensor) -> Tensor:
        """The user's tensor for one of the known graph; any other tensor is returned itself."""
        if not self.is_known and not self._from_known:
            self._from_known.update(zip(self.known.tensors, self.tensors, strict=True))
        return self._from_known.get(tensor, tensor)

    def retold(self, schedule: Schedule) -> Schedule:
        """The schedule of the known graph, which also answers for the tensors of the user's
        graph."""
        if self.is_known:
            return schedule
        return replace(
            schedule,
            graph=self.graph,
            backend_of=self._and_mine(schedule.backend_of),
            cause_of=self._and_mine(schedule.cause_of),
            notes=self._and_mine(schedule.notes),
            splits=[
                replace(s, inputs=[self.from_known(t) for t in s.inputs]) for s in schedule.splits
            ],
            final=self._and_mine({t: schedule.final_of(t) for t in self.known.tensors}),
            refusals=schedule.refusals
            | {(self.from_known(t), b): why for (t, b), why in schedule.refusals.items()},
        )

    def _and_mine(self, table: dict[Tensor, Any]) -> dict[Tensor, Any]:
        return table | {self.from_known(t): value for t, value in table.items()}


class KnownGraphs:
    """The graphs that were used last."""

    def __init__(self, *, by_structure: bool = True, any_data: bool = True) -> None:
        """`by_structure` False takes only the same object for the same graph. `any_data` False
        takes graphs that are bound to other memory for other graphs."""
        self._by_structure = by_structure
        self._any_data = any_data
        self._known: dict[Hashable, KnownGraph] = {}
        # without the graph itself, which would keep the entry alive
        self._signatures: WeakKeyDictionary[Graph, _Signature] = WeakKeyDictionary()

    def match(self, graph: Graph) -> Match:
        """The known graph that equals `graph`; a new graph is known from then on.

        A graph that was examined before is not examined again unless it has grown."""
        size = len(graph.nodes), len(graph.leaves)
        signature = self._signatures.get(graph)
        if signature is None or signature.size != size or signature.key not in self._known:
            signature = self._signatures[graph] = self._look_at(graph, size)
        known = self._known.get(signature.key)
        if known is None:
            known = KnownGraph(graph, signature.tensors, signature.datas, _has_work(graph))
            if len(self._known) >= _KEPT:
                del self._known[next(iter(self._known))]
            self._known[signature.key] = known
        return Match(graph, known, signature.tensors, signature.datas)

    def _look_at(self, graph: Graph, size: tuple[int, int]) -> _Signature:
        tensors = [*graph.tensors, *_bases_outside(graph)]
        datas = _datas(tensors)
        if not self._by_structure:
            return _Signature(size, (id(graph), size), tensors, datas)
        key = _key(graph, tensors)
        known = self._known.get(key)
        if known is not None and not self._can_share(known.datas, datas):
            key = key, tuple(map(id, datas))
        return _Signature(size, key, tensors, datas)

    def _can_share(self, known: list[Any], datas: list[Any]) -> bool:
        """Whether a program that is bound to `known` memory may be bound to `datas` instead."""
        if all(a is b for a, b in zip(known, datas, strict=True)):
            return True
        # steps are ordered by the bytes of the host that they share
        return self._any_data and _are_apart(known) and _are_apart(datas)

    def clear(self) -> None:
        """Drops all graphs."""
        self._known.clear()
        self._signatures.clear()


@dataclass(slots=True, eq=False)
class _Signature:
    """The comparison key and the memory of a graph."""

    size: tuple[int, int]
    key: Hashable
    tensors: list[Tensor]
    datas: list[Any]


def _has_work(graph: Graph) -> bool:
    return any(not node.op.is_view for node in graph.nodes)


def _bases_outside(graph: Graph) -> list[Tensor]:
    bases = (t.view_src for t in graph.tensors if t.view_src is not None)
    return list(dict.fromkeys(base for base in bases if base not in graph))


def _key(graph: Graph, tensors: list[Tensor]) -> Hashable:
    number = {t: i for i, t in enumerate(tensors)}
    arrays: dict[int, int] = {}
    return len(graph.leaves), tuple([_tensor_key(t, number, arrays) for t in tensors])


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
