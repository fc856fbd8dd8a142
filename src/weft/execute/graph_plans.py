"""`GraphPlans`: the current graph of a scheduler, and everything derived from it and from equal
graphs.

    graph --match--> known graph --place--> schedule --plan--> memory --lower--> program --bind-->

Each arrow is followed once for graphs that are the same (`known_graphs`), and for each copy of the
inputs. Programs are bound again where the memory of leaves, or that of the devices, has changed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal
from weakref import WeakSet

from weft.backends.base import Backend
from weft.backends.memory import BufferType
from weft.compiler.pipeline import Plan, repacked
from weft.errors import ScheduleError
from weft.execute.arena import ArenaPool
from weft.execute.known_graphs import KnownGraphs, Match
from weft.execute.lowered import LoweredGraph, PlannedProgram
from weft.execute.memory_plan import MemoryPlanner
from weft.flags import FLAGS
from weft.graph.check import check_graph
from weft.graph.graph import Graph
from weft.graph.tensor import Tensor
from weft.records import dataclass
from weft.schedule import PlannerState, Schedule, optimize_splits, print_listing, schedule

__all__ = ["GraphPlans", "SchedulerCounters"]

_KEPT = 32


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


class GraphPlans:
    """Places, plans and lowers graphs, and keeps the results used last."""

    def __init__(
        self,
        backends: Sequence[Backend],
        state: PlannerState,
        planner: MemoryPlanner,
        arenas: ArenaPool,
        has_queue: Callable[[BufferType], bool],
        *,
        policy: Literal["ggml"],
        op_offload: bool,
        repack: bool,
        reuse: bool,
    ) -> None:
        self.match: Match | None = None
        """The graph planned last."""
        self.plan: Plan | None = None
        """The plan of the graph that is allocated."""
        self._backends = tuple(backends)
        self._state = state
        self._planner = planner
        self._arenas = arenas
        self._has_queue = has_queue
        self._policy: Literal["ggml"] = policy
        self._op_offload = op_offload
        self._repack = repack
        self._reuse = reuse
        # The best layout of a weight may depend on its values.
        self._graphs = KnownGraphs(by_structure=reuse, any_data=not repack)
        self._schedules: dict[object, Schedule] = {}
        self._programs: dict[tuple[int, int], PlannedProgram] = {}
        self._lowered: dict[tuple[int, ...], LoweredGraph] = {}
        self._checked: WeakSet[Graph] = WeakSet()
        self._schedule: Schedule | None = None
        self._told: Schedule | None = None
        self._current: LoweredGraph | None = None
        self._counters = SchedulerCounters()

    @property
    def schedule(self) -> Schedule | None:
        """The schedule of the graph planned last, with the tensors of that graph."""
        if self._told is None and self._schedule is not None and self.match is not None:
            self._told = self.match.retold(self._schedule)
        return self._told

    @property
    def n_splits(self) -> int:
        """The number of splits of the graph planned last."""
        return 0 if self._schedule is None else len(self._schedule.splits)

    @property
    def counters(self) -> SchedulerCounters:
        """The counters so far."""
        own, planner = self._counters, self._planner
        own.reserves, own.reallocs, own.why = planner.reserves, planner.reallocs, planner.why
        return own

    def backend_of(self, tensor: Tensor) -> int:
        """The backend of a tensor of the graph planned last; -1: none."""
        if self.match is None or self._schedule is None:
            return -1
        return self._schedule.backend_of.get(self.match.to_known(tensor), -1)

    # ---- the verbs -------------------------------------------------------------------------------

    def reserve(self, graph: Graph, watched: bool) -> None:
        """Plans a graph on all copies of its inputs."""
        self._planner.reserve(self._place(graph, watched))
        for copy in range(self._state.n_copies):
            if copy != self._state.cur_copy:
                self._planner.also(self._placed(graph, watched, copy))
        self._drop_stale()

    def measure(self, graph: Graph, watched: bool) -> list[int]:
        """The bytes per backend that a graph needs."""
        return self._planner.measure(self._place(graph, watched))

    def alloc(self, graph: Graph, watched: bool) -> None:
        """Plans a graph on the next copy, or takes its plan from before."""
        if not self._reuse:
            self.clear()
            self._planner.forget_plans()
        reallocs = self._planner.reallocs
        placed = self._place(graph, watched)
        changed = self._state.backends_changed(placed)
        self.plan = Plan(placed, self._planner.alloc(placed, changed))
        self._current = None
        self._counters.graphs += 1
        self._drop_stale()
        if FLAGS.sched_debug and self._planner.reallocs > reallocs:
            print(f"memory planned again: {self._planner.why}", file=sys.stderr)

    def forget_graph(self) -> None:
        """Drops the allocated graph."""
        self._current = self.plan = None

    def clear(self) -> None:
        """Drops all plans."""
        self._graphs.clear()
        self._schedules.clear()
        self._programs.clear()
        self.unbind()

    def unbind(self) -> None:
        """Drops all bound programs, because their memory changes."""
        self._lowered.clear()
        self._current = None

    # ---- placement -------------------------------------------------------------------------------

    def _place(self, graph: Graph, watched: bool) -> Schedule:
        placed = self._placed(graph, watched, self._state.cur_copy)
        self._state.record(placed)
        self._schedule, self._told = placed, None
        return placed

    def _placed(self, graph: Graph, watched: bool, copy: int) -> Schedule:
        """The schedule of a graph; the same graph under the same conditions has the same
        schedule."""
        state = self._state
        match = self.match = self._graphs.match(graph)
        known = match.known
        assigned = {match.to_known(t): b for t, b in state.assigned.items()}
        pinned = tuple((id(t), b) for t, b in assigned.items())
        first = -1 if known.has_work else state.first_backend
        key = (id(known.graph), len(known.tensors), pinned, copy, first, watched)
        placed = self._schedules.get(key)
        if placed is None:
            placed = optimize_splits(
                schedule(
                    known.graph,
                    self._backends,
                    self._policy,
                    op_offload=self._op_offload,
                    n_copies=state.n_copies,
                    cur_copy=copy,
                    assign=assigned,
                    first_backend=state.first_backend,
                ),
                () if watched else None,  # a callback may ask for any node
            )
            _make_room(self._schedules)
            self._schedules[key] = placed
            self._counters.placed += 1
            print_listing(placed)
        return placed

    # ---- lowering --------------------------------------------------------------------------------

    def lowered(self) -> LoweredGraph:
        """The allocated graph, lowered; it is kept while its plan and memory stay."""
        if self.plan is None or self.match is None:
            raise ScheduleError("no graph is allocated; call alloc() or compute() first")
        if self._current is None:
            planned, match = self._program(self.plan), self.match
            key = (id(planned.plan), *map(id, match.datas))
            lowered = self._lowered.get(key)
            if lowered is None:
                if match.has_other_data:
                    planned = planned.with_data(match.known.datas, match.datas)
                lowered = LoweredGraph(planned, self._arenas, self._has_queue)
                _make_room(self._lowered)
                self._lowered[key] = lowered
                self._counters.bound += 1
            self._current = lowered
        return self._current

    def _program(self, plan: Plan) -> PlannedProgram:
        key = id(plan.schedule), id(plan.allocation)
        program = self._programs.get(key)
        if program is None:
            self._check(plan.schedule.graph)
            program = PlannedProgram.of(repacked([plan])[0] if self._repack else plan)
            _make_room(self._programs)
            self._programs[key] = program
            self._counters.lowered += 1
        return program

    def _check(self, graph: Graph) -> None:
        """Raises GraphError for a graph that is not legal; checks each graph once."""
        if graph not in self._checked:
            check_graph(graph)
            self._checked.add(graph)

    def _drop_stale(self) -> None:
        """Drops programs of memory plans that will not be used again."""
        gone = [
            key
            for key, planned in self._programs.items()
            if not self._planner.holds(planned.plan.allocation)
            and (self.plan is None or planned.plan.allocation is not self.plan.allocation)
        ]
        plans = {id(self._programs.pop(key).plan) for key in gone}
        for bound in [key for key in self._lowered if key[0] in plans]:
            del self._lowered[bound]


def _make_room(cache: dict[Any, Any]) -> None:
    """Drops the oldest entry of a full cache."""
    if len(cache) >= _KEPT:
        del cache[next(iter(cache))]
