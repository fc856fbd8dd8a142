"""`LoweredGraph`: a planned graph, ready to be run split by split and looked at node by node."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from weft.backends.base import BufferType
from weft.compile.check import check_program
from weft.compile.lower import lower_with_tensors
from weft.compile.pipeline import Plan, check_plan
from weft.errors import ProgramError
from weft.execute.arena import ArenaPool
from weft.execute.bound import BoundProgram
from weft.execute.hazards import Access, constant_buffers, tensor_access
from weft.flags import FLAGS
from weft.graph.node import describe
from weft.graph.op import NONE
from weft.graph.tensor import Tensor

__all__ = ["Copies", "LoweredGraph"]


@dataclass(frozen=True, slots=True)
class Copies:
    """Some copies of a split."""

    which: list[int]
    """Their numbers in `SplitSpec.copies`."""
    access: Access


class LoweredGraph:
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
        self.plan = plan
        self.program, self._tensors = lower_with_tensors(
            schedule, plan.allocation, plan, plan.layouts
        )
        check_program(self.program)
        self.bound = BoundProgram(self.program, pool)
        numbers = range(len(self.program.splits))
        self.device = [split.backend for split in schedule.splits]
        """Per split, the number of its backend."""
        self._constants = constant_buffers(self.program)
        weights = [b.usage == "weights" for b in self.program.buffers]
        self.writes_weights = len(self._constants) < sum(weights)
        """Whether it changes what other graphs take for constant."""
        self.access = [self._split_access(i) for i in numbers]
        """Per split, the bytes that its steps touch."""
        self._has_queue = has_queue
        self.host_copies = [self._copies(i, True) for i in numbers]
        """Per split, the copies that the calling thread makes: of what the user wrote, at once; and
        from or to memory that is reached through a device's queue."""
        self.copies = [self._copies(i, False) for i in numbers]
        """Per split, the copies that its device makes."""
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

    def _copies(self, split: int, by_host: bool) -> Copies:
        inputs = self.plan.schedule.splits[split].inputs
        which = [
            i
            for i, tensor in enumerate(inputs)
            if (tensor.is_input or self._is_far(split, i)) == by_host
        ]
        copies = [self.program.splits[split].copies[i] for i in which]
        return Copies(which, self._access((c.src for c in copies), (c.dst for c in copies)))

    def _split_access(self, split: int) -> Access:
        steps = self.program.splits[split].steps
        reads = {s for step in steps for s in step.src if s >= 0}
        return self._access(reads, {step.dst for step in steps})

    def _access(self, reads: Iterable[int], writes: Iterable[int]) -> Access:
        return tensor_access(self.program, self.bound.memories, reads, writes, self._constants)

    def _is_far(self, split: int, index: int) -> bool:
        touched = self.bound.touched(split, index)
        return any(
            self.bound.memories[t.buffer].host() is None
            and self._has_queue(self.program.buffers[t.buffer].buffer_type)
            for t in (self.program.tensors[i] for i in touched)
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
        backend = schedule.backend_of.get(schedule.graph.outputs[name], -1) % len(schedule.backends)
        index = self.program.outputs[name]
        buffer_type = self.program.buffers[self.program.tensors[index].buffer].buffer_type
        if self._has_queue(buffer_type):
            # a result may lie in the memory of another device than the one that computes it
            types = [b.buffer_type for b in schedule.backends]
            backend = next((i for i, t in enumerate(types) if t is buffer_type), backend)
        return backend, self._access([index], [])
