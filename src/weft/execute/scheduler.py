"""`Scheduler`: graph after graph over several devices, with the reference's verbs.

    scheduler = Scheduler(["reference", "cpu"], n_copies=2)
    scheduler.reserve(worst_case_graph)
    for batch in batches:
        scheduler.reset()
        runs.append(scheduler.compute_async(graph, {"x": batch}))
    results = [run.outputs["y"] for run in runs]

A graph is placed, cut into splits, given memory, lowered, and run split by split. Each device works
through its splits in order; what must wait for what follows from the bytes they touch (`hazards`).
With several copies of inputs and of what crosses, the next batch starts while one runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from types import TracebackType
from typing import Any, Literal
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from weft.backends.base import Backend
from weft.compiler.pipeline import Plan, repacked, resolve_devices
from weft.errors import ProgramError, ScheduleError
from weft.execute.arena import ArenaPool
from weft.execute.bound import Moved, named_fault
from weft.execute.devices import DeviceQueues
from weft.execute.hazards import tensor_access
from weft.execute.lowered import LoweredGraph
from weft.execute.memory_plan import BestPlanner, MemoryPlanner, ReferencePlanner
from weft.execute.run import Run
from weft.execute.values import check_values, checked, read_array, symbol_values
from weft.graph.check import check_graph
from weft.graph.graph import Graph
from weft.graph.size import evaluate
from weft.graph.tensor import Tensor
from weft.schedule import PlannerState, Schedule, optimize_splits, schedule

__all__ = ["AbortCallback", "EvalCallback", "Scheduler"]

EvalCallback = Callable[[Tensor, bool], bool]
"""`callback(node, ask)`. First with `ask` true: whether it wants to see `node`; the nodes that it
does not want run together. Then, once a wanted node is computed, with `ask` false: whether to go
on. It may read tensors with `Scheduler.get`."""

AbortCallback = Callable[[], bool]
"""Whether to stop; called before each split and every few nodes within one."""

_NODES_BETWEEN_ABORTS = 16
_KEPT = 32


class Scheduler:
    """The driver of a list of devices. One thread at a time may call it."""

    def __init__(
        self,
        devices: Sequence[str | Backend],
        n_copies: int = 1,
        op_offload: bool = True,
        *,
        policy: Literal["ggml"] = "ggml",
        memory: Literal["best", "ggml"] = "best",
        repack: bool = False,
        **options: Any,
    ) -> None:
        """`devices`: names or backends, highest priority first, a CPU type last; `options` go to
        the cpu made from its name. `n_copies`: how many batches may be in flight. `op_offload`: a
        device may ask for ops whose weights are in host memory. `policy` places nodes, `memory`
        plans bytes: `ggml` as the reference does, `best` smaller. `repack`: weights of host memory
        (leaves with usage "weights") that only products read are brought into the layout that the
        kernels like best when their graph is lowered; nobody may change them after that.

        Raises ScheduleError for a list of devices or an option that cannot be."""
        if n_copies < 1:
            raise ScheduleError(f"n_copies is {n_copies}; it must be 1 or more")
        if policy != "ggml" or memory not in ("best", "ggml"):
            raise ScheduleError(
                f"unknown policy {policy!r} or memory {memory!r}; known policies: 'ggml', memory "
                "plans: 'best', 'ggml'"
            )
        self.backends: tuple[Backend, ...] = tuple(resolve_devices(devices, **options))
        self.op_offload = op_offload
        self.moved = Moved()
        """What was copied between memories so far."""
        self._counting = Lock()
        self._policy: Literal["ggml"] = policy
        self._repack = repack
        self._state = PlannerState(n_copies)
        self._devices = DeviceQueues(self.backends)
        self._arenas = ArenaPool(self._before_memory_changes)
        planner = BestPlanner if memory == "best" else ReferencePlanner
        types = [b.buffer_type for b in self.backends]
        self._planner: MemoryPlanner = planner(types, self._arenas)
        self._schedules: dict[object, Schedule] = {}
        self._lowered: dict[tuple[int, int], LoweredGraph] = {}
        self._checked: WeakSet[Graph] = WeakSet()
        self._schedule: Schedule | None = None
        self._plan: Plan | None = None
        self._current: LoweredGraph | None = None
        self._wrote_weights = False
        self._values: dict[str, int] = {}
        self._eval: EvalCallback | None = None
        self._abort: AbortCallback | None = None

    # ---- what it is ------------------------------------------------------------------------------

    @property
    def n_copies(self) -> int:
        """Copies of each input, and of each tensor that crosses devices."""
        return self._state.n_copies

    @property
    def cur_copy(self) -> int:
        """The copy that the graph planned last uses."""
        return self._state.cur_copy

    @property
    def n_splits(self) -> int:
        """Splits of the graph planned last; 0 before the first."""
        return 0 if self._schedule is None else len(self._schedule.splits)

    @property
    def schedule(self) -> Schedule:
        """The placement of the graph planned last; `schedule.explain()` says it in words."""
        if self._schedule is None:
            raise ScheduleError("no graph was planned yet: reserve(), alloc() or compute() one")
        return self._schedule

    @property
    def reserves(self) -> int:
        """How often memory was planned."""
        return self._planner.reserves

    @property
    def reallocs(self) -> int:
        """How often a graph did not fit the memory that was reserved."""
        return self._planner.reallocs

    @property
    def copies(self) -> int:
        """Tensors copied between memories so far."""
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
        """Where a tensor of the graph planned last is, or is pinned to; None: nowhere."""
        index = self._state.assigned.get(tensor, -1)
        if index < 0 and self._schedule is not None:
            index = self._schedule.backend_of.get(tensor, -1)
        return None if index < 0 else self.backends[index]

    def set_eval_callback(self, callback: EvalCallback | None) -> None:
        """Has `callback` look at nodes as they are computed; None: no more. While there is one,
        runs are not asynchronous, and graphs are planned without fused nodes: set it before
        planning to see them all."""
        self._eval = callback

    def set_abort_callback(self, callback: AbortCallback | None) -> None:
        """Has `callback` asked whether to stop; None: no more. While there is one, runs are not
        asynchronous."""
        self._abort = callback

    # ---- planning --------------------------------------------------------------------------------

    def reserve(self, graph: Graph) -> None:
        """Plans memory for a graph and grows what is reserved; forgets the graph.

        Raises ScheduleError or UnsupportedOpError for a graph that cannot be placed,
        AllocationError for one that cannot be planned, OutOfMemoryError."""
        self._devices.ready()
        self.synchronize()
        self._planner.reserve(self._place(graph))
        self._forget_graph()

    def reserve_size(self, graph: Graph) -> list[int]:
        """Bytes per backend that `reserve` would need, without allocating anything."""
        self._devices.ready()
        self._forget_graph()
        self.synchronize()
        return self._planner.measure(self._place(graph))

    def alloc(self, graph: Graph) -> None:
        """Places a graph and gives it memory, on the next copy; it can then be run, until `reset`.

        The graph must not be changed afterwards. Raises as `reserve`, and ScheduleError when
        another graph is allocated."""
        self._devices.ready()
        if self._state.is_allocated:
            raise ScheduleError("a graph is allocated; call reset() before the next one")
        self._state.begin()
        placed = self._place(graph)
        changed = self._state.backends_changed(placed)
        self._plan = Plan(placed, self._planner.alloc(placed, changed))
        self._current = None
        self._values = {}
        self._state.is_allocated = True

    def reset(self) -> None:
        """Forgets the graph and pinned tensors. After a failure it starts anew: new queues, fresh
        arenas, weights sent to their devices again."""
        self._forget_graph()
        if self._devices.fault.error is not None:
            self._devices.restart()
            self._arenas.clear()
            self._planner.forget()
            self._schedules.clear()

    def _forget_graph(self) -> None:
        self._state.reset()
        self._current = self._plan = None

    def _place(self, graph: Graph) -> Schedule:
        state = self._state
        pinned = tuple((id(t), b) for t, b in state.assigned.items())
        # the same graph under the same conditions is placed the same way
        size = (len(graph.nodes), len(graph.leaves))
        watched = self._eval is not None
        key = (id(graph), size, pinned, state.cur_copy, state.first_backend, watched)
        placed = self._schedules.get(key)
        if placed is None:
            placed = optimize_splits(
                schedule(
                    graph,
                    self.backends,
                    self._policy,
                    op_offload=self.op_offload,
                    n_copies=state.n_copies,
                    cur_copy=state.cur_copy,
                    assign=state.assigned,
                    first_backend=state.first_backend,
                ),
                () if watched else None,  # a callback may ask for any node
            )
            _make_room(self._schedules)
            self._schedules[key] = placed
        state.record(placed)
        self._schedule = placed
        return placed

    def _lower(self) -> LoweredGraph:
        """The allocated graph, lowered; kept while its plan and memory stay."""
        if self._plan is None:
            raise ScheduleError("no graph is allocated; call alloc() or compute() first")
        if self._current is None:
            key = (id(self._plan.schedule), id(self._plan.allocation))
            found = self._lowered.get(key)
            if found is None:
                self._check(self._plan.schedule.graph)
                plan = repacked([self._plan])[0] if self._repack else self._plan
                found = LoweredGraph(plan, self._arenas, self._devices.has_queue)
                _make_room(self._lowered)
                self._lowered[key] = found
            self._current = found
        return self._current

    def _check(self, graph: Graph) -> None:
        """Raises GraphError on a graph that is not legal; looks at each once."""
        if graph not in self._checked:
            check_graph(graph)
            self._checked.add(graph)

    def _before_memory_changes(self) -> None:
        self._devices.drain()
        self._lowered.clear()
        self._current = None

    # ---- running ---------------------------------------------------------------------------------

    def compute(
        self,
        graph: Graph,
        inputs: Mapping[str, Any] | None = None,
        symbols: Mapping[str, int] | None = None,
    ) -> bool:
        """Allocates the graph if none is, writes `inputs` by name, runs, and waits.

        Inputs that are not named keep what `set` wrote. Symbols are read from the shapes of inputs
        unless given. The work is done on this thread, so that Ctrl-C stops it. False: a callback
        stopped the run. `get` reads results.

        Raises ProgramError for a wrong input or symbol; DeviceError naming split, device and node
        when a device fails: call `reset` and go on."""
        self._devices.ready()
        self._devices.drain()
        return self._start(graph, inputs, symbols, inline=True, gather=False).wait()

    def compute_async(
        self,
        graph: Graph,
        inputs: Mapping[str, Any] | None = None,
        symbols: Mapping[str, int] | None = None,
    ) -> Run:
        """`compute` without the wait: inputs are read before it returns, devices work on.

        The run gathers the graph's outputs; later runs may use the memory they were in. Raises
        what is wrong with the call; a device that fails is told by the run, by `synchronize`, and
        by the next call."""
        self._devices.ready()
        watched = self._eval is not None or self._abort is not None
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
        """Writes an input of the allocated graph, by name or as a tensor: an array of its shape."""
        name = tensor if isinstance(tensor, str) else tensor.name
        self._write({name: np.asarray(data)}, symbols or {}, self._lower(), some=True)

    def get(self, tensor: str | Tensor) -> NDArray[Any]:
        """What a tensor of the allocated graph holds now, in PyTorch order of sizes: an output by
        name, or any tensor that has memory (which later nodes may have used for other values).

        Waits for the runs that write it."""
        lowered = self._lower()
        program, memories = lowered.program, lowered.bound.memories
        index = lowered.index(tensor)
        spec = program.tensors[index]
        found: list[NDArray[Any]] = []
        self._devices.on_host(
            tensor_access(program, memories, [index], []),
            lambda: found.append(read_array(spec, memories[spec.buffer], self._values)),
        )
        self._devices.fault.check()
        return found[0]

    def outputs(self) -> dict[str, NDArray[Any]]:
        """Every output of the allocated graph, by name."""
        return {name: self.get(name) for name in self._lower().program.outputs}

    def close(self) -> None:
        """Waits for all work and gives back threads, queues and lowered graphs."""
        self._devices.close()
        self._lowered.clear()
        self._current = None

    def __enter__(self) -> Scheduler:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
        elif self.schedule.graph is not graph:
            raise ScheduleError("another graph is allocated; call reset() before this one")
        lowered = self._lower()
        if lowered.writes_weights or self._wrote_weights:
            # graphs take weights for constant and do not look who else touches them
            self._devices.drain()
        self._wrote_weights = lowered.writes_weights
        arrays = {name: np.asarray(value) for name, value in (inputs or {}).items()}
        self._write(arrays, symbols or {}, lowered)
        run = Run(self._devices.fault, dict(self._values))
        for number in range(len(lowered.program.splits)):
            if not run.stopped:
                self._submit_split(lowered, number, run, inline)
        if gather and not run.stopped:
            self._gather(lowered, run, inline)
        return run

    def _submit_split(self, lowered: LoweredGraph, number: int, run: Run, inline: bool) -> None:
        bound, values, device = lowered.bound, run.values, lowered.device[number]
        at_once, later = lowered.host_copies[number], lowered.copies[number]

        def copy(which: list[int]) -> None:
            self._count(bound.copy_inputs(number, values, which))

        def work() -> None:
            if self._eval is None and self._abort is None:
                bound.run(number, values)
            else:
                self._run_watched(lowered, number, run)

        if at_once.which:
            # what the user wrote may be overwritten as soon as this returns
            self._devices.on_host(at_once.access, lambda: copy(at_once.which))
        if later.which:
            # apart from the split, so that what is copied can be overwritten while the split runs
            self._devices.submit(device, later.access, lambda: copy(later.which), inline=inline)
        run.add(self._devices.submit(device, lowered.access[number], work, inline=inline))

    def _gather(self, lowered: LoweredGraph, run: Run, inline: bool) -> None:
        """Reads the outputs, each by the queue of the device that computes it."""
        program, memories = lowered.program, lowered.bound.memories
        for name, index in program.outputs.items():
            spec = program.tensors[index]

            def read(name: str = name, spec: Any = spec) -> None:
                run.put(name, read_array(spec, memories[spec.buffer], run.values))

            device, access = lowered.output_access[name]
            run.add(self._devices.submit(device, access, read, inline=inline))

    def _run_watched(self, lowered: LoweredGraph, number: int, run: Run) -> None:
        """Runs a split in pieces, each up to a node that the evaluation callback wants to see."""
        nodes = lowered.nodes[number]
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
            lowered.bound.run_steps(number, begin, end, run.values)
            begin = end
            if wanted and self._eval is not None and not self._eval(node, False):
                run.stopped = True
                return

    def _count(self, moved: Moved) -> None:
        with self._counting:
            self.moved.add(moved)

    def _write(
        self,
        arrays: Mapping[str, NDArray[Any]],
        symbols: Mapping[str, int],
        lowered: LoweredGraph,
        some: bool = False,
    ) -> None:
        """Checks everything, then writes inputs; `some`: other symbols may come later."""
        program, memories = lowered.program, lowered.bound.memories
        unknown = sorted(set(arrays) - set(program.inputs))
        if unknown:
            raise ProgramError(f"no input {unknown[0]!r}; the graph has {sorted(program.inputs)}")
        values = {**self._values, **symbol_values(program, arrays, symbols)}
        check_values(program, values, some=some)
        raw = {}
        for name, array in arrays.items():
            raw[name] = checked(name, array, program.tensors[program.inputs[name]], values)
        self._values = values
        for name, data in raw.items():
            index = program.inputs[name]
            spec = program.tensors[index]

            def write(name: str = name, spec: Any = spec, data: Any = data) -> None:
                try:
                    memories[spec.buffer].write(evaluate(spec.offset, values), data)
                except Exception as error:
                    where = program.buffers[spec.buffer].buffer_type.name
                    raise named_fault(f"input {name} to {where} memory", error) from error

            # an earlier run may still read it
            self._devices.on_host(tensor_access(program, memories, [], [index]), write)
        self._devices.fault.check()

    def _index(self, backend: str | int | Backend) -> int:
        for i, known in enumerate(self.backends):
            if backend is known or backend == known.name or backend == i:
                return i
        names = ", ".join(b.name for b in self.backends)
        raise ScheduleError(f"no backend {backend!r}; there are {names}")


def _make_room(kept: dict[Any, Any]) -> None:
    """Drops the oldest entry of a full cache."""
    if len(kept) >= _KEPT:
        del kept[next(iter(kept))]
