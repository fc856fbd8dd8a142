"""`GraphPlans`: the current graph of a scheduler, and everything derived from it and from equal
graphs.

    graph --structure--> placement --plan--> memory --lower--> program --bind-->

Each arrow is followed once for graphs that are the same (`known_graphs`), and for each copy of the
inputs. Programs are bound again where the memory of leaves, or of the devices, has changed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from weft.compiler.check import check_program
from weft.compiler.lower import lower_with_tensors
from weft.compiler.pipeline import Plan, check_plan, repacked
from weft.errors import ProgramError, ScheduleError
from weft.execute.bound import BoundProgram
from weft.execute.devices import DeviceQueues
from weft.execute.known_graphs import Structures, put
from weft.execute.memory_plan import MemoryPlanner, PlannedGraph
from weft.execute.split_access import SplitAccess
from weft.flags import FLAGS
from weft.graph.check import check_graph
from weft.graph.graph import Graph
from weft.graph.node import describe
from weft.graph.tensor import Tensor
from weft.program import Program
from weft.records import dataclass
from weft.schedule import PlannerState, Schedule, optimize_splits, print_listing, schedule

__all__ = ["GraphPlans", "SchedulerCounters"]


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
        devices: DeviceQueues,
        state: PlannerState,
        planner: MemoryPlanner,
        *,
        op_offload: bool,
        repack: bool,
        reuse: bool,
    ) -> None:
        self.graph: Graph | None = None
        """The graph planned last."""
        self.planned: PlannedGraph | None = None
        """That graph's plan, which may be the plan of an equal graph."""
        self.counters = SchedulerCounters()
        self._devices = devices
        self._state = state
        self._planner = planner
        self._op_offload = op_offload
        self._repack = repack
        self._reuse = reuse
        # The best layout of a weight may depend on its values.
        self._structures = Structures(any_data=not repack)
        self._plans: dict[_Key, PlannedGraph] = {}
        self._key: _Key | None = None
        self._schedule: Schedule | None = None

    @property
    def schedule(self) -> Schedule | None:
        """The schedule of the graph planned last, with the tensors of that graph."""
        if self._schedule is None and self.graph is not None and self._key is not None:
            self._schedule = self._schedule_of(self.graph, self._key)  # as its equal was placed
        return self._schedule

    def to_planned(self, tensor: Tensor) -> Tensor:
        """The tensor of the planned graph for a tensor of the user's; any other is returned
        itself."""
        if self.graph is None or self.planned is None:
            return tensor
        return self._structures.of(self.graph).to(self.planned.structure, tensor)

    def from_planned(self, tensor: Tensor) -> Tensor:
        """The user's tensor for a tensor of the planned graph."""
        if self.graph is None or self.planned is None:
            return tensor
        return self.planned.structure.to(self._structures.of(self.graph), tensor)

    # ---- the verbs -------------------------------------------------------------------------------

    def reserve(self, graph: Graph, watched: bool) -> None:
        """Plans a graph on all copies of its inputs."""
        plans = [self._place(graph, watched)]
        for copy in range(self._state.n_copies):
            if copy != self._state.cur_copy:
                plans.append(self._placed(graph, self._key_of(graph, watched, copy)))
        self._planner.reserve(plans)
        self._drop_stale()

    def measure(self, graph: Graph, watched: bool) -> list[int]:
        """The bytes per backend that a graph needs."""
        return self._planner.measure(self._place(graph, watched).schedule)

    def alloc(self, graph: Graph, watched: bool) -> None:
        """Plans a graph on the next copy, or takes its plan from before."""
        reallocs = self._planner.reallocs
        planned = self._place(graph, watched)
        self._planner.alloc(planned, self._state.backends_changed(planned.schedule))
        self.counters.graphs += 1
        self._drop_stale()
        if FLAGS.sched_debug and self._planner.reallocs > reallocs:
            print(f"memory planned again: {self._planner.why}", file=sys.stderr)

    def unbind(self) -> None:
        """Drops all bound programs, because their memory changes."""
        for planned in self._plans.values():
            planned.bound.clear()

    # ---- placement -------------------------------------------------------------------------------

    def _place(self, graph: Graph, watched: bool) -> PlannedGraph:
        if not self._reuse:
            self._structures.clear()
            self._plans.clear()
            self._planner.forget()
        key = self._key_of(graph, watched, self._state.cur_copy)
        planned = self._placed(graph, key)
        self._state.record(planned.schedule)
        self.graph, self.planned, self._key = graph, planned, key
        self._schedule = planned.schedule if planned.schedule.graph is graph else None
        return planned

    def _key_of(self, graph: Graph, watched: bool, copy: int) -> _Key:
        structure, state = self._structures.of(graph), self._state
        number = structure.number
        pins = tuple((number[t], b) for t, b in state.assigned.items() if t in number)
        first = 0 if structure.has_work else state.first_backend
        return structure.key, pins, copy, first, watched

    def _placed(self, graph: Graph, key: _Key) -> PlannedGraph:
        planned = self._plans.get(key)
        if planned is None:
            placed = self._schedule_of(graph, key)
            planned = PlannedGraph(self._structures.of(graph), placed)
            put(self._plans, key, planned)
            self.counters.placed += 1
            print_listing(placed)
        return planned

    def _schedule_of(self, graph: Graph, key: _Key) -> Schedule:
        _, pins, copy, first, watched = key
        tensors = self._structures.of(graph).tensors
        placed = schedule(
            graph,
            self._devices.backends,
            op_offload=self._op_offload,
            n_copies=self._state.n_copies,
            cur_copy=copy,
            assign={tensors[number]: backend for number, backend in pins},
            first_backend=first,
        )
        # a callback may ask for any node
        return optimize_splits(placed, () if watched else None)

    def _drop_stale(self) -> None:
        """Drops memory plans, and their programs, that will not be used again."""
        for planned in self._plans.values():
            if planned.plan_number != self._planner.plan_number:
                planned.drop_allocation()

    # ---- lowering --------------------------------------------------------------------------------

    def bound(self) -> SplitAccess:
        """The allocated graph over its memory; it is kept while its plan and the memory stay."""
        if self.graph is None or self.planned is None or not self._state.is_allocated:
            raise ScheduleError("no graph is allocated; call alloc() or compute() first")
        planned, datas = self.planned, self._structures.of(self.graph).datas
        key = tuple(map(id, datas))
        bound = planned.bound.get(key)
        if bound is None:
            program = planned.program or self._lower(planned)
            if datas is not planned.structure.datas:
                program = _with_data(program, planned.structure.datas, datas)
            over = BoundProgram(program, self._planner.pool)
            bound = SplitAccess(planned.schedule, over, self._devices)
            put(planned.bound, key, bound)
            self.counters.bound += 1
        return bound

    def index(self, tensor: str | Tensor) -> int:
        """The number of the program's tensor for an output's name or a tensor of the graph."""
        outputs = self.bound().program.outputs
        if isinstance(tensor, str):
            if tensor not in outputs:
                raise ProgramError(f"no output {tensor!r}; the graph has {sorted(outputs)}")
            return outputs[tensor]
        assert self.planned is not None
        number = self.planned.index.get(self.to_planned(tensor))
        if number is None:
            raise ProgramError(f"{describe(tensor)} has no memory in the graph that is allocated")
        return number

    def _lower(self, planned: PlannedGraph) -> Program:
        assert planned.allocation is not None
        check_graph(planned.schedule.graph)
        plan = Plan(planned.schedule, planned.allocation)
        if self._repack:
            plan = repacked([plan])[0]
        if FLAGS.check or any(arena.planner == "ggml" for arena in plan.allocation.arenas):
            check_plan(plan)
        planned.program, planned.index = lower_with_tensors(
            plan.schedule, plan.allocation, plan, plan.layouts
        )
        check_program(planned.program)
        self.counters.lowered += 1
        return planned.program


_Key = tuple[object, tuple[tuple[int, int], ...], int, int, bool]
"""What decides a placement: the structure, pins (numbers of tensors, backends), the copy of the
inputs, the first backend of a graph without work, and whether a callback sees nodes."""


def _with_data(program: Program, before: Sequence[Any], now: Sequence[Any]) -> Program:
    """The same program over other memory of the user: `now[i]` in the place of `before[i]`."""
    other = {id(old): new for old, new in zip(before, now, strict=True)}
    buffers = (
        replace(spec, data=other[id(spec.data)]) if id(spec.data) in other else spec
        for spec in program.buffers
    )
    return replace(program, buffers=tuple(buffers))
