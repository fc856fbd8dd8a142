"""`SplitAccess`: the bytes that each split of a bound program touches, and the owner of its
copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from weft.backends.memory import BufferType
from weft.execute.bound import BoundProgram
from weft.execute.hazards import Access, constant_buffers, tensor_access
from weft.records import dataclass
from weft.schedule import Schedule

__all__ = ["Copies", "SplitAccess"]


@dataclass(frozen=True, slots=True)
class Copies:
    """Some copies of a split."""

    which: list[int]
    """Their numbers in `SplitSpec.copies`."""
    access: Access
    buffer_types: tuple[BufferType, ...] | None
    """The kinds of memory that they touch; None: what they copy is found as they run."""


class SplitAccess:
    """The questions that a driver of several devices asks about each split."""

    def __init__(
        self, schedule: Schedule, bound: BoundProgram, has_queue: Callable[[BufferType], bool]
    ) -> None:
        """`has_queue` says whether a kind of memory is reached through a queue of its device."""
        self.schedule = schedule
        self.bound = bound
        self.program = bound.program
        numbers = range(len(self.program.splits))
        self.device = [split.backend for split in schedule.splits]
        """Per split, the number of its backend."""
        self._constants = constant_buffers(self.program)
        weights = [b.usage == "weights" for b in self.program.buffers]
        self.writes_weights = len(self._constants) < sum(weights)
        """It writes weights, which other graphs take for constant."""
        self.access = [self._split_access(i) for i in numbers]
        """Per split, the bytes that its steps touch."""
        self._has_queue = has_queue
        self.host_copies = [self._copies(i, True) for i in numbers]
        """Per split, the copies that the calling thread makes: those of inputs, at once, and those
        from or to memory that is reached through a device's queue."""
        self.copies = [self._copies(i, False) for i in numbers]
        """Per split, the copies that its device makes."""
        self.output_access = {name: self._output(name) for name in self.program.outputs}
        """Per output, the number of its backend, and the bytes that reading it touches."""

    @property
    def n_lasting(self) -> int:
        """The number of splits up to the last that writes a cache or a state. Those behind it are
        needed for outputs only."""
        tensors, buffers = self.program.tensors, self.program.buffers
        lasting = [
            number + 1
            for number, split in enumerate(self.program.splits)
            if any(buffers[tensors[step.dst].buffer].kind != "arena" for step in split.steps)
        ]
        return max(lasting, default=0)

    def _copies(self, split: int, by_host: bool) -> Copies:
        inputs = self.schedule.splits[split].inputs
        which = [
            i
            for i, tensor in enumerate(inputs)
            if (tensor.is_input or self._is_far(split, i)) == by_host
        ]
        copies = [self.program.splits[split].copies[i] for i in which]
        tensors = [t for copy in copies for t in (copy.src, copy.dst)]
        types = [self.program.buffers[self.program.tensors[t].buffer].buffer_type for t in tensors]
        chosen = any(self.bound.chooses(split, i) for i in which)
        access = self._access((c.src for c in copies), (c.dst for c in copies))
        return Copies(which, access, None if chosen else tuple(dict.fromkeys(types)))

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

    def _output(self, name: str) -> tuple[int, Access]:
        schedule = self.schedule
        backend = schedule.backend_of.get(schedule.graph.outputs[name], -1) % len(schedule.backends)
        index = self.program.outputs[name]
        buffer_type = self.program.buffers[self.program.tensors[index].buffer].buffer_type
        if self._has_queue(buffer_type):
            # A result may lie in the memory of a device other than the one that computes it.
            types = [b.buffer_type for b in schedule.backends]
            backend = next((i for i, t in enumerate(types) if t is buffer_type), backend)
        return backend, self._access([index], [])
