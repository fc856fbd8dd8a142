"""`LoweredGraph`: a planned graph, ready to be run split by split and looked at node by node."""

from __future__ import annotations

from weft.compile.check import check_program
from weft.compile.lower import lower_with_tensors
from weft.compile.pipeline import Plan
from weft.errors import ProgramError
from weft.execute.arena import ArenaPool
from weft.execute.bound import BoundProgram
from weft.execute.hazards import Access, split_access, tensor_access
from weft.graph.check import check_graph
from weft.graph.node import describe
from weft.graph.op import NONE
from weft.graph.tensor import Tensor

__all__ = ["LoweredGraph"]


class LoweredGraph:
    """The program of a plan over a pool's memory, and what a driver asks about each split."""

    def __init__(self, plan: Plan, pool: ArenaPool) -> None:
        """Raises GraphError or ProgramError on a graph that cannot run, DeviceError and
        OutOfMemoryError from devices."""
        schedule = plan.schedule
        check_graph(schedule.graph)
        self.plan = plan
        self.program, self._tensors = lower_with_tensors(schedule, plan.allocation, plan)
        check_program(self.program)
        self.bound = BoundProgram(self.program, pool)
        numbers = range(len(self.program.splits))
        self.device = [split.backend for split in schedule.splits]
        """Per split, the number of its backend."""
        self.access = [split_access(self.program, self.bound.memories, i) for i in numbers]
        """Per split, the bytes that it and its copies touch."""
        self.user_copies = [
            frozenset(i for i, tensor in enumerate(split.inputs) if tensor.is_input)
            for split in schedule.splits
        ]
        """Per split, the numbers of its copies that come straight from the user."""
        self.user_access = [self._user_access(i) for i in numbers]
        self.nodes = [self._nodes(i) for i in numbers]
        """Per split, each node (as a tensor of the graph) with the steps done once it is."""
        self.output_access = {name: self._output(name) for name in self.program.outputs}
        """Per output, the number of its backend, and the bytes that reading it touches."""

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

    def _user_access(self, split: int) -> Access:
        copies = [self.program.splits[split].copies[i] for i in self.user_copies[split]]
        return tensor_access(
            self.program, self.bound.memories, [c.src for c in copies], [c.dst for c in copies]
        )

    def _nodes(self, split: int) -> list[tuple[Tensor, int]]:
        origin = self.plan.schedule.origin
        nodes = []
        done = 0
        for node in self.plan.schedule.splits[split].nodes:
            # as lowering does it: views and dependencies are no steps
            done += not (node.op.is_view or node.op is NONE)
            nodes.append((origin.get(node, node), done))
        return nodes

    def _output(self, name: str) -> tuple[int, Access]:
        schedule = self.plan.schedule
        backend = schedule.backend_of.get(schedule.graph.outputs[name], -1)
        index = self.program.outputs[name]
        access = tensor_access(self.program, self.bound.memories, [index], [])
        return backend % len(schedule.backends), access
