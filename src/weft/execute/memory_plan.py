"""The memory of a scheduler's tensors, graph after graph; it grows when it must.

There are two planners with the same verbs. `ReferencePlanner` plans like the reference's allocator,
record by record. `BestPlanner` takes the smallest plan for each graph, in memory as big as the
biggest graph so far needed; a graph that fits the places of an earlier one, tensor by tensor, takes
those.

    reserve   plans a graph (given with its equals on other copies of the inputs), grows the memory
    alloc     plans a graph that will run, if it needs a plan; grows the memory if it does not fit
    measure   plans a graph and returns its bytes per backend, without allocating memory
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from itertools import zip_longest
from typing import Any, TypeAlias

from weft.allocate import Allocation, Arena, GraphAllocator, Placement, allocate, validate
from weft.errors import AllocationError, DeviceError
from weft.execute.arena import ArenaPool
from weft.execute.known_graphs import Structure
from weft.execute.split_access import SplitAccess
from weft.graph.node import describe
from weft.graph.tensor import Tensor
from weft.program import Program
from weft.records import dataclass
from weft.schedule import Schedule


@dataclass(slots=True)
class SchedulerCounters:
    """The work of a scheduler in numbers, by which a test can see that nothing was repeated."""

    graphs: int = 0
    """Graphs that were allocated."""
    placed: int = 0
    """The number of times that a graph was placed and cut into splits."""
    reserves: int = 0
    """The number of times that memory was planned."""
    reallocs: int = 0
    """The number of graphs that did not fit the reserved memory."""
    lowered: int = 0
    """The number of programs."""
    bound: int = 0
    """The number of times that a program was bound to memory and its kernels prepared."""
    why: str = ""
    """The tensor that did not fit at the last reallocation, with its bytes before and after."""


PlacementKey = tuple[object, tuple[tuple[int, int], ...], int, int, bool]
"""The conditions of a placement: `Structure.key`, pins (numbers of tensors and their backends), the
copy of the inputs, the first backend of a graph without work, and whether a callback sees nodes."""


@dataclass(slots=True, eq=False)
class PlannedGraph:
    """A graph that is placed, and what follows from that, each worked out when it is needed."""

    structure: Structure
    key: PlacementKey
    schedule: Schedule
    allocation: Allocation | None = None
    plan_number: int = 0
    """The planner's `plan_number` when `allocation` was made."""
    program: Program | None = None
    index: dict[Tensor, int] = field(default_factory=dict)
    """The program's tensor for each tensor of the graph that has memory."""
    bound: dict[tuple[int, ...], SplitAccess] = field(default_factory=dict)
    """The program over memory, by the ids of the arrays that it is bound to."""

    def drop_allocation(self) -> None:
        """Drops the memory plan and the program that follows from it."""
        self.allocation = self.program = None
        self.bound.clear()


class _Planner:
    """Counts plans, and makes the blocks of a pool as large as they need."""

    def __init__(self, buffer_types: Sequence[Any], pool: ArenaPool) -> None:
        self.counters = SchedulerCounters()
        self.plan_number = 0
        """Allocations with another number are not valid any more."""
        self.pool = pool
        self._types = list(buffer_types)

    def forget(self) -> None:
        """Drops plans that later graphs could take over."""

    def sizes(self) -> list[int]:
        """The bytes reserved per backend; 0 where an earlier backend shares the memory."""
        bytes_of = {id(t): sum(self.pool.sizes(t) or ()) for t in self._types}
        return [bytes_of.pop(id(t), 0) for t in self._types]

    def _provide(self, schedule: Schedule, buffer_type: Any, sizes: list[int]) -> None:
        """Makes the blocks of a buffer type exactly as large as `sizes`."""
        if sizes == (self.pool.sizes(buffer_type) or []):
            return
        try:
            self.pool.replace(buffer_type, sizes)
        except DeviceError as error:
            raise _named(error, schedule, buffer_type) from error


class ReferencePlanner(_Planner):
    """The reference's allocator and its buffers: its last plan is for every graph that fits it."""

    def __init__(self, buffer_types: Sequence[Any], pool: ArenaPool) -> None:
        super().__init__(buffer_types, pool)
        self._allocator = GraphAllocator(buffer_types)

    def reserve(self, graphs: Sequence[PlannedGraph]) -> None:
        schedule = graphs[0].schedule
        self._allocator.reserve(schedule)
        self._fill(schedule)

    def alloc(self, graph: PlannedGraph, backends_changed: bool) -> None:
        allocator, schedule = self._allocator, graph.schedule
        if backends_changed or graph.allocation is None or graph.plan_number != self.plan_number:
            if allocator.alloc(schedule, backends_changed=backends_changed):
                changed = "the nodes or leaves of the graph are on other devices than those before"
                self.counters.why = changed if backends_changed else allocator.why
            elif None in allocator.buffers:
                # `measure` dropped buffers, while the records of their plan stayed
                allocator.reserve(schedule)
            graph.drop_allocation()
        self._fill(schedule)
        if graph.allocation is None:
            graph.allocation = allocator.allocation(schedule)
            graph.plan_number = self.plan_number

    def measure(self, schedule: Schedule) -> list[int]:
        sizes = self._allocator.measure(schedule)
        for buffer_type, chunks in zip(self._types, self._allocator.buffers, strict=True):
            if chunks is None:
                self.pool.drop(buffer_type)
        self._count()
        return sizes

    def _fill(self, schedule: Schedule) -> None:
        """Allocates memory for the allocator's buffers."""
        self._count()
        for buffer_type, chunks in zip(self._types, self._allocator.buffers, strict=True):
            if chunks is not None:
                self._provide(schedule, buffer_type, chunks)

    def _count(self) -> None:
        self.plan_number = self.counters.reserves = self._allocator.reserves
        self.counters.reallocs = self._allocator.reallocs


class BestPlanner(_Planner):
    """The smallest plan of each graph."""

    def __init__(self, buffer_types: Sequence[Any], pool: ArenaPool) -> None:
        super().__init__(buffer_types, pool)
        # the last plan for each pair of lengths of the plan lists
        self._latest: dict[tuple[int, int], tuple[Schedule, Allocation]] = {}

    def reserve(self, graphs: Sequence[PlannedGraph]) -> None:
        for graph in graphs:
            self._grow(graph.schedule, self._plan(graph))

    def alloc(self, graph: PlannedGraph, backends_changed: bool) -> None:
        missing = self._grow(graph.schedule, self._plan(graph))
        if missing:
            self.counters.reallocs += 1
            self.counters.why = missing

    def measure(self, schedule: Schedule) -> list[int]:
        self.counters.reserves += 1
        plan = allocate(schedule, "best")
        return [plan.arenas[a].size for a in plan.arena_of]

    def forget(self) -> None:
        self._latest.clear()

    def _plan(self, graph: PlannedGraph) -> Allocation:
        if graph.allocation is None:
            schedule = graph.schedule
            lengths = len(schedule.plan_nodes), len(schedule.plan_leaves)
            like = self._latest.get(lengths)
            graph.allocation = None if like is None else same_places(schedule, *like)
            if graph.allocation is None:
                self.counters.reserves += 1
                graph.allocation = allocate(schedule, "best")
                self._latest[lengths] = schedule, graph.allocation
        return graph.allocation

    def _grow(self, schedule: Schedule, plan: Allocation) -> str:
        """Grows blocks that are too small; returns the first tensor that had no room, as text."""
        missing = ""
        for arena in plan.arenas:
            have = self.pool.sizes(arena.buffer_type) or []
            sizes = [max(n, h) for n, h in zip_longest(arena.chunks, have, fillvalue=0)]
            if sizes != have:
                missing = missing or _first_outside(schedule, plan, arena, have)
                self._provide(schedule, arena.buffer_type, sizes)
        return missing


MemoryPlanner: TypeAlias = BestPlanner | ReferencePlanner


def same_places(schedule: Schedule, earlier: Schedule, plan: Allocation) -> Allocation | None:
    """`plan` of `earlier` for another schedule: each tensor takes the place of the tensor at its
    position.

    None where that is not a legal plan, because a tensor is larger or needed for longer."""
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
