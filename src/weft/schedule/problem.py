"""A placement problem in numbers, which the search reads instead of graph and devices.

A *value* is a tensor that some node reads (views are values of their own: each is copied by
itself). It is in one memory, a *place*, which its base decides. A device that cannot read that
place makes one copy, which later nodes of the device use. A node costs its time, the copies that it
needs first, and the start of a split where pass 5 would begin one.

`free` leaves (weights and caches that have no home yet) get the place of the first device that uses
them; `Problem.sizes` are the bytes they take there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from weft.errors import UnsupportedOpError
from weft.graph.node import describe
from weft.graph.tensor import Tensor
from weft.schedule.timing import TimeModel

FREE = -1
"""The place of a free leaf that nothing has used."""


class Problem:
    """The nodes of a graph that do work, numbered in order, and the values that they read."""

    def __init__(self, model: TimeModel, free: Collection[Tensor] = ()) -> None:
        """Raises UnsupportedOpError where no device can run a node."""
        devices = model.devices
        self.n_devices = devices.n
        self.nodes: list[Tensor] = [n for n in model.graph.nodes if not n.op.is_view]
        """The nodes that do work."""
        number = {node: i for i, node in enumerate(self.nodes)}
        self._model = model
        self._free = set(free)
        self._types: list[Any] = []
        self.home = [self._place(t) for t in devices.buffer_types]
        """Per device, the place where its results are."""
        self.values: list[Tensor] = []
        """The tensors that nodes read."""
        self.start_place: list[int] = []
        """Per value, its place before the run; FREE for results."""
        self.is_weight: list[bool] = []
        self.sizes: list[int] = []
        """Per value that is a free leaf or a view of one, the bytes of the leaf; else 0."""
        self.group: list[list[int]] = []
        """Per value that is a free leaf or a view of one, all values of that leaf; else empty."""
        self.reads: list[tuple[int, ...]] = []
        """Per node, the values it reads."""
        self.writes: list[tuple[int, ...]] = []
        """Per node, the values that are its result or views of it."""
        self.follows: list[int] = []
        """Per node, a value whose place the node's device must be able to use, because it computes
        there; -1: none."""
        self.last_read: list[int] = []
        """Per value, the last node that reads it."""
        self._read_values(number)
        self.allowed = [self._allowed(node) for node in self.nodes]
        """Per node, the devices that can run it."""
        self.time = [[model.node(n, b) for b in range(devices.n)] for n in self.nodes]
        """Seconds, per node and device."""
        self.start = [model.start(b) for b in range(devices.n)]
        n_places = len(self._types)
        self.readable = [
            [devices.supports_buffer_type(b, t) for b in range(devices.n)] for t in self._types
        ]
        """[place][device]: whether the device reads there."""
        self._copy: dict[tuple[int, int, int], float] = {}
        self.memory = [model.memory_of(t) for t in self._types]
        """Per place, the profile's name of the memory."""
        assert len(self.memory) == n_places

    def copy(self, value: int, place: int, b: int) -> float:
        """Seconds to copy a value from a place to device `b`."""
        key = (value, place, b)
        seconds = self._copy.get(key)
        if seconds is None:
            seconds = self._copy[key] = self._model.copy(self.values[value], self._types[place], b)
        return seconds

    def _place(self, buffer_type: Any) -> int:
        for i, existing in enumerate(self._types):
            if existing is buffer_type:
                return i
        self._types.append(buffer_type)
        return len(self._types) - 1

    def _read_values(self, number: dict[Tensor, int]) -> None:
        value_of: dict[Tensor, int] = {}
        results: dict[int, list[int]] = {}
        groups: dict[Tensor, list[int]] = {}
        for i, node in enumerate(self.nodes):
            reads: list[int] = []
            for src in node.src:
                if src is None or src is node:
                    continue
                v = value_of.get(src)
                if v is None:
                    v = value_of[src] = self._add(src, i, number, results, groups)
                self.last_read[v] = i
                if v not in reads:
                    reads.append(v)
            self.reads.append(tuple(reads))
        for i, node in enumerate(self.nodes):
            base = node.view_src
            follows = -1
            if base is not None and (base in self._free or base.buffer is None):
                if base not in value_of:
                    value_of[base] = self._add(base, i, number, results, groups)
                follows = value_of[base]
                self.last_read[follows] = max(self.last_read[follows], i)
            self.follows.append(follows)
        self.writes = [tuple(results.get(i, ())) for i in range(len(self.nodes))]

    def _add(
        self,
        value: Tensor,
        reader: int,
        number: dict[Tensor, int],
        results: dict[int, list[int]],
        groups: dict[Tensor, list[int]],
    ) -> int:
        devices = self._model.devices
        v = len(self.values)
        base = value if value.view_src is None else value.view_src
        self.values.append(value)
        self.last_read.append(reader)
        self.is_weight.append(value.buffer is not None and value.buffer.usage == "weights")
        self.group.append([])
        self.sizes.append(0)
        place = FREE
        if base in self._free:
            self.group[v] = groups.setdefault(base, [])
            self.group[v].append(v)
            self.sizes[v] = base.max_bytes
            place = self.start_place[self.group[v][0]] if len(self.group[v]) > 1 else FREE
        elif (own := devices.type_of(value)) is not None:
            place = self._place(own)
        elif value in number:
            results.setdefault(number[value], []).append(v)
        elif base in number:
            results.setdefault(number[base], []).append(v)
        elif "input" in base.flags:
            place = self.home[devices.last]
        self.start_place.append(place)
        return v

    def _allowed(self, node: Tensor) -> tuple[int, ...]:
        devices = self._model.devices
        own = None
        base = node if node.view_src is None else node.view_src
        if base not in self._free:
            own = devices.type_of(node)
        runners = tuple(
            b
            for b in range(devices.n)
            if devices.supports_op(b, node)
            and (own is None or devices.supports_buffer_type(b, own))
        )
        if not runners:
            refusals = "; ".join(
                f"{devices.backends[b].name}: "
                f"{devices.refusals.get((node, b), 'cannot use its memory')}"
                for b in range(devices.n)
            )
            raise UnsupportedOpError(f"no device runs {node.op.name} {describe(node)}: {refusals}")
        return runners

    def evaluate(self, where: Iterable[int]) -> float:
        """The seconds of a placement, which has a device for each node."""
        return self.simulate(list(where))[0]

    def simulate(self, where: list[int]) -> tuple[float, list[int]]:
        """The seconds of a placement, and the place of each value at its end.

        The seconds are infinite where a device cannot use a node's memory."""
        place = list(self.start_place)
        copied = [0] * len(place)
        total = 0.0
        current, has_inputs = -1, False
        readable, home = self.readable, self.home
        for i, b in enumerate(where):
            total += self.time[i][b]
            follows = self.follows[i]
            if follows >= 0 and place[follows] == FREE:
                self._settle(follows, home[b], place)
            if follows >= 0 and not readable[place[follows]][b]:
                return float("inf"), place
            new_split = b != current
            missing = []
            for v in self.reads[i]:
                if place[v] == FREE:
                    self._settle(v, home[b], place)
                if not readable[place[v]][b]:
                    new_split = new_split or (has_inputs and self.is_weight[v])
                    if not copied[v] >> b & 1:
                        missing.append(v)
            if new_split:
                total += self.start[b]
                current, has_inputs = b, False
            for v in missing:
                total += self.copy(v, place[v], b)
                copied[v] |= 1 << b
                has_inputs = True
            for v in self.writes[i]:
                place[v] = home[b]
        return total, place

    def _settle(self, v: int, where: int, place: list[int]) -> None:
        for sibling in self.group[v] or (v,):
            place[sibling] = where

    def used(self, place: Iterable[int]) -> dict[str, int]:
        """Memory -> bytes of free leaves, where each value is at its `place`."""
        totals: dict[str, int] = {}
        for v, p in enumerate(place):
            if self.sizes[v] and self.group[v][0] == v and p != FREE:
                totals[self.memory[p]] = totals.get(self.memory[p], 0) + self.sizes[v]
        return totals
