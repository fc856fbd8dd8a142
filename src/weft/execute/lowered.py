"""`LoweredGraph`: a planned graph, ready to run split by split and to be inspected node by node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from weft.backends.memory import BufferType
from weft.compiler.check import check_program
from weft.compiler.lower import lower_with_tensors
from weft.compiler.pipeline import Plan, check_plan
from weft.errors import ProgramError
from weft.execute.arena import ArenaPool
from weft.execute.bound import BoundProgram
from weft.execute.split_access import SplitAccess
from weft.flags import FLAGS
from weft.graph.node import describe
from weft.graph.op import NONE
from weft.graph.tensor import Tensor
from weft.program import Program
from weft.records import dataclass

__all__ = ["LoweredGraph", "PlannedProgram"]


@dataclass(frozen=True, slots=True)
class PlannedProgram:
    """The program of a plan, and the place of the graph's tensors in it."""

    plan: Plan
    program: Program
    tensors: dict[Tensor, int]

    @classmethod
    def of(cls, plan: Plan) -> PlannedProgram:
        """The program of `plan`.

        Raises ProgramError for a graph that cannot run, AllocationError where the reference's
        memory plan would lose a value."""
        if FLAGS.check or any(arena.planner == "ggml" for arena in plan.allocation.arenas):
            check_plan(plan)
        program, tensors = lower_with_tensors(plan.schedule, plan.allocation, plan, plan.layouts)
        check_program(program)
        return cls(plan, program, tensors)

    def with_data(self, before: Sequence[Any], now: Sequence[Any]) -> PlannedProgram:
        """The same program over other memory of the user: `now[i]` in the place of `before[i]`."""
        other = {id(old): new for old, new in zip(before, now, strict=True)}
        buffers = tuple(
            replace(spec, data=other[id(spec.data)]) if id(spec.data) in other else spec
            for spec in self.program.buffers
        )
        return replace(self, program=replace(self.program, buffers=buffers))


class LoweredGraph(SplitAccess):
    """A program over a pool's memory, and the questions a driver asks about each split."""

    def __init__(
        self, planned: PlannedProgram, pool: ArenaPool, has_queue: Callable[[BufferType], bool]
    ) -> None:
        """`has_queue`: whether a kind of memory is reached through a queue of its device.

        Raises what devices raise."""
        bound = BoundProgram(planned.program, pool)
        super().__init__(planned.plan.schedule, bound, has_queue)
        self._planned = planned
        self.nodes = [self._nodes(i) for i in range(len(self.program.splits))]
        """Per split, each node (as a tensor of the graph) with the number of steps up to it."""

    def index(self, tensor: str | Tensor) -> int:
        """The row of the program's tensor for an output's name or a tensor of the graph."""
        if isinstance(tensor, str):
            if tensor not in self.program.outputs:
                raise ProgramError(
                    f"no output {tensor!r}; the graph has {sorted(self.program.outputs)}"
                )
            return self.program.outputs[tensor]
        row = self._planned.tensors.get(tensor)
        if row is None:
            raise ProgramError(f"{describe(tensor)} has no memory in the graph that is allocated")
        return row

    def _nodes(self, split: int) -> list[tuple[Tensor, int]]:
        origin = self.schedule.origin
        nodes = []
        n_steps = 0
        for node in self.schedule.splits[split].nodes:
            # as in lowering, views and dependencies are no steps
            n_steps += not (node.op.is_view or node.op is NONE)
            nodes.append((origin.get(node, node), n_steps))
        return nodes
