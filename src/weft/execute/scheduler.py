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
from dataclasses import replace
from threading import Lock
from types import TracebackType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from weft.backends.base import Backend
from weft.compiler.pipeline import resolve_devices
from weft.errors import ProgramError, ScheduleError
from weft.execute.arena import ArenaPool
from weft.execute.bound import Moved, named_fault
from weft.execute.devices import DeviceQueues
from weft.execute.graph_plans import GraphPlans, SchedulerCounters
from weft.execute.hazards import tensor_access
from weft.execute.lowered import LoweredGraph
from weft.execute.memory_plan import BestPlanner, MemoryPlanner, ReferencePlanner
from weft.execute.run import Run
from weft.execute.values import check_values, checked, read_array, symbol_values
from weft.flags import FLAGS
from weft.graph.graph import Graph
from weft.graph.size import evaluate
from weft.graph.tensor import Tensor
from weft.options import require_choice
from weft.schedule import PlannerState, Schedule

__all__ = ["AbortCallback", "EvalCallback", "Scheduler"]

EvalCallback = Callable[[Tensor, bool], bool]
"""`callback(node, ask)`. First with `ask` true: whether it wants to see `node`; the nodes that it
does not want run together. Then, once a wanted node is computed, with `ask` false: whether to go
on. It may read tensors with `Scheduler.get`."""

AbortCallback = Callable[[], bool]
"""Whether to stop; called before each split and every few nodes within one."""

_NODES_BETWEEN_ABORTS = 16


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
        reuse: bool | None = None,
        **options: Any,
    ) -> None:
        """`devices`: names or backends, highest priority first, a CPU type last; `options` go to
        the cpu made from its name. `n_copies`: how many batches may be in flight. `op_offload`: a
        device may ask for ops whose weights are in host memory. `policy` places nodes, `memory`
        plans bytes: `ggml` as the reference does, `best` smaller. `repack`: weights of host memory
        (leaves with usage "weights") that only products read are brought into the layout that the
        kernels like best when their graph is lowered; nobody may change them after that. `reuse`:
        a graph that is the same as one before, built anew or not, is not placed, planned or lowered
        again (default: unless WEFT_GRAPH_REUSE is 0).

        Raises ScheduleError for a list of devices or an option that cannot be."""
        if n_copies < 1:
            raise ScheduleError(f"n_copies is {n_copies}; it must be 1 or more")
        require_choice("policy", policy, ("ggml",), ScheduleError)
        require_choice("memory", memory, ("best", "ggml"), ScheduleError)
        self.backends: tuple[Backend, ...] = tuple(resolve_devices(devices, **options))
        self.op_offload = op_offload
        self.moved = Moved()
        """What was copied between memories so far."""
        self._counting = Lock()
        self._state = PlannerState(n_copies)
        self._devices = DeviceQueues(self.backends)
        self._arenas = ArenaPool(self._before_memory_changes)
        planner = BestPlanner if memory == "best" else ReferencePlanner
        types = [b.buffer_type for b in self.backends]
        self._planner: MemoryPlanner = planner(types, self._arenas)
        self._graphs = GraphPlans(
            self.backends,
            self._state,
            self._planner,
            self._arenas,
            self._devices.has_queue,
            policy=policy,
            op_offload=op_offload,
            repack=repack,
            reuse=FLAGS.graph_reuse if reuse is None else reuse,
        )
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
        return self._graphs.n_splits

    @property
    def schedule(self) -> Schedule:
        """The placement of the graph planned last; `schedule.explain()` says it in words."""
        found = self._graphs.schedule
        if found is None:
            raise ScheduleError("no graph was planned yet: reserve(), alloc() or compute() one")
        return found

    @property
    def counters(self) -> SchedulerCounters:
        """What it has done so far, as it stands now."""
        return replace(self._graphs.counters)

    @property
    def reserves(self) -> int:
        """How often memory was planned."""
        return self._planner.reserves

    @property
    def reallocs(self) -> int:
        """How often a graph did not fit the memory that was reserved; `counters.why` says which
        tensor it was the last time."""
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
        if index < 0:
            index = self._graphs.backend_of(tensor)
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
        self._graphs.reserve(graph, self._watched)
        self._forget_graph()

    def reserve_size(self, graph: Graph) -> list[int]:
        """Bytes per backend that `reserve` would need, without allocating anything."""
        self._devices.ready()
        self._forget_graph()
        self.synchronize()
        return self._graphs.measure(graph, self._watched)

    def alloc(self, graph: Graph) -> None:
        """Places a graph and gives it memory, on the next copy; it can then be run, until `reset`.

        The graph must not be changed afterwards. Raises as `reserve`, and ScheduleError when
        another graph is allocated."""
        self._devices.ready()
        if self._state.is_allocated:
            raise ScheduleError("a graph is allocated; call reset() before the next one")
        self._state.begin()
        self._graphs.alloc(graph, self._watched)
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
            self._graphs.clear()

    def _forget_graph(self) -> None:
        self._state.reset()
        self._graphs.forget_graph()

    @property
    def _watched(self) -> bool:
        return self._eval is not None

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
        self._write({name: np.asarray(data)}, symbols or {}, self._graphs.lowered(), some=True)

    def get(self, tensor: str | Tensor) -> NDArray[Any]:
        """What a tensor of the allocated graph holds now, in PyTorch order of sizes: an output by
        name, or any tensor that has memory (which later nodes may have used for other values).

        Waits for the runs that write it."""
        lowered = self._graphs.lowered()
        program, memories = lowered.program, lowered.bound.memories
        index = lowered.index(self._own(tensor))
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
        return {name: self.get(name) for name in self._graphs.lowered().program.outputs}

    def close(self) -> None:
        """Waits for all work and gives back threads, queues and lowered graphs."""
        self._devices.close()
        self._graphs.unbind()

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
        elif self._graphs.match is None or self._graphs.match.graph is not graph:
            raise ScheduleError("another graph is allocated; call reset() before this one")
        lowered = self._graphs.lowered()
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
                wanted = self._eval is not None and self._eval(self._theirs(nodes[at][0]), True)
                at += 1
                if self._abort is not None and at - first == _NODES_BETWEEN_ABORTS:
                    break
            if self._abort is not None and self._abort():
                run.stopped = True
                return
            node, end = nodes[at - 1]
            lowered.bound.run_steps(number, begin, end, run.values)
            begin = end
            if wanted and self._eval is not None and not self._eval(self._theirs(node), False):
                run.stopped = True
                return

    def _own(self, tensor: str | Tensor) -> str | Tensor:
        """What the program has for a tensor of the graph that is allocated."""
        match = self._graphs.match
        return tensor if match is None or isinstance(tensor, str) else match.to_known(tensor)

    def _theirs(self, node: Tensor) -> Tensor:
        """The tensor of the graph that is allocated, for a node of the program."""
        match = self._graphs.match
        return node if match is None else match.from_known(node)

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
