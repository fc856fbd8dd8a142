"""`LoweredGraph`: a planned graph, ready to be run split by split and looked at node by node."""

from __future__ import annotations

from collections.abc import Callable

from weft.backends.base import BufferType
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

__all__ = ["LoweredGraph"]


class LoweredGraph(SplitAccess):
    """The program of a plan over a pool's memory, and what a driver asks about each split."""

    def __init__(
        self, plan: Plan, pool: ArenaPool, has_queue: Callable[[BufferType], bool]
    ) -> None:
        """`has_queue`: whether a kind of memory is reached through a queue of its device.

        Raises ProgramError on a graph that cannot run, AllocationError where the reference's memory
        plan would lose a value, and what devices raise."""
        schedule = plan.schedule
        if FLAGS.check or any(arena.planner == "ggml" for arena in plan.allocation.arenas):
            check_plan(plan)
        program, self._tensors = lower_with_tensors(schedule, plan.allocation, plan, plan.layouts)
        check_program(program)
        super().__init__(schedule, BoundProgram(program, pool), has_queue)
        self.plan = plan
        self.nodes = [self._nodes(i) for i in range(len(program.splits))]
        """Per split, each node (as a tensor of the graph) with the steps done once it is."""

    def index(self, tensor: str | Tensor) -> int:
        """The program's tensor for an output's name or a tensor of the graph."""
        if isinstance(tensor, str):
            if tensor not in self.program.outputs:
                raise ProgramError(
                    f"no output {tensor!r}; the graph has {sorted(self.program.outputs)}"
                )
            return self.program.outputs[tensor]
        found = self._tensors.get(tensor)
        if found is None:
            raise ProgramError(f"{describe(tensor)} has no memory in the graph that is allocated")
        return found

    def _nodes(self, split: int) -> list[tuple[Tensor, int]]:
        origin = self.schedule.origin
        nodes = []
        done = 0
        for node in self.schedule.splits[split].nodes:
            # as lowering does it: views and dependencies are no steps
            done += not (node.op.is_view or node.op is NONE)
            nodes.append((origin.get(node, node), done))
        return nodes
