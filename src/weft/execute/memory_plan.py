"""Where a scheduler's tensors live, graph after graph, in memory that grows when it must.

Two planners with the same verbs. `like the reference`: its allocator, record by record. `best`: the
smallest plan for each graph, in memory as big as the biggest graph so far needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from weft.allocate import Allocation, Arena, GraphAllocator, Placement, allocate
from weft.errors import DeviceError
from weft.execute.arena import ArenaPool
from weft.graph.tensor import Tensor
from weft.schedule import Schedule

__all__ = ["BestPlanner", "MemoryPlanner", "ReferencePlanner"]


_KEPT_PLANS = 32


class MemoryPlanner(Protocol):
    """Plans memory and provides it from a pool."""

    @property
    def reserves(self) -> int:
        """How often memory was planned."""

    @property
    def reallocs(self) -> int:
        """How often a graph did not fit what was reserved."""

    def reserve(self, schedule: Schedule) -> None:
        """Plans, and grows the memory to what the plan needs; raises OutOfMemoryError."""

    def alloc(self, schedule: Schedule, backends_changed: bool) -> Allocation:
        """The plan of a graph that will run; grows the memory if it does not fit."""

    def measure(self, schedule: Schedule) -> list[int]:
        """Bytes per backend that the plan of a graph has, without memory."""

    def sizes(self) -> list[int]:
        """Bytes per backend that are reserved; 0 where an earlier backend shares the memory."""

    def forget(self) -> None:
        """The memory is gone."""


class ReferencePlanner:
    """The reference's allocator and its buffers."""

    def __init__(self, buffer_types: Sequence[Any], pool: ArenaPool) -> None:
        self._allocator = GraphAllocator(buffer_types)
        self._types = list(buffer_types)
        self._pool = pool
        self._plans: dict[int, tuple[Schedule, Allocation, int]] = {}

    @property
    def reserves(self) -> int:
        return self._allocator.reserves

    @property
    def reallocs(self) -> int:
        return self._allocator.reallocs

    def reserve(self, schedule: Schedule) -> None:
        self._allocator.reserve(schedule)
        self._provide(schedule)

    def alloc(self, schedule: Schedule, backends_changed: bool) -> Allocation:
        planned = self._allocator.alloc(schedule, backends_changed=backends_changed)
        if not planned and None in self._allocator.buffers:
            # `measure` or a failure gave buffers up, while the records of their plan stayed
            self._allocator.reserve(schedule)
        self._provide(schedule)
        return self._allocation(schedule)

    def measure(self, schedule: Schedule) -> list[int]:
        sizes = self._allocator.measure(schedule)
        for i, chunks in enumerate(self._allocator.buffers):
            if chunks is None:
                self._pool.drop(self._types[i])
        return sizes

    def sizes(self) -> list[int]:
        return self._allocator.sizes

    def forget(self) -> None:
        self._allocator.buffers = [None] * len(self._types)

    def _provide(self, schedule: Schedule) -> None:
        """Real memory for the allocator's buffers."""
        for i, chunks in enumerate(self._allocator.buffers):
            if chunks is None or chunks == (self._pool.sizes(self._types[i]) or []):
                continue
            try:
                self._pool.replace(self._types[i], chunks)
            except DeviceError as error:
                self.forget()
                raise _named(error, schedule, self._types[i]) from error

    def _allocation(self, schedule: Schedule) -> Allocation:
        """The records of the last plan, applied entry by entry to the lists of this graph."""
        arena_of, types = _arenas(self._types)
        place: dict[Tensor, Placement] = {}
        records = self._allocator.records

        def put(tensor: Tensor, record: tuple[int, int, int, int] | None) -> None:
            if record is None or tensor.view_src is not None or tensor.buffer is not None:
                return
            backend, chunk, offset, size = record
            place.setdefault(tensor, Placement(arena_of[backend], chunk, offset, size))

        for leaf, record in zip(schedule.plan_leaves, records.leaves, strict=True):
            put(leaf, record)
        rows = zip(schedule.plan_nodes, records.nodes, records.sources, strict=True)
        for node, record, sources in rows:
            for src, known in zip(node.src, sources, strict=False):
                if src is not None:
                    put(src, known)
            put(node, record)
        arenas = []
        for arena, buffer_type in enumerate(types):
            chunks = self._allocator.buffers[arena_of.index(arena)] or ()
            arenas.append(Arena(buffer_type, tuple(chunks), 0, "ggml"))
        return Allocation(tuple(arenas), place, tuple(arena_of))


class BestPlanner:
    """The smallest plan of each graph; plans of schedules seen lately are kept."""

    def __init__(self, buffer_types: Sequence[Any], pool: ArenaPool) -> None:
        self._types = list(buffer_types)
        self._pool = pool
        self._plans: dict[int, tuple[Schedule, Allocation]] = {}
        self.reserves = 0
        self.reallocs = 0

    def reserve(self, schedule: Schedule) -> None:
        self._provide(schedule, self._plan(schedule))

    def alloc(self, schedule: Schedule, backends_changed: bool) -> Allocation:
        plan = self._plan(schedule)
        if self._provide(schedule, plan):
            self.reallocs += 1
        return plan

    def measure(self, schedule: Schedule) -> list[int]:
        plan = self._plan(schedule)
        return [plan.arenas[a].size for a in plan.arena_of]

    def sizes(self) -> list[int]:
        seen: set[int] = set()
        sizes = []
        for buffer_type in self._types:
            shared = id(buffer_type) in seen
            sizes.append(0 if shared else sum(self._pool.sizes(buffer_type) or ()))
            seen.add(id(buffer_type))
        return sizes

    def forget(self) -> None:
        self._plans.clear()

    def _plan(self, schedule: Schedule) -> Allocation:
        found = self._plans.get(id(schedule))
        if found is None:
            self.reserves += 1
            if len(self._plans) >= _KEPT_PLANS:
                del self._plans[next(iter(self._plans))]
            found = self._plans[id(schedule)] = (schedule, allocate(schedule, "best"))
        return found[1]

    def _provide(self, schedule: Schedule, plan: Allocation) -> bool:
        """Grows blocks that are too small; whether there were any."""
        grown = False
        for arena in plan.arenas:
            have = self._pool.sizes(arena.buffer_type) or []
            need = list(arena.chunks)
            if len(need) <= len(have) and all(n <= h for n, h in zip(need, have, strict=False)):
                continue
            grown = True
            longest = max(len(need), len(have))
            need += [0] * (longest - len(need))
            have = have + [0] * (longest - len(have))
            sizes = [max(n, h) for n, h in zip(need, have, strict=True)]
            try:
                self._pool.replace(arena.buffer_type, sizes)
            except DeviceError as error:
                raise _named(error, schedule, arena.buffer_type) from error
        return grown


def _named(error: DeviceError, schedule: Schedule, buffer_type: Any) -> DeviceError:
    """The same error with the first split and nodes that need the memory."""
    for number, split in enumerate(schedule.splits):
        backend = schedule.backends[split.backend]
        nodes = [node for node in split.nodes if not node.op.is_view]
        if backend.buffer_type is buffer_type and nodes:
            where = f"split {number} on {backend.name} (nodes {nodes[0].name} .. {nodes[-1].name})"
            return type(error)(f"{where}: {error}")
    return error


def _arenas(buffer_types: Sequence[Any]) -> tuple[list[int], list[Any]]:
    """Per backend its arena, and per arena its buffer type: one for each type."""
    types: list[Any] = []
    arena_of = []
    for buffer_type in buffer_types:
        index = next((i for i, t in enumerate(types) if t is buffer_type), len(types))
        if index == len(types):
            types.append(buffer_type)
        arena_of.append(index)
    return arena_of, types
