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
from weft.execute.known_graphs import Structure, Structures, put
from weft.execute.memory_plan import MemoryPlanner, PlacementKey, PlannedGraph
from weft.execute.split_access import SplitAccess
from weft.flags import FLAGS
from weft.graph.check import check_graph
from weft.graph.graph import Graph
from weft.graph.node import describe
from weft.graph.tensor import Tensor
from weft.program import Program
from weft.records import dataclass
from weft.schedule import PlannerState, Schedule, optimize_splits, print_listing, schedule
from weft.schedule.offload import OpOffload


@dataclass(slots=True)
class CurrentGraph:
    """The graph planned last, and its plan, which may be the plan of an equal graph."""

    graph: Graph
    structure: Structure
    planned: PlannedGraph
    schedule: Schedule | None
    """The schedule with the tensors of `graph`, once it is needed."""

    def to_planned(self, tensor: Tensor) -> Tensor:
        """The tensor of the planned graph for a tensor of `graph`; any other is returned itself."""
        return self.structure.to(self.planned.structure, tensor)

    def from_planned(self, tensor: Tensor) -> Tensor:
        """The tensor of `graph` for a tensor of the planned graph."""
        return self.planned.structure.to(self.structure, tensor)


class GraphPlans:
    """Places, plans and lowers graphs, and keeps the results used last."""

    def __init__(
        self,
        devices: DeviceQueues,
        state: PlannerState,
        planner: MemoryPlanner,
        *,
        op_offload: OpOffload,
        repack: bool,
        reuse: bool,
    ) -> None:
        self.current: CurrentGraph | None = None
        self.watched = False
        """A callback may ask for any node, so that none may be fused with others."""
        self._devices = devices
        self._state = state
        self._planner = planner
        self._counters = planner.counters
        self._op_offload = op_offload
        self._repack = repack
        self._reuse = reuse
        # The best layout of a weight may depend on its values.
        self._structures = Structures(any_data=not repack)
        self._plans: dict[PlacementKey, PlannedGraph] = {}

    # ---- the verbs -------------------------------------------------------------------------------

    def reserve(self, graph: Graph) -> None:
        """Plans a graph on all copies of its inputs."""
        plans = [self._place(graph)]
        for copy in range(self._state.n_copies):
            if copy != self._state.cur_copy:
                plans.append(self._placed(graph, copy))
        self._planner.reserve(plans)
        self._drop_stale()

    def measure(self, graph: Graph) -> list[int]:
        """The bytes per backend that a graph needs."""
        return self._planner.measure(self._place(graph).schedule)

    def alloc(self, graph: Graph) -> None:
        """Plans a graph on the next copy, or takes its plan from before."""
        reallocs = self._counters.reallocs
        planned = self._place(graph)
        self._planner.alloc(planned, self._state.backends_changed(planned.schedule))
        self._counters.graphs += 1
        self._drop_stale()
        if FLAGS.sched_debug and self._counters.reallocs > reallocs:
            print(f"memory planned again: {self._counters.why}", file=sys.stderr)

    def unbind(self) -> None:
        """Drops all bound programs, because their memory changes."""
        for planned in self._plans.values():
            planned.bound.clear()

    # ---- placement -------------------------------------------------------------------------------

    @property
    def schedule(self) -> Schedule:
        """The schedule of the graph planned last, with the tensors of that graph."""
        current = self.current
        if current is None:
            raise ScheduleError("no graph was planned yet: reserve(), alloc() or compute() one")
        if current.schedule is None:  # an equal graph is placed equally
            current.schedule = self._schedule(current.graph, current.structure, current.planned.key)
        return current.schedule

    def _place(self, graph: Graph) -> PlannedGraph:
        if not self._reuse:
            self._structures.clear()
            self._plans.clear()
            self._planner.forget()
        planned = self._placed(graph, self._state.cur_copy)
        self._state.record(planned.schedule)
        own = planned.schedule if planned.schedule.graph is graph else None
        self.current = CurrentGraph(graph, self._structures.of(graph), planned, own)
        return planned

    def _placed(self, graph: Graph, copy: int) -> PlannedGraph:
        structure, state = self._structures.of(graph), self._state
        number = structure.number
        pins = tuple((number[t], b) for t, b in state.assigned.items() if t in number)
        first = 0 if structure.has_work else state.first_backend
        key = structure.key, pins, copy, first, self.watched
        planned = self._plans.get(key)
        if planned is None:
            planned = PlannedGraph(structure, key, self._schedule(graph, structure, key))
            put(self._plans, key, planned)
            self._counters.placed += 1
            print_listing(planned.schedule)
        return planned

    def _schedule(self, graph: Graph, structure: Structure, key: PlacementKey) -> Schedule:
        _, pins, copy, first, watched = key
        placed = schedule(
            graph,
            self._devices.backends,
            op_offload=self._op_offload,
            n_copies=self._state.n_copies,
            cur_copy=copy,
            assign={structure.tensors[number]: backend for number, backend in pins},
            first_backend=first,
        )
        return optimize_splits(placed, () if watched else None)

    def _drop_stale(self) -> None:
        """Drops memory plans, and their programs, that will not be used again."""
        for planned in self._plans.values():
            if planned.plan_number != self._planner.plan_number:
                planned.drop_allocation()

    # ---- lowering --------------------------------------------------------------------------------

    def bound(self) -> SplitAccess:
        """The allocated graph over its memory; it is kept while its plan and the memory stay."""
        current = self._allocated()
        planned, datas = current.planned, current.structure.datas
        key = tuple(map(id, datas))
        bound = planned.bound.get(key)
        if bound is None:
            program = planned.program or self._lower(planned)
            if datas is not planned.structure.datas:
                program = _with_data(program, planned.structure.datas, datas)
            over = BoundProgram(program, self._planner.pool)
            bound = SplitAccess(planned.schedule, over, self._devices)
            put(planned.bound, key, bound)
            self._counters.bound += 1
        return bound

    def index(self, tensor: str | Tensor) -> int:
        """The number of the program's tensor for an output's name or a tensor of the graph."""
        current, outputs = self._allocated(), self.bound().program.outputs
        if isinstance(tensor, str):
            if tensor not in outputs:
                raise ProgramError(f"no output {tensor!r}; the graph has {sorted(outputs)}")
            return outputs[tensor]
        number = current.planned.index.get(current.to_planned(tensor))
        if number is None:
            raise ProgramError(f"{describe(tensor)} has no memory in the graph that is allocated")
        return number

    def _allocated(self) -> CurrentGraph:
        if self.current is None or not self._state.is_allocated:
            raise ScheduleError("no graph is allocated; call alloc() or compute() first")
        return self.current

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
        self._counters.lowered += 1
        return planned.program


def _with_data(program: Program, before: Sequence[Any], now: Sequence[Any]) -> Program:
    """The same program over other memory of the user: `now[i]` in the place of `before[i]`."""
    other = {id(old): new for old, new in zip(before, now, strict=True)}
    buffers = (
        replace(spec, data=other[id(spec.data)]) if id(spec.data) in other else spec
        for spec in program.buffers
    )
    return replace(program, buffers=tuple(buffers))
