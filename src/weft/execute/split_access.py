"""`SplitAccess`: the work of each split of a bound program: its device, the bytes that it touches,
and who makes its copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from weft.backends.memory import BufferType
from weft.execute.bound import BoundProgram
from weft.execute.devices import DeviceQueues, Work
from weft.execute.hazards import Access, constant_buffers, tensor_access
from weft.records import dataclass
from weft.schedule import Schedule


@dataclass(frozen=True, slots=True)
class _Copies:
    """Some copies of a split, made by one device (-1: the calling thread)."""

    device: int
    access: Access
    which: list[int]
    """Numbers of the copies in `SplitSpec.copies`."""
    here: bool
    """The calling thread makes them, or puts them into the queue of the device."""
    beside: bool
    """The memory that they touch is known before they run."""


class SplitAccess:
    """The questions that a driver of several devices asks about each split."""

    def __init__(self, schedule: Schedule, bound: BoundProgram, devices: DeviceQueues) -> None:
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
        self._devices = devices
        self._access = [self._steps(i) for i in numbers]
        self._copies = [self._parts(i) for i in numbers]
        self.output_access = {name: self._output(name) for name in self.program.outputs}
        """Per output, the number of its backend, and the bytes that reading it touches."""

    @property
    def n_lasting(self) -> int:
        """The number of splits up to the last that writes a cache or a state. Splits behind it are
        needed for outputs only."""
        tensors, buffers = self.program.tensors, self.program.buffers
        lasting = [
            number + 1
            for number, split in enumerate(self.program.splits)
            if any(buffers[tensors[step.dst].buffer].kind != "arena" for step in split.steps)
        ]
        return max(lasting, default=0)

    def work(
        self,
        split: int,
        copy: Callable[[int, list[int], bool], None],
        compute: Callable[[int], None],
    ) -> list[Work]:
        """The work of a split in order: copies of inputs, other copies, steps.

        `copy(split, which, here)` makes the copies with these numbers, `compute(split)` runs the
        steps. `here`: the calling thread makes the copies, or puts them into a device's queue."""
        work = [
            Work(c.device, c.access, partial(copy, split, c.which, c.here), c.beside)
            for c in self._copies[split]
        ]
        work.append(Work(self.device[split], self._access[split], partial(compute, split)))
        return work

    def _parts(self, split: int) -> list[_Copies]:
        """The copies of inputs, which are made at once because the caller may overwrite the inputs,
        and of memory that is reached through a device's queue; then all others, apart from the
        steps, so that the bytes that they read can be overwritten while the steps run."""
        first: list[int] = []
        later: list[int] = []
        for i, tensor in enumerate(self.schedule.splits[split].inputs):
            by_caller = tensor.is_input or self._is_far(split, i)
            (first if by_caller else later).append(i)
        by = self._devices.copier(self._types(split, first))
        parts = (first, by), (later, self.device[split])
        return [self._part(split, which, device) for which, device in parts if which]

    def _part(self, split: int, which: list[int], device: int) -> _Copies:
        copies = [self.program.splits[split].copies[i] for i in which]
        access = self._access_to((c.src for c in copies), (c.dst for c in copies))
        here = device < 0 or self._devices.enqueues(device)
        return _Copies(device, access, which, here, self._types(split, which) is not None)

    def _types(self, split: int, which: list[int]) -> list[BufferType] | None:
        """The kinds of memory that some copies touch; None: their ids decide when they run."""
        if any(self.bound.chooses(split, i) for i in which):
            return None
        copies = [self.program.splits[split].copies[i] for i in which]
        tensors = [self.program.tensors[t] for copy in copies for t in (copy.src, copy.dst)]
        return [self.program.buffers[t.buffer].buffer_type for t in tensors]

    def _steps(self, split: int) -> Access:
        steps = self.program.splits[split].steps
        reads = {s for step in steps for s in step.src if s >= 0}
        return self._access_to(reads, {step.dst for step in steps})

    def _access_to(self, reads: Iterable[int], writes: Iterable[int]) -> Access:
        return tensor_access(self.program, self.bound.memories, reads, writes, self._constants)

    def _is_far(self, split: int, index: int) -> bool:
        touched = self.bound.touched(split, index)
        return any(
            self.bound.memories[t.buffer].host() is None
            and self._devices.has_queue(self.program.buffers[t.buffer].buffer_type)
            for t in (self.program.tensors[i] for i in touched)
        )

    def _output(self, name: str) -> tuple[int, Access]:
        schedule = self.schedule
        backend = schedule.backend_of.get(schedule.graph.outputs[name], -1) % len(schedule.backends)
        index = self.program.outputs[name]
        buffer_type = self.program.buffers[self.program.tensors[index].buffer].buffer_type
        if self._devices.has_queue(buffer_type):
            # A result may lie in the memory of a device other than the one that computes it.
            types = [b.buffer_type for b in schedule.backends]
            backend = next((i for i, t in enumerate(types) if t is buffer_type), backend)
        return backend, self._access_to([index], [])
