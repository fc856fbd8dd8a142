"""The protocol that a device fulfils: buffer types, memory, backends, executables.

A backend module is found by entry point (group `weft.backends`) and offers `describe()` and
`make()`, see `registry.py`. The docstring of an optional method says so and gives its default;
subclass `BackendBase` to get the defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from weft.backends.memory import BufferType, Memory, WeightBufferType
from weft.errors import DeviceError, GraphError
from weft.graph.host import HOST, HostParams
from weft.graph.node import batch_of
from weft.graph.rewrite.general import general_form
from weft.graph.tensor import Tensor
from weft.records import dataclass

DeviceKind = Literal["CPU", "GPU", "IGPU", "ACCEL"]


@dataclass(frozen=True, slots=True)
class Support:
    """Whether a device takes a node; a refusal has a sentence."""

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
    """The number of the tensor among the sources of the node."""


class Event(Protocol):
    """A point in a queue, reached when all work submitted before it is done."""

    def is_done(self) -> bool:
        """Whether the point is reached; never blocks."""

    def wait(self) -> None:
        """Blocks the caller until the point is reached."""


class Queue(Protocol):
    """The work of one device, done in the order in which it was submitted."""

    def submit(self, work: Callable[[], None]) -> Event:
        """Does `work` after all work submitted before; the event is reached when it is done.

        `work` calls `Executable.run` of this device, or reads its memory, and raises nothing. It
        may be called at once, on this thread, if a run only enqueues; or later, on a thread of the
        queue. A read then waits, in the calling thread, for the work submitted before it."""

    def wait_for(self, event: Event) -> None:
        """Makes work submitted from now on start after `event`, which may be of another queue."""

    def synchronize(self) -> None:
        """Blocks until all work is done; raises DeviceError if the device failed meanwhile."""

    def close(self) -> None:
        """Gives back threads and handles once all work is done."""


@runtime_checkable
class OrdersWork(Protocol):
    """(optional) a queue whose device and others come to an order without this process."""

    def orders(self, event: Event) -> bool:
        """Whether work submitted now starts after `event` of another queue by itself, so that
        nobody has to wait before submitting it."""


@runtime_checkable
class CopiesBeside(Protocol):
    """(optional) a queue of a device that copies while it computes."""

    @property
    def copies(self) -> Queue | None:
        """A queue of the same device for copies alone, which only events order with this one; None
        where the device has none."""


class Executable(Protocol):
    """A lowered split, ready to run again and again."""

    def run(self, values: Mapping[str, int]) -> None:
        """Runs with these symbol values.

        Blocks until done, unless the backend has a queue of its own: then it may return as soon as
        the work is enqueued there. Raises DeviceError naming the node on failure, KeyboardInterrupt
        when interrupted."""


@runtime_checkable
class NativeRun(Protocol):
    """(optional) an executable that native threads run; a caller can stop it and set its
    threads."""

    @property
    def run_values(self) -> Callable[[Sequence[int]], bool]:
        """Runs with values in the order of the program's symbols; returns False where it was
        stopped."""

    @property
    def abort(self) -> Callable[[], None]:
        """Stops the current run, or else the next one, from any thread."""

    @property
    def clear_abort(self) -> Callable[[], None]:
        """Cancels an abort that has stopped no run."""

    @property
    def barriers(self) -> int:
        """The number of times that the threads waited for each other in the last run."""

    def step_tasks(self) -> Sequence[int]:
        """How the last run shared out each step, as numbers (`weft.execute.tasks`)."""

    @property
    def scratch_bytes(self) -> int:
        """The bytes of scratch memory of all threads, which all programs of the device share."""

    def use_threads(self, n: int) -> None:
        """Sets the number of threads of later runs, at most the number that the device has; 0: all
        of them."""


@runtime_checkable
class StopsRuns(Protocol):
    """(optional) an executable whose runs are enqueued, and which can stop those."""

    def begin(self) -> None:
        """Leaves what was enqueued so far alone: `abort` stops later runs only."""

    def abort(self) -> None:
        """Stops the runs since `begin`, from any thread, and refuses others. What they would have
        written is undefined. Never waits, and raises nothing."""

    def clear_abort(self) -> None:
        """Runs again from now on; what was stopped remains so."""

    @property
    def is_stopped(self) -> bool:
        """Whether `abort` was called last, and not `clear_abort`."""


@runtime_checkable
class RecordsSpans(Protocol):
    """(optional) an executable that can record when each thread worked on each of its steps."""

    def record_spans(self, on: bool) -> None:
        """Starts recording afresh, or stops it; costs nothing while stopped."""

    def spans(self) -> NDArray[np.int64]:
        """[step, thread, (begin, end, busy)] of the last run, steps as in `SplitSpec.steps`.

        `begin` of a thread's first piece of a step and `end` of its last are times of
        `time.perf_counter_ns`; `busy` is the time in nanoseconds that it spent on pieces; all are 0
        where it had no part."""


class QueueSpan(NamedTuple):
    """A kernel or a copy in the queue of a device, with times of `time.perf_counter_ns`."""

    kind: Literal["kernel", "to", "from", "within"]
    """A kernel, or a copy: to the device, from it, or within it."""
    name: str
    """The name of the kernel; empty for copies."""
    step: int
    """The step of a kernel in `SplitSpec.steps`; -1 for copies."""
    nbytes: int
    """The bytes of a copy; 0 for kernels."""
    begin: int
    end: int


@runtime_checkable
class RecordsQueue(Protocol):
    """(optional) a backend with a queue of its own that can record the device's times.

    Calls that enqueue work do not know them."""

    name: str

    def record_queue(self, on: bool) -> None:
        """Starts recording, or stops it; calls nest. Costs nothing while stopped. Waits for the
        device."""

    def recorded(self) -> Callable[[], list[QueueSpan]]:
        """The spans of work enqueued since the last call, as a function.

        Calling the function waits until that work is done and returns its spans in order; it raises
        DeviceError. There are none while recording is stopped."""


@runtime_checkable
class MayLackTimes(Protocol):
    """(optional) a backend that records queues where its device tells times."""

    @property
    def why_untimed(self) -> str:
        """Why this device tells none; empty where it does."""


@runtime_checkable
class HasOtherClock(Protocol):
    """(optional) a backend whose times come from another machine's clock and are converted to this
    machine's clock."""

    @property
    def clock_error(self) -> float:
        """Seconds by which they may be shifted."""


class Rules(Protocol):
    """The nodes that devices take, whether or not the machine has such a device."""

    def supports_op(self, node: Tensor) -> Support:
        """Whether a device can run `node`; reads metadata only."""


class Backend(Protocol):
    """A device as the planner and the executor see it."""

    name: str
    """The name in `--devices`, e.g. `cpu` or `opencl:0`."""
    kind: DeviceKind
    buffer_type: BufferType
    """The memory of the tensors that this backend computes."""
    cells_step: int
    """(optional; default 1) attention reads a multiple of this number of cells of a cache: with 1,
    a token at a time makes each run's sizes differ from the last one's, and launches are made
    again."""
    runs_stages: bool
    """(optional; default False) independent nodes run at the same time. Memory is then planned so
    that its reuse does not make one wait for the other."""

    def supports_op(self, node: Tensor) -> Support:
        """Whether the backend can run `node`; reads metadata only."""

    def supports_buffer_type(self, buffer_type: BufferType) -> bool:
        """Whether kernels can read sources in `buffer_type` without a copy."""

    def offload_op(self, node: Tensor) -> bool:
        """(optional; default False) whether to run `node` here although its weights are on the
        host, e.g. because the batch is big."""

    def offload_batch(self, node: Tensor) -> int:
        """(optional; default: the columns of products, 0 for other ops) the batch of `node` that
        callers compare with a least batch of their own; 0: the op is never asked for."""

    def allocation_deps(self, nodes: Sequence[Tensor]) -> Sequence[tuple[Tensor, Tensor]]:
        """(optional; default none) tensors of a split that must keep their memory for longer.

        Each pair is a tensor, and the last node until which its memory must stay its own."""

    rewrites: Sequence[str]
    """(optional; default none) names of the rewrites (`weft.graph.rewrite`) whose fused nodes the
    device has kernels for. They run after `RewritesSplits.optimize`."""

    generalizes: Collection[str]
    """(optional; default none) names of ops that the device has no kernels for and runs in their
    general form (`weft.graph.rewrite.general`). `supports_op` answers for them, too; they are
    replaced after `optimize` and the rewrites."""

    def work_bytes(self, node: Tensor) -> int:
        """(optional; default 0) the scratch bytes that `node` needs at its maxima, over all
        threads."""

    def memory_limit(self) -> int | None:
        """(optional; default None: unknown) the bytes of its buffer type that plans may use."""

    def weight_layout(self, leaf: Tensor, uses: Sequence[Use]) -> WeightBufferType | None:
        """(optional; default None: unchanged) the memory that a weight should be repacked into on
        loading.

        `uses` are all uses of the weight, which will then read it there."""

    def make_queue(self) -> Queue | None:
        """(optional; default None: calls block until done) a queue of the device.

        A driver that runs several devices at the same time gives a thread to a backend without
        one."""

    def lower(self, program: Any, split: int, memories: Sequence[Memory]) -> Executable:
        """An executable for split number `split` of a `weft.program.Program`, whose buffer `i` is
        `memories[i]`."""


@runtime_checkable
class RewritesSplits(Protocol):
    """(optional) a backend that changes the nodes of its splits before memory is planned."""

    def optimize(self, nodes: Sequence[Tensor]) -> Sequence[Tensor]:
        """The nodes of one split, rewritten for this device: fused, reordered, or with steps of its
        own in between.

        It runs after placement. New nodes are fresh tensors; outputs of the graph must stay the
        same objects."""


@runtime_checkable
class IsMeasuredAs(Protocol):
    """(optional) a backend whose speed a machine profile has under another name."""

    measured_as: str
    """The device of the profile."""


@runtime_checkable
class OnMachine(Protocol):
    """(optional) a backend whose device belongs to another machine."""

    machine: Any
    """The connection to it."""


@runtime_checkable
class UsesThreads(Protocol):
    """(optional) a backend whose kernels run in threads of this process."""

    target: str
    """The processor features that its kernels are compiled for, e.g. `avx2`."""
    n_threads: int
    """The number of threads for a single token."""
    n_threads_batch: int
    """The number of threads for several tokens at once."""


def why_not_general(
    node: Tensor, ops: Collection[str], why_not: Callable[[Tensor], str | None]
) -> str | None:
    """The reason of `why_not` against a node; for a node of one of `ops`, against its general
    form."""
    if node.op is HOST:
        assert isinstance(node.params, HostParams)
        function = node.params.function
        return f"{function}: {function.why or 'a function of the host'}"
    if node.op.name not in ops:
        return why_not(node)
    try:
        form = general_form(node, ops)
    except GraphError as error:
        return str(error)
    for part in form:
        why = why_not(part)
        if why is not None:
            return f"as {part.op}: {why}"
    return None


class BackendBase:
    """Defaults of the optional methods, and rules for nodes and memory that suit most devices."""

    name: str
    buffer_type: BufferType
    cells_step = 1
    runs_stages = False
    rewrites: Sequence[str] = ()
    generalizes: Collection[str] = ()

    def supports_op(self, node: Tensor) -> Support:
        """Supports views, leaves, and every node to which `why_not` has no objection; of an op that
        the device generalizes, it asks about the general form."""
        try:
            why = why_not_general(node, self.generalizes, self._why_not)
        except Exception as error:
            raise DeviceError(
                f"{self.name}: why_not of {node.op} {node.name}: {error!r}"
            ) from error
        return YES if why is None else Support(False, f"{node.op} on {self.name}: {why}")

    def _why_not(self, node: Tensor) -> str | None:
        return None if node.op.is_view or node.op.name == "NONE" else self.why_not(node)

    def why_not(self, node: Tensor) -> str | None:
        """(for `supports_op`) a sentence where the device has no kernel for a node; else None."""
        return None

    def supports_buffer_type(self, buffer_type: BufferType) -> bool:
        """Supports its own buffer type only."""
        return buffer_type is self.buffer_type

    def offload_op(self, node: Tensor) -> bool:
        """Never asks for a node."""
        return False

    def offload_batch(self, node: Tensor) -> int:
        """Counts the columns of products."""
        return batch_of(node) if node.op.name in ("MUL_MAT", "MUL_MAT_ID") else 0

    def allocation_deps(self, nodes: Sequence[Tensor]) -> Sequence[tuple[Tensor, Tensor]]:
        """Keeps no tensor for longer."""
        return ()

    def work_bytes(self, node: Tensor) -> int:
        """Needs no scratch memory."""
        return 0

    def memory_limit(self) -> int | None:
        """Knows no limit."""
        return None

    def weight_layout(self, leaf: Tensor, uses: Sequence[Use]) -> WeightBufferType | None:
        """Leaves weights as they are."""
        return None

    def make_queue(self) -> Queue | None:
        """Has no queue, as calls block until done."""
        return None
