"""`Scheduler`: graph after graph over several devices, with the reference's verbs.

    scheduler = Scheduler(["reference", "cpu"], n_copies=2)
    scheduler.reserve(worst_case_graph)
    for batch in batches:
        scheduler.reset()
        runs.append(scheduler.compute_async(graph, {"x": batch}))
    results = [run.outputs["y"] for run in runs]

A graph is placed, cut into splits, given memory, lowered, and run split by split. Each device works
through its splits in order; the bytes that splits touch decide which must wait for which
(`hazards`). With several copies of inputs and of tensors that cross devices, the next batch starts
while one runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from threading import Lock
from typing import Any, Literal

from numpy.typing import NDArray

from weft.backends.base import Backend
from weft.backends.memory import ReadsLater
from weft.compiler.lower import nodes_and_steps
from weft.compiler.pipeline import resolve_devices
from weft.errors import ProgramError, ScheduleError
from weft.execute.arena import ArenaPool
from weft.execute.bound import Moved
from weft.execute.devices import DeviceQueues, Run, Work
from weft.execute.graph_plans import GraphPlans
from weft.execute.hazards import tensor_access
from weft.execute.memory_plan import BestPlanner, MemoryPlanner, ReferencePlanner, SchedulerCounters
from weft.execute.split_access import SplitAccess
from weft.execute.values import checked_inputs, read_array, read_array_later
from weft.flags import FLAGS
from weft.graph.graph import Graph
from weft.graph.size import evaluate
from weft.graph.tensor import Tensor
from weft.options import require_choice
from weft.program import TensorSpec
from weft.schedule import PlannerState, Schedule
from weft.schedule.offload import OpOffloadLike, op_offload_for

EvalCallback = Callable[[Tensor, bool], bool]
"""`callback(node, ask)`. It is called with `ask` true and returns whether it wants to see `node`;
unwanted nodes run together. Once a wanted node is computed, it is called with `ask` false and
returns whether to continue. It may read tensors with `Scheduler.get`."""

AbortCallback = Callable[[], bool]
"""Returns whether to stop; it is called before each split and every few nodes within one."""

_NODES_BETWEEN_ABORTS = 16


class Scheduler:
    """The driver of a list of devices. One thread at a time may call it."""

    def __init__(
        self,
        devices: Sequence[str | Backend],
        n_copies: int = 1,
        op_offload: OpOffloadLike = True,
        *,
        policy: Literal["ggml"] = "ggml",
        memory: Literal["best", "ggml"] = "best",
        repack: bool = False,
        reuse: bool | None = None,
        **options: Any,
    ) -> None:
        """`devices` are names or backends, highest priority first, a CPU type last.

        `options` go to the cpu made from its name. `n_copies` is the number of batches that may be
        in flight. `op_offload` says which devices take ops whose weights are in host memory, and
        from which batch on (`weft.schedule.offload`). `policy`
        places nodes and `memory` plans bytes: `ggml` as the reference does, `best` smaller.
        `repack` brings weights of host memory (leaves with usage "weights") that only products read
        into the layout that the kernels read fastest, when their graph is lowered; they must not
        change after that. `reuse` keeps plans: a graph that equals an earlier one, built again or
        not, is not placed, planned or lowered again (default: unless WEFT_GRAPH_REUSE is 0).

        Raises ScheduleError for a list of devices or an option that is not possible."""
        if n_copies < 1:
            raise ScheduleError(f"is {n_copies}; it must be 1 or more", argument="n_copies")
        require_choice("policy", policy, ("ggml",), ScheduleError)
        require_choice("memory", memory, ("best", "ggml"), ScheduleError)
        self.backends: tuple[Backend, ...] = tuple(resolve_devices(devices, **options))
        self._state = PlannerState(n_copies)
        self._devices = DeviceQueues(self.backends)
        self._arenas = ArenaPool(self._before_memory_changes)
        planner = BestPlanner if memory == "best" else ReferencePlanner
        types = [b.buffer_type for b in self.backends]
        self._planner: MemoryPlanner = planner(types, self._arenas)
        self._graphs = GraphPlans(
            self._devices,
            self._state,
            self._planner,
            op_offload=op_offload_for(self.backends, op_offload),
            repack=repack,
            reuse=FLAGS.graph_reuse if reuse is None else reuse,
        )
        self._eval: EvalCallback | None = None
        self._abort: AbortCallback | None = None
        self._moved = Moved()
        self._counting = Lock()
        self._wrote_weights = False
        self._values: dict[str, int] = {}

    # ---- properties ------------------------------------------------------------------------------

    @property
    def n_copies(self) -> int:
        """The number of copies of each input, and of each tensor that crosses devices."""
        return self._state.n_copies

    @property
    def cur_copy(self) -> int:
        """The copy that the graph planned last uses."""
        return self._state.cur_copy

    @property
    def n_splits(self) -> int:
        """The number of splits of the graph planned last; 0 before the first."""
        current = self._graphs.current
        return 0 if current is None else len(current.planned.schedule.splits)

    @property
    def schedule(self) -> Schedule:
        """The placement of the graph planned last; `schedule.explain()` describes it in words."""
        return self._graphs.schedule

    @property
    def counters(self) -> SchedulerCounters:
        """The counters of its work so far."""
        return replace(self._planner.counters)

    @property
    def reserves(self) -> int:
        """The number of times that memory was planned."""
        return self._planner.counters.reserves

    @property
    def reallocs(self) -> int:
        """The number of graphs that did not fit the reserved memory; `counters.why` names the
        tensor that did not fit the last time."""
        return self._planner.counters.reallocs

    @property
    def moved(self) -> Moved:
        """The copies between memories so far."""
        return self._moved

    @property
    def copies(self) -> int:
        """The number of tensors copied between memories so far."""
        return self.moved.copies

    @property
    def copied_bytes(self) -> int:
        """Bytes copied between memories so far."""
        return self.moved.nbytes

    def buffer_size(self, backend: str | int | Backend) -> int:
        """Bytes of compute memory reserved for a backend; 0 where it shares an earlier one's."""
        return self._planner.sizes()[self._index(backend)]

    def set_tensor_backend(self, tensor: Tensor, backend: str | int | Backend) -> None:
        """Pins a tensor of the next graph to a backend, until `reset`."""
        if self._state.is_allocated:
            raise ScheduleError("a graph is allocated; call reset() before pinning tensors")
        self._state.assigned[tensor] = self._index(backend)

    def tensor_backend(self, tensor: Tensor) -> Backend | None:
        """The backend of a tensor of the graph planned last, or the one it is pinned to; else
        None."""
        index, current = self._state.assigned.get(tensor, -1), self._graphs.current
        if index < 0 and current is not None:
            index = current.planned.schedule.backend_of.get(current.to_planned(tensor), -1)
        return None if index < 0 else self.backends[index]

    def set_eval_callback(self, callback: EvalCallback | None) -> None:
        """Sets a callback that sees nodes as they are computed; None removes it.

        While there is one, runs are not asynchronous, and graphs are planned without fused nodes:
        set it before planning to see all nodes."""
        self._eval = callback
        self._graphs.watched = callback is not None

    def set_abort_callback(self, callback: AbortCallback | None) -> None:
        """Sets a callback that decides whether to stop; None removes it. While there is one, runs
        are not asynchronous."""
        self._abort = callback

    # ---- planning --------------------------------------------------------------------------------

    def reserve(self, graph: Graph) -> None:
        """Plans memory for a graph and grows the reserved memory; the graph is not allocated.

        Raises ScheduleError or UnsupportedOpError for a graph that cannot be placed,
        AllocationError for one that cannot be planned, OutOfMemoryError."""
        self._devices.ready()
        self.synchronize()
        self._state.is_allocated = False
        self._graphs.reserve(graph)
        self._state.reset()

    def reserve_size(self, graph: Graph) -> list[int]:
        """The bytes per backend that `reserve` would need; allocates nothing."""
        self._devices.ready()
        self._state.reset()
        self.synchronize()
        return self._graphs.measure(graph)

    def alloc(self, graph: Graph) -> None:
        """Places a graph and gives it memory, on the next copy; it can then run, until `reset`.

        The graph must not change afterwards. Raises as `reserve`, and ScheduleError when another
        graph is allocated."""
        self._devices.ready()
        if self._state.is_allocated:
            raise ScheduleError("a graph is allocated; call reset() before the next one")
        self._state.begin()
        self._graphs.alloc(graph)
        self._values = {}
        self._state.is_allocated = True

    def reset(self) -> None:
        """Drops the graph and pinned tensors. After a failure it starts again with new queues and
        arenas, and sends weights to their devices again."""
        self._state.reset()
        if self._devices.fault.error is not None:
            self._devices.restart()
            self._arenas.clear()

    def _before_memory_changes(self) -> None:
        self._devices.drain()
        self._graphs.unbind()

    # ---- running ---------------------------------------------------------------------------------

    def compute(
        self,
        graph: Graph,
        inputs: Mapping[str, Any] | None = None,
        symbols: Mapping[str, int] | None = None,
    ) -> bool:
        """Allocates the graph if none is, writes `inputs` by name, runs, and waits.

        Inputs that are not named keep what `set` wrote. Symbols are read from the shapes of inputs
        unless given. The work runs on this thread, so that Ctrl-C stops it. Returns False where a
        callback stopped the run. `get` reads results. Raises ProgramError for a wrong input or
        symbol, DeviceError naming split, device and node when a device fails; call `reset` then to
        continue."""
        self._devices.ready()
        self._devices.drain()
        return self._start(graph, inputs, symbols, inline=True, gather=False).wait()

    def compute_async(
        self,
        graph: Graph,
        inputs: Mapping[str, Any] | None = None,
        symbols: Mapping[str, int] | None = None,
    ) -> Run:
        """`compute` without the wait: it returns once inputs are read, and devices continue.

        The run collects the graph's outputs, because later runs may use their memory. Raises errors
        of the call itself; the run, `synchronize` and the next call report a device that fails."""
        self._devices.ready()
        watched = self._is_watched
        if watched:
            self._devices.drain()
        return self._start(graph, inputs, symbols, inline=watched, gather=True)

    def synchronize(self) -> None:
        """Waits until no device has work; raises DeviceError when one failed since `reset`.

        Without an allocated graph, the next one takes the first copy."""
        self._devices.drain()
        self._devices.fault.check()
        self._state.synchronize()

    def set(
        self, tensor: str | Tensor, data: Any, symbols: Mapping[str, int] | None = None
    ) -> None:
        """Writes an input of the allocated graph, given by name or as a tensor; `data` is an array
        of its shape."""
        name = tensor if isinstance(tensor, str) else tensor.name
        self._write({name: data}, symbols, self._graphs.bound(), some=True)

    def get(self, tensor: str | Tensor) -> NDArray[Any]:
        """The present value of a tensor of the allocated graph, in PyTorch order of sizes.

        `tensor` is an output by name, or any tensor that has memory (which later nodes may have
        used for other values). Waits for the runs that write it."""
        splits, index = self._graphs.bound(), self._graphs.index(tensor)
        program, memories = splits.program, splits.bound.memories
        spec = program.tensors[index]
        arrays: list[NDArray[Any]] = []
        self._devices.on_host(
            tensor_access(program, memories, [index], []),
            lambda: arrays.append(read_array(spec, memories[spec.buffer], self._values)),
        )
        self._devices.fault.check()
        return arrays[0]

    def outputs(self) -> dict[str, NDArray[Any]]:
        """Every output of the allocated graph, by name."""
        return {name: self.get(name) for name in self._graphs.bound().program.outputs}

    def close(self) -> None:
        """Waits for all work and gives back threads, queues and lowered graphs."""
        self._devices.close()
        self._graphs.unbind()

    def __enter__(self) -> Scheduler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(
        self,
        graph: Graph,
        inputs: Mapping[str, Any] | None,
        symbols: Mapping[str, int] | None,
        *,
        inline: bool,
        gather: bool,
    ) -> Run:
        if not self._state.is_allocated:
            self.alloc(graph)
        elif self._graphs.current is None or self._graphs.current.graph is not graph:
            raise ScheduleError("another graph is allocated; call reset() before this one")
        splits = self._graphs.bound()
        if splits.writes_weights or self._wrote_weights:
            # Graphs treat weights as constant and do not check for other users.
            self._devices.drain()
        self._wrote_weights = splits.writes_weights
        self._write(inputs or {}, symbols, splits)
        run = Run(self._devices.fault, dict(self._values))
        bound, values = splits.bound, run.values

        def copy(split: int, which: list[int], here: bool) -> None:
            moved = bound.copy_inputs(split, values, which)
            with self._counting:
                self._moved.add(moved)

        def compute(split: int) -> None:
            if self._is_watched:
                self._run_watched(splits, split, run)
            else:
                bound.run(split, values)

        for number in range(len(splits.device)):
            if not run.stopped:
                *copies, steps = splits.work(number, copy, compute)
                for work in copies:
                    self._devices.submit(work, inline=inline)
                run.add(self._devices.submit(steps, inline=inline))
        if gather and not run.stopped:
            self._gather(splits, run, inline)
        return run

    @property
    def _is_watched(self) -> bool:
        return self._eval is not None or self._abort is not None

    def _run_watched(self, splits: SplitAccess, number: int, run: Run) -> None:
        """Runs a split in pieces, each up to a node that the evaluation callback wants to see."""
        origin, current = splits.schedule.origin, self._graphs.current
        assert current is not None
        nodes = [
            (current.from_planned(origin.get(node, node)), end)
            for node, end in nodes_and_steps(splits.schedule.splits[number])
        ]
        at = begin = 0
        while at < len(nodes):
            first, wanted = at, False
            while at < len(nodes) and not wanted:
                wanted = self._eval is not None and self._eval(nodes[at][0], True)
                at += 1
                if self._abort is not None and at - first == _NODES_BETWEEN_ABORTS:
                    break
            if self._abort is not None and self._abort():
                run.stopped = True
                return
            node, end = nodes[at - 1]
            splits.bound.run_steps(number, begin, end, run.values)
            begin = end
            if wanted and self._eval is not None and not self._eval(node, False):
                run.stopped = True
                return

    def _gather(self, splits: SplitAccess, run: Run, inline: bool) -> None:
        """Reads the outputs, each in the queue of the device that computes it."""
        program, memories = splits.program, splits.bound.memories
        for name, index in program.outputs.items():
            spec = program.tensors[index]

            def read(name: str = name, spec: TensorSpec = spec) -> None:
                memory = memories[spec.buffer]
                types = (program.buffers[spec.buffer].buffer_type,)
                if isinstance(memory, ReadsLater) and self._devices.copier(types) >= 0:
                    run.put_later(name, read_array_later(spec, memory, run.values))
                else:
                    run.put(name, read_array(spec, memory, run.values))

            device, access = splits.output_access[name]
            run.add(self._devices.submit(Work(device, access, read, copies=True), inline=inline))

    def _write(
        self,
        arrays: Mapping[str, Any],
        symbols: Mapping[str, int] | None,
        splits: SplitAccess,
        some: bool = False,
    ) -> None:
        """Checks all inputs, then writes them; `some` allows symbols that come later."""
        program, bound = splits.program, splits.bound
        unknown = sorted(set(arrays) - set(program.inputs))
        if unknown:
            raise ProgramError(f"no input {unknown[0]!r}; the graph has {sorted(program.inputs)}")
        values, raw = checked_inputs(program, arrays, symbols or {}, self._values, some=some)
        self._values = values
        for name, data in raw.items():
            index = program.inputs[name]
            spec = program.tensors[index]

            def write(name: str = name, spec: TensorSpec = spec, data: Any = data) -> None:
                bound.write(name, spec, evaluate(spec.offset, values), data)

            # an earlier run may still read it
            access = tensor_access(program, bound.memories, [], [index])
            by = self._devices.copier((program.buffers[spec.buffer].buffer_type,))
            self._devices.submit(Work(by, access, write, copies=True), inline=True)
        self._devices.fault.check()

    def _index(self, backend: str | int | Backend) -> int:
        for i, candidate in enumerate(self.backends):
            if backend is candidate or backend == candidate.name or backend == i:
                return i
        names = ", ".join(b.name for b in self.backends)
        raise ScheduleError(f"no backend {backend!r}; there are {names}")
