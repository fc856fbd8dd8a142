"""The protocol that a device fulfils: backends, executables, queues. Its memory: `memory.py`.

A backend module is found by entry point (group `weft.backends`) and offers `describe()` and
`make()`, see `registry.py`. Optional methods say so and give their default; subclass `BackendBase`
to get them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from weft.backends.memory import BufferType, Memory, WeightBufferType
from weft.errors import DeviceError
from weft.graph.tensor import Tensor

__all__ = [
    "YES",
    "Backend",
    "BackendBase",
    "DeviceKind",
    "Event",
    "Executable",
    "Queue",
    "QueueSpan",
    "RecordsQueue",
    "RecordsSpans",
    "RewritesSplits",
    "Rules",
    "Support",
    "Use",
    "UsesThreads",
]

DeviceKind = Literal["CPU", "GPU", "IGPU", "ACCEL"]


@dataclass(frozen=True, slots=True)
class Support:
    """Whether a device takes a node; a refusal is a sentence."""

    ok: bool
    why: str = ""

    def __bool__(self) -> bool:
        return self.ok


YES = Support(True)


@dataclass(frozen=True, slots=True)
class Use:
    """A step that reads a tensor."""

    node: Tensor
    source: int
    """Which source of the node it is."""


class Event(Protocol):
    """A point in a queue, reached when everything submitted before it is done."""

    def is_done(self) -> bool:
        """Whether it is reached; never blocks."""

    def wait(self) -> None:
        """Blocks the caller until it is reached."""


class Queue(Protocol):
    """Work of one device, done in the order in which it was submitted."""

    def submit(self, work: Callable[[], None]) -> Event:
        """Does `work` after all work submitted before; the event is reached when it is done.

        `work` calls `Executable.run` of this device, or reads its memory, and raises nothing. It
        may be called now, on this thread, if a run only enqueues; or later, on a thread of the
        queue. A read then waits, in the calling thread, for what was submitted before it."""

    def wait_for(self, event: Event) -> None:
        """Work submitted from now on starts after `event`, which may be of another queue."""

    def synchronize(self) -> None:
        """Blocks until all work is done; raises DeviceError if the device failed meanwhile."""

    def close(self) -> None:
        """Gives back threads and handles once all work is done."""


class Executable(Protocol):
    """A lowered split, ready to run again and again."""

    def run(self, values: Mapping[str, int]) -> None:
        """Runs with these symbol values. Blocks until done, unless the backend has a queue of its
        own: then it may return as soon as the work is enqueued there.

        Raises DeviceError naming the node on failure, KeyboardInterrupt when interrupted."""


@runtime_checkable
class NativeRun(Protocol):
    """(optional) an executable that native threads run: it can be stopped and told how many."""

    @property
    def run_values(self) -> Callable[[Sequence[int]], bool]:
        """Runs with values in the order of the program's symbols; False: it was stopped."""

    @property
    def abort(self) -> Callable[[], None]:
        """From any thread: stops the run that is going on, or else the next one."""

    @property
    def clear_abort(self) -> Callable[[], None]:
        """Forgets an abort that no run has seen."""

    @property
    def barriers(self) -> int:
        """Times that the threads waited for each other in the last run."""

    def use_threads(self, n: int) -> None:
        """Threads of the runs from now on, at most those of the device; 0: all of them."""


@runtime_checkable
class RecordsSpans(Protocol):
    """(optional) an executable that can say when each thread worked on each of its steps."""

    def record_spans(self, on: bool) -> None:
        """Starts anew, or stops; costs nothing while stopped."""

    def spans(self) -> NDArray[np.int64]:
        """[step, thread, (begin, end, busy)] of the last run, steps as in `SplitSpec.steps`: when a
        thread began its first piece of a step and ended its last, by `time.perf_counter_ns`, and
        the nanoseconds that it spent on pieces; 0 where it had no part."""


class QueueSpan(NamedTuple):
    """Something that the queue of a device did, by `time.perf_counter_ns`."""

    kind: Literal["kernel", "to", "from", "within"]
    """A kernel, or a copy: to the device, from it, or within it."""
    name: str
    """Of the kernel; empty for copies."""
    step: int
    """Of a kernel: its step in `SplitSpec.steps`; else -1."""
    nbytes: int
    """Of a copy; 0 for kernels."""
    begin: int
    end: int


@runtime_checkable
class RecordsQueue(Protocol):
    """(optional) a backend with a queue of its own that can say when the device did what: calls
    that enqueue work say nothing about that."""

    name: str

    def record_queue(self, on: bool) -> None:
        """Starts, or stops; calls nest. Costs nothing while stopped. Waits for the device."""

    def recorded(self) -> Callable[[], list[QueueSpan]]:
        """What was enqueued since the last call. Calling the result waits until that is done and
        gives the spans in order; raises DeviceError. Nothing where recording is stopped."""


class Rules(Protocol):
    """What devices take, with or without one."""

    def supports_op(self, node: Tensor) -> Support:
        """Whether `node` can be run; reads metadata only."""


class Backend(Protocol):
    """A device as the planner and the executor see it. Highest priority first in a device list."""

    name: str
    """As in `--devices`, e.g. `cpu` or `opencl:0`."""
    kind: DeviceKind
    buffer_type: BufferType
    """Where the tensors that this backend computes live."""
    runs_stages: bool
    """(optional; default False) whether independent nodes run at the same time. Memory is then
    planned so that its reuse does not put one behind the other."""

    def supports_op(self, node: Tensor) -> Support:
        """Whether the backend can run `node`; reads metadata only."""

    def supports_buffer_type(self, buffer_type: BufferType) -> bool:
        """Whether kernels can read sources in `buffer_type` without a copy."""

    def offload_op(self, node: Tensor) -> bool:
        """(optional; default False) whether to run `node` here although its weights are on the
        host, e.g. because the batch is big."""

    def allocation_deps(self, nodes: Sequence[Tensor]) -> Sequence[tuple[Tensor, Tensor]]:
        """(optional; default none) of the nodes of one split: pairs of a tensor, and the node up to
        which its memory must stay its own."""

    rewrites: Sequence[str]
    """(optional; default none) names of the rewrites (`weft.graph.rewrite`) whose fused nodes the
    device has kernels for. They run after `RewritesSplits.optimize`."""

    def work_bytes(self, node: Tensor) -> int:
        """(optional; default 0) scratch bytes that `node` needs at its maxima, all threads."""

    def memory_limit(self) -> int | None:
        """(optional; default None: not known) bytes of its buffer type that plans may use."""

    def weight_layout(self, leaf: Tensor, uses: Sequence[Use]) -> WeightBufferType | None:
        """(optional; default None: as it is) the memory that a weight should be repacked into when
        a model is loaded, if these uses, all there are, read it there."""

    def make_queue(self) -> Queue | None:
        """(optional; default None: calls block until done) a queue of the device. A driver that
        runs several devices at the same time gives a thread to a backend without one."""

    def lower(self, program: Any, split: int, memories: Sequence[Memory]) -> Executable:
        """An executable for split number `split` of a `weft.program.Program`, whose buffer `i` is
        `memories[i]`."""


@runtime_checkable
class RewritesSplits(Protocol):
    """(optional) a backend that changes what it was given before memory is planned."""

    def optimize(self, nodes: Sequence[Tensor]) -> Sequence[Tensor]:
        """The nodes of one split, rewritten for this device: fused, reordered, or with steps of its
        own in between. Runs after placement. New nodes are fresh tensors; outputs of the graph must
        stay the same objects."""


@runtime_checkable
class UsesThreads(Protocol):
    """(optional) a backend whose kernels run in threads of this process."""

    target: str
    """The processor features that its kernels are compiled for, e.g. `avx2`."""
    n_threads: int
    """For a single token."""
    n_threads_batch: int
    """For several tokens at once."""


class BackendBase:
    """Defaults of the optional methods, and what most devices say of nodes and memory."""

    name: str
    buffer_type: BufferType
    runs_stages = False
    rewrites: Sequence[str] = ()

    def supports_op(self, node: Tensor) -> Support:
        """Views, leaves, and what `why_not` has nothing against."""
        try:
            why = None if node.op.is_view or node.op.name == "NONE" else self.why_not(node)
        except Exception as error:
            raise DeviceError(
                f"{self.name}: why_not of {node.op} {node.name}: {error!r}"
            ) from error
        return YES if why is None else Support(False, f"{node.op} on {self.name}: {why}")

    def why_not(self, node: Tensor) -> str | None:
        """(for `supports_op`) a sentence where there is no kernel for a node."""
        return None

    def supports_buffer_type(self, buffer_type: BufferType) -> bool:
        """Its own only."""
        return buffer_type is self.buffer_type

    def offload_op(self, node: Tensor) -> bool:
        """No offload."""
        return False

    def allocation_deps(self, nodes: Sequence[Tensor]) -> Sequence[tuple[Tensor, Tensor]]:
        """None."""
        return ()

    def work_bytes(self, node: Tensor) -> int:
        """No scratch."""
        return 0

    def memory_limit(self) -> int | None:
        """Not known."""
        return None

    def weight_layout(self, leaf: Tensor, uses: Sequence[Use]) -> WeightBufferType | None:
        """As it is."""
        return None

    def make_queue(self) -> Queue | None:
        """None: calls block until done."""
        return None
