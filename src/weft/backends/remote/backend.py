"""A device of a worker as planner and executor see it.

Which nodes it takes is asked of the same kind of device here, which both sides have, as they are
the same weft; so planning costs no round trips.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from weft.backends.base import (
    Backend,
    BackendBase,
    DeviceKind,
    Event,
    Queue,
    QueueSpan,
    RewritesSplits,
    Support,
    Use,
)
from weft.backends.memory import BufferType, Memory, WeightBufferType
from weft.backends.remote.encode import encoded
from weft.backends.remote.machine import Machine
from weft.backends.remote.memory import RemoteBufferType, RemoteMemory, RemoteWeights
from weft.backends.remote.rules import rules_like
from weft.errors import AbortedError, DeviceError, ProgramError
from weft.graph.tensor import Tensor
from weft.program import Program


class RemoteEvent:
    """A point in the commands of a worker."""

    __slots__ = ("_mark", "machine")

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._mark = machine.mark()

    def is_done(self) -> bool:
        """Whether the point is reached, or a failing worker has given it up."""
        return self._mark.is_over

    def wait(self) -> None:
        """Blocks until it is reached; raises DeviceError if the worker failed."""
        self._mark.wait()


class RemoteQueue:
    """The calling thread enqueues commands, which the worker does in order."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def submit(self, work: Callable[[], None]) -> Event:
        """Enqueues the work at once."""
        work()
        return RemoteEvent(self.machine)

    def orders(self, event: Event) -> bool:
        """Whether work of this queue comes after the event without waiting for it here: what both
        touch is copied from worker to worker, in the order of the commands of both."""
        if not isinstance(event, RemoteEvent):
            return False
        return event.machine is self.machine or self.machine.reaches(event.machine)

    def wait_for(self, event: Event) -> None:
        """Waits for events of other devices in the calling thread, while the worker goes on."""
        if not self.orders(event):
            event.wait()

    def synchronize(self) -> None:
        """Blocks until all commands are done; raises DeviceError if one failed."""
        self.machine.synchronize()

    def close(self) -> None:
        """Does nothing: the commands belong to the machine."""


class RemoteBackend(BackendBase):
    """A device in another process, reached over a link."""

    kind: DeviceKind = "ACCEL"

    def __init__(self, machine: Machine, device: str = "cpu", name: str | None = None) -> None:
        """`device` is the worker's name of the device. Raises DeviceError, naming the devices that
        the worker has, where it has no such device."""
        found = {str(d["name"]): (n, d) for n, d in enumerate(machine.facts["devices"])}
        if device not in found:
            raise DeviceError(
                f"{machine.name} has no device {device!r}; it offers {', '.join(found)}"
            )
        number, facts = found[device]
        self.machine = machine
        self.device = device
        self.name = name or f"remote:{machine.name}/{device}"
        self.facts: Mapping[str, Any] = facts
        """The properties of the device, as the worker sent them."""
        self.memory_type = RemoteBufferType(machine, self.name, number, facts)
        self.buffer_type: BufferType = self.memory_type
        self._inner: Backend = rules_like(facts, self.name, machine, number)
        self.runs_stages = getattr(self._inner, "runs_stages", False)
        self.cells_step = getattr(self._inner, "cells_step", 1)
        self.rewrites: Sequence[str] = getattr(self._inner, "rewrites", ())
        self.generalizes: Collection[str] = getattr(self._inner, "generalizes", ())
        self.target = str(facts.get("target", ""))
        """The processor features that its kernels are compiled for; empty: it has no such."""
        self._weights: dict[str, RemoteWeights] = {}
        self.enqueued: list[int] = []
        """Numbers of the runs since `recorded` was last called, while times are recorded."""

    def supports_op(self, node: Tensor) -> Support:
        """The answer of a local device of that kind."""
        return self._inner.supports_op(node)

    def work_bytes(self, node: Tensor) -> int:
        """The answer of a local device of that kind, for the worker's number of threads."""
        return self._inner.work_bytes(node)

    def memory_limit(self) -> int | None:
        """The bytes that the worker can still lend, now; None: unknown."""
        left, _ = self.machine.call(["left", self.memory_type.number])
        return left if isinstance(left, int) else None

    def optimize(self, nodes: Sequence[Tensor]) -> Sequence[Tensor]:
        """The answer of a local device of that kind."""
        inner = self._inner
        return inner.optimize(nodes) if isinstance(inner, RewritesSplits) else nodes

    def weight_layout(self, leaf: Tensor, uses: Sequence[Use]) -> WeightBufferType | None:
        """The layout that such a device here would choose; the worker repacks."""
        inner = self._inner.weight_layout(leaf, uses)
        if inner is None:
            return None
        if inner.layout not in self._weights:
            self._weights[inner.layout] = RemoteWeights(self.memory_type, inner)
        return self._weights[inner.layout]

    def make_queue(self) -> Queue:
        """The order of the worker's commands."""
        return RemoteQueue(self.machine)

    def record_queue(self, on: bool) -> None:
        """Starts recording when the worker does each step, or stops it; calls nest."""
        self.machine.record(on)
        self.enqueued = []

    def recorded(self) -> Callable[[], list[QueueSpan]]:
        """The steps of runs enqueued since the last call, as a function; see `RecordsQueue`."""
        recording, runs, self.enqueued = self.machine.recording, self.enqueued, []
        if recording is None or not runs:
            return list

        def later() -> list[QueueSpan]:
            return [
                QueueSpan("kernel", "", step, 0, int(begin), int(end))
                for run in runs
                for step, (begin, end) in enumerate(recording.spans(run))
                if end
            ]

        return later

    @property
    def clock_error(self) -> float:
        """Seconds by which recorded times may be wrong; 0 while none are recorded."""
        return 0.0 if self.machine.recording is None else self.machine.recording.error * 1e-9

    def lower(self, program: Program, split: int, memories: Sequence[Memory]) -> RemoteExecutable:
        """Sends the split to the worker, which checks and lowers it. Raises DeviceError."""
        return RemoteExecutable(self, program, split, memories)

    def __repr__(self) -> str:
        return self.name


class RemoteExecutable:
    """A split that a worker has lowered."""

    def __init__(
        self, backend: RemoteBackend, program: Program, split: int, memories: Sequence[Memory]
    ) -> None:
        data, buffers = encoded(program, split)
        blocks = []
        for index in buffers:
            memory = memories[index]
            if not isinstance(memory, RemoteMemory) or memory.machine is not backend.machine:
                raise ProgramError(
                    f"split {split} runs on {backend.name} but buffer {index} is "
                    f"{program.buffers[index].buffer_type.name} memory, which it cannot address"
                )
            if not memory.is_there:
                raise DeviceError(f"{backend.machine.name} was lost, and its memory with it")
            blocks.append(memory.number)
        machine = backend.machine
        self._backend = backend
        self._machine, self._connection = machine, machine.connection
        self._memories = [memories[i] for i in buffers]  # keeps the blocks
        self._number = machine.new_id()
        self._symbols = tuple(program.symbols)
        self._runs = 0
        self._first = 1
        self.is_stopped = False
        self._stopping = threading.Lock()
        machine.call(["lower", self._number, backend.memory_type.number, data, blocks])
        gone = weakref.finalize(self, machine.forget, self._connection, "drop", self._number)
        gone.atexit = False

    def run(self, values: Mapping[str, int]) -> None:
        """Enqueues a run; raises DeviceError where the worker was lost, AbortedError after
        `abort`."""
        machine = self._machine
        if machine.connection is not self._connection:
            raise DeviceError(f"{machine.name} was lost, and this program with it")
        given = [values[name] for name in self._symbols]
        with self._stopping:
            if self.is_stopped:
                raise AbortedError("the run was stopped by abort()")
            self._runs = n = self._runs + 1
        machine.post_run(["run", self._number, n, *given], self._backend.enqueued)
        machine.leave()

    def begin(self) -> None:
        """Leaves the runs so far alone: `abort` stops later ones only."""
        self._first = self._runs + 1

    def abort(self) -> None:
        """Stops the runs since `begin` at the worker, that which is under way included."""
        with self._stopping:
            self.is_stopped = True
            first, last = self._first, self._runs
            self._first = last + 1
        if first <= last:
            self._machine.stop(self._connection, self._number, first, last)

    def clear_abort(self) -> None:
        """Runs again from now on."""
        self.is_stopped = False
