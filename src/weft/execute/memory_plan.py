"""The memory of a scheduler's tensors, graph after graph; it grows when it must.

There are two planners with the same verbs. `ReferencePlanner` plans like the reference's allocator,
record by record. `BestPlanner` takes the smallest plan for each graph, in memory as big as the
biggest graph so far needed; a graph that fits the places of an earlier one, tensor by tensor, takes
those.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from weft.allocate import Allocation, Arena, GraphAllocator, Placement, allocate, validate
from weft.errors import AllocationError, DeviceError
from weft.execute.arena import ArenaPool
from weft.graph.node import describe
from weft.graph.tensor import Tensor
from weft.schedule import Schedule

__all__ = ["BestPlanner", "MemoryPlanner", "ReferencePlanner"]


_KEPT_PLANS = 32


class MemoryPlanner(Protocol):
    """Plans memory and provides it from a pool."""

    @property
    def reserves(self) -> int:
        """The number of times that memory was planned."""

    @property
    def reallocs(self) -> int:
        """The number of graphs that did not fit the reserved memory."""

    @property
    def why(self) -> str:
        """The tensor that did not fit in the last such graph, and its bytes; empty where there was
        none."""

    def reserve(self, schedule: Schedule) -> None:
        """Plans a schedule, and grows the memory to what the plan needs; raises
        OutOfMemoryError."""

    def alloc(self, schedule: Schedule, backends_changed: bool) -> Allocation:
        """The plan of a graph that will run; grows the memory if it does not fit."""

    def measure(self, schedule: Schedule) -> list[int]:
        """The bytes per backend of a graph's plan, without allocating memory."""

    def sizes(self) -> list[int]:
        """The bytes reserved per backend; 0 where an earlier backend shares the memory."""

    def also(self, schedule: Schedule) -> None:
        """Plans a schedule equal to the one reserved last, but on another copy, where `alloc` would
        have to plan it otherwise."""

    def holds(self, allocation: Allocation) -> bool:
        """Whether `alloc` may return this allocation again."""

    def forget(self) -> None:
        """Notes that the memory is gone."""

    def forget_plans(self) -> None:
        """Drops all plans; the memory stays."""


class ReferencePlanner:
    """The reference's allocator and its buffers."""

    def __init__(self, buffer_types: Sequence[Any], pool: ArenaPool) -> None:
        self._allocator = GraphAllocator(buffer_types)
        self._types = list(buffer_types)
        self._pool = pool
        self._plans: dict[int, tuple[Schedule, Allocation]] = {}
        self._planned = 0
        self.why = ""

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
        known = self._known(schedule)
        if known is not None and not backends_changed:
            return known  # an earlier `alloc` fitted it into the last plan
        planned = self._allocator.alloc(schedule, backends_changed=backends_changed)
        if planned:
            changed = "the nodes or leaves of the graph are on other devices than those before"
            self.why = changed if backends_changed else self._allocator.why
        elif None in self._allocator.buffers:
            # `measure` or a failure dropped buffers, while the records of their plan stayed
            self._allocator.reserve(schedule)
        self._provide(schedule)
        allocation = self._allocation(schedule)
        self._known(schedule)  # drops allocations of the plan before
        _keep(self._plans, schedule, allocation)
        return allocation

    def _known(self, schedule: Schedule) -> Allocation | None:
        """The allocation of a schedule under the last plan, in memory that exists; else None."""
        if self._planned != self._allocator.reserves or None in self._allocator.buffers:
            self._plans.clear()
            self._planned = self._allocator.reserves
        entry = self._plans.get(id(schedule))
        return None if entry is None else entry[1]

    def measure(self, schedule: Schedule) -> list[int]:
        sizes = self._allocator.measure(schedule)
        for i, chunks in enumerate(self._allocator.buffers):
            if chunks is None:
                self._pool.drop(self._types[i])
        return sizes

    def sizes(self) -> list[int]:
        return self._allocator.sizes

    def also(self, schedule: Schedule) -> None:
        pass  # every graph that fits takes the records of the last plan

    def holds(self, allocation: Allocation) -> bool:
        return any(known is allocation for _, known in self._plans.values())

    def forget(self) -> None:
        self._allocator.buffers = [None] * len(self._types)

    def forget_plans(self) -> None:
        self._plans.clear()

    def _provide(self, schedule: Schedule) -> None:
        """Allocates memory for the allocator's buffers."""
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
    """The smallest plan of each graph; plans of recent schedules are kept."""

    def __init__(self, buffer_types: Sequence[Any], pool: ArenaPool) -> None:
        self._types = list(buffer_types)
        self._pool = pool
        self._plans: dict[int, tuple[Schedule, Allocation]] = {}
        # the last plan for each pair of lengths of the plan lists
        self._latest: dict[tuple[int, int], tuple[Schedule, Allocation]] = {}
        self.reserves = 0
        self.reallocs = 0
        self.why = ""

    def reserve(self, schedule: Schedule) -> None:
        self._provide(schedule, self._plan(schedule))

    def alloc(self, schedule: Schedule, backends_changed: bool) -> Allocation:
        plan = self._plan(schedule)
        missing = self._provide(schedule, plan)
        if missing:
            self.reallocs += 1
            self.why = missing
        return plan

    def measure(self, schedule: Schedule) -> list[int]:
        plan = self._planned(schedule)
        return [plan.arenas[a].size for a in plan.arena_of]

    def sizes(self) -> list[int]:
        counted: set[int] = set()
        sizes = []
        for buffer_type in self._types:
            shared = id(buffer_type) in counted
            sizes.append(0 if shared else sum(self._pool.sizes(buffer_type) or ()))
            counted.add(id(buffer_type))
        return sizes

    def also(self, schedule: Schedule) -> None:
        self.reserve(schedule)

    def holds(self, allocation: Allocation) -> bool:
        return any(known is allocation for _, known in self._plans.values())

    def forget(self) -> None:
        self.forget_plans()

    def forget_plans(self) -> None:
        self._plans.clear()
        self._latest.clear()

    def _plan(self, schedule: Schedule) -> Allocation:
        entry = self._plans.get(id(schedule))
        if entry is not None:
            return entry[1]
        lengths = len(schedule.plan_nodes), len(schedule.plan_leaves)
        like = self._latest.get(lengths)
        plan = None if like is None else same_places(schedule, *like)
        if plan is None:
            plan = self._planned(schedule)
            self._latest[lengths] = schedule, plan
        _keep(self._plans, schedule, plan)
        return plan

    def _planned(self, schedule: Schedule) -> Allocation:
        self.reserves += 1
        return allocate(schedule, "best")

    def _provide(self, schedule: Schedule, plan: Allocation) -> str:
        """Grows blocks that are too small; returns the first tensor that had no room, as text."""
        missing = ""
        for arena in plan.arenas:
            have = self._pool.sizes(arena.buffer_type) or []
            need = list(arena.chunks)
            if len(need) <= len(have) and all(n <= h for n, h in zip(need, have, strict=False)):
                continue
            missing = missing or _first_outside(schedule, plan, arena, have)
            longest = max(len(need), len(have))
            need += [0] * (longest - len(need))
            have = have + [0] * (longest - len(have))
            sizes = [max(n, h) for n, h in zip(need, have, strict=True)]
            try:
                self._pool.replace(arena.buffer_type, sizes)
            except DeviceError as error:
                raise _named(error, schedule, arena.buffer_type) from error
        return missing


def same_places(schedule: Schedule, earlier: Schedule, plan: Allocation) -> Allocation | None:
    """`plan` of `earlier` for another schedule: each tensor takes the place of that at its
    position.

    None where that is no legal plan, because a tensor is larger or needed for longer."""
    place: dict[Tensor, Placement] = {}
    pairs = [
        *zip(schedule.plan_leaves, earlier.plan_leaves, strict=True),
        *zip(schedule.plan_nodes, earlier.plan_nodes, strict=True),
    ]
    for tensor, other in pairs:
        at = plan.place.get(other)
        if tensor.view_src is not None or tensor.buffer is not None:
            continue
        if at is None:
            return None
        size = plan.arenas[at.arena].buffer_type.alloc_size(tensor)
        if size > at.size:
            return None
        place.setdefault(tensor, Placement(at.arena, at.chunk, at.offset, size))
    allocation = Allocation(plan.arenas, place, plan.arena_of)
    try:
        validate(schedule, allocation)
    except AllocationError:
        return None
    return allocation


def _keep(
    plans: dict[int, tuple[Schedule, Allocation]], schedule: Schedule, plan: Allocation
) -> None:
    if len(plans) >= _KEPT_PLANS:
        del plans[next(iter(plans))]
    plans[id(schedule)] = schedule, plan


def _first_outside(schedule: Schedule, plan: Allocation, arena: Arena, have: Sequence[int]) -> str:
    """The first tensor in graph order for which the memory of an arena has no room, as text."""
    name = arena.buffer_type.name
    for tensor in (*schedule.plan_leaves, *schedule.plan_nodes):
        at = plan.place.get(tensor)
        if at is None or plan.arenas[at.arena] is not arena:
            continue
        room = have[at.chunk] if at.chunk < len(have) else 0
        if at.offset + at.size > room:
            return (
                f"{describe(tensor)} with its {at.size} bytes ends at byte {at.offset + at.size} "
                f"of {name} memory, but {room} were reserved"
            )
    return f"{name} memory needs {arena.size} bytes, but {sum(have)} were reserved"


def _named(error: DeviceError, schedule: Schedule, buffer_type: Any) -> DeviceError:
    """The same error with the first split and nodes that need the memory in its text."""
    for number, split in enumerate(schedule.splits):
        backend = schedule.backends[split.backend]
        nodes = [node for node in split.nodes if not node.op.is_view]
        if backend.buffer_type is buffer_type and nodes:
            where = f"split {number} on {backend.name} (nodes {nodes[0].name} .. {nodes[-1].name})"
            return type(error)(f"{where}: {error}")
    return error


def _arenas(buffer_types: Sequence[Any]) -> tuple[list[int], list[Any]]:
    """The arena of each backend, and the buffer type of each arena: one arena for each type."""
    types: list[Any] = []
    arena_of = []
    for buffer_type in buffer_types:
        index = next((i for i, t in enumerate(types) if t is buffer_type), len(types))
        if index == len(types):
            types.append(buffer_type)
        arena_of.append(index)
    return arena_of, types
