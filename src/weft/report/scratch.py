"""The kernels' scratch at other sizes: tables of bytes by the largest values of symbols."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from weft.backends.base import Backend
from weft.graph.op import NONE
from weft.graph.size import Size, symbols
from weft.graph.tensor import Ne, Tensor
from weft.report.formulas import Ranges, upper_at
from weft.schedule import Schedule

_Key = tuple[Any, ...]


class Scratch:
    """Computes the scratch of nodes at other sizes; each node of a kind is asked once."""

    def __init__(self) -> None:
        self._known: dict[_Key, int] = {}

    def tables(self, schedule: Schedule, positions: Iterable[Ranges]) -> list[dict[str, Any]]:
        """For each set of symbols that some nodes' sizes depend on: `symbols`, and `bytes` by the
        largest values of these, joined by commas. The scratch of the graph is the largest of all
        tables' bytes."""
        groups: dict[tuple[str, ...], dict[_Key, tuple[Backend, Tensor]]] = {}
        for split in schedule.splits:
            backend = schedule.backends[split.backend]
            for node in split.nodes:
                if node.op.is_view or node.op is NONE:
                    continue
                names = {s.name for size in _sizes(node) for s in symbols(size)}
                kinds = groups.setdefault(tuple(sorted(names)), {})
                kinds.setdefault(_kind(split.backend, node), (backend, node))
        places = list(positions)
        tables = []
        for symbols_of, kinds in groups.items():
            table: dict[tuple[int, ...], int] = {}
            for ranges in places:
                values = tuple(ranges[name][1] for name in symbols_of)
                if values not in table:
                    most = (self._bytes(key, values, n, ranges) for key, n in kinds.items())
                    table[values] = max(most, default=0)
            tables.append(_shorter(list(symbols_of), table))
        return [t for t in tables if any(t["bytes"].values())]

    def _bytes(
        self, key: _Key, values: tuple[int, ...], node: tuple[Backend, Tensor], ranges: Ranges
    ) -> int:
        known = self._known.get((key, values))
        if known is None:
            backend, tensor = node
            known = backend.work_bytes(_sized(tensor, lambda size: upper_at(size, ranges)))
            self._known[key, values] = known
        return known


def _shorter(names: list[str], table: dict[tuple[int, ...], int]) -> dict[str, Any]:
    """A table without the symbols that make no difference."""
    for name in list(names):
        at = names.index(name)
        without: dict[tuple[int, ...], int] = {}
        if all(
            without.setdefault(values[:at] + values[at + 1 :], n) == n
            for values, n in table.items()
        ):
            names.remove(name)
            table = without
    return {"symbols": names, "bytes": {",".join(map(str, v)): n for v, n in table.items()}}


def _sizes(node: Tensor) -> Iterable[Size]:
    for tensor in (node, *node.src):
        if tensor is not None:
            yield from tensor.ne
            yield from tensor.nb


def _kind(backend: int, node: Tensor) -> _Key:
    tensors = (None if t is None else (t.dtype.name, t.ne, t.nb) for t in (node, *node.src))
    return (backend, node.op.number, repr(node.params), *tensors)


def _sized(node: Tensor, value: Callable[[Size], int]) -> Tensor:
    """A copy of a node and its sources with sizes that are numbers."""

    def numbers(sizes: Ne) -> Ne:
        a, b, c, d = (value(size) for size in sizes)
        return a, b, c, d

    def copy(t: Tensor, src: Sequence[Tensor | None] = ()) -> Tensor:
        return Tensor(
            t.dtype, numbers(t.ne), nb=numbers(t.nb), name=t.name, op=t.op, params=t.params,
            src=tuple(src), flags=t.flags, buffer=t.buffer,
        )  # fmt: skip

    return copy(node, [None if s is None else copy(s) for s in node.src])
