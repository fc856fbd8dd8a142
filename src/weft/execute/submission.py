"""`Submission`: what a graph needs of the devices, given to them: inputs, splits, outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any

from numpy.typing import NDArray

from weft.backends.memory import ReadsLater
from weft.execute.bound import Moved, named_fault
from weft.execute.devices import DeviceQueues
from weft.execute.hazards import tensor_access
from weft.execute.lowered import LoweredGraph
from weft.execute.run import Run
from weft.execute.split_access import Copies
from weft.execute.values import read_array, read_array_later
from weft.graph.size import evaluate
from weft.graph.tensor import Tensor

__all__ = ["AbortCallback", "EvalCallback", "Submission"]

EvalCallback = Callable[[Tensor, bool], bool]
"""`callback(node, ask)`. It is called with `ask` true and returns whether it wants to see `node`;
unwanted nodes run together. Once a wanted node is computed, it is called with `ask` false and
returns whether to continue. It may read tensors with `Scheduler.get`."""

AbortCallback = Callable[[], bool]
"""Returns whether to stop; it is called before each split and every few nodes within one."""

_NODES_BETWEEN_ABORTS = 16


class Submission:
    """Gives the work of graphs to devices, and lets callbacks look on."""

    def __init__(self, devices: DeviceQueues, given: Callable[[Tensor], Tensor]) -> None:
        """`given`: the caller's tensor for a node of the graph that runs."""
        self.moved = Moved()
        """The copies between memories so far."""
        self.eval: EvalCallback | None = None
        self.abort: AbortCallback | None = None
        self._devices = devices
        self._given = given
        self._counting = Lock()

    @property
    def is_watched(self) -> bool:
        """Whether a callback looks on."""
        return self.eval is not None or self.abort is not None

    def write(
        self, lowered: LoweredGraph, arrays: Mapping[str, NDArray[Any]], values: Mapping[str, int]
    ) -> None:
        """Writes checked inputs, by name; `values`: of the symbols."""
        program, memories = lowered.program, lowered.bound.memories
        for name, data in arrays.items():
            index = program.inputs[name]
            spec = program.tensors[index]

            def write(name: str = name, spec: Any = spec, data: Any = data) -> None:
                try:
                    memories[spec.buffer].write(evaluate(spec.offset, values), data)
                except Exception as error:
                    where = program.buffers[spec.buffer].buffer_type.name
                    raise named_fault(f"input {name} to {where} memory", error) from error

            # an earlier run may still read it
            access = tensor_access(program, memories, [], [index])
            by = self._devices.copier((program.buffers[spec.buffer].buffer_type,))
            if by < 0:
                self._devices.on_host(access, write)
            else:
                self._devices.submit(by, access, write, inline=True, copies=True)

    def run_split(self, lowered: LoweredGraph, number: int, run: Run, inline: bool) -> None:
        """Copies what split `number` needs to its device, and runs it there."""
        bound, values, device = lowered.bound, run.values, lowered.device[number]
        at_once, later = lowered.host_copies[number], lowered.copies[number]

        def copy(which: list[int]) -> None:
            self._count(bound.copy_inputs(number, values, which))

        def work() -> None:
            if not self.is_watched:
                bound.run(number, values)
            else:
                self._run_watched(lowered, number, run)

        if at_once.which:
            # The user may overwrite the inputs as soon as this returns.
            by = self._devices.copier(at_once.buffer_types)
            if by < 0:
                self._devices.on_host(at_once.access, lambda: copy(at_once.which))
            else:
                self._copy_beside(by, at_once, lambda: copy(at_once.which), inline)
        if later.which:
            # apart from the split, so that the copied bytes can be overwritten while the split runs
            self._copy_beside(device, later, lambda: copy(later.which), inline)
        run.add(self._devices.submit(device, lowered.access[number], work, inline=inline))

    def _copy_beside(
        self, device: int, copies: Copies, work: Callable[[], None], inline: bool
    ) -> None:
        beside = copies.buffer_types is not None
        self._devices.submit(device, copies.access, work, inline=inline, copies=beside)

    def gather(self, lowered: LoweredGraph, run: Run, inline: bool) -> None:
        """Reads the outputs, each in the queue of the device that computes it."""
        program, memories = lowered.program, lowered.bound.memories
        for name, index in program.outputs.items():
            spec = program.tensors[index]

            def read(name: str = name, spec: Any = spec) -> None:
                memory = memories[spec.buffer]
                types = (program.buffers[spec.buffer].buffer_type,)
                if isinstance(memory, ReadsLater) and self._devices.copier(types) >= 0:
                    run.put_later(name, read_array_later(spec, memory, run.values))
                else:
                    run.put(name, read_array(spec, memory, run.values))

            device, access = lowered.output_access[name]
            run.add(self._devices.submit(device, access, read, inline=inline, copies=True))

    def _run_watched(self, lowered: LoweredGraph, number: int, run: Run) -> None:
        """Runs a split in pieces, each up to a node that the evaluation callback wants to see."""
        nodes = lowered.nodes[number]
        at = begin = 0
        while at < len(nodes):
            first, wanted = at, False
            while at < len(nodes) and not wanted:
                wanted = self.eval is not None and self.eval(self._given(nodes[at][0]), True)
                at += 1
                if self.abort is not None and at - first == _NODES_BETWEEN_ABORTS:
                    break
            if self.abort is not None and self.abort():
                run.stopped = True
                return
            node, end = nodes[at - 1]
            lowered.bound.run_steps(number, begin, end, run.values)
            begin = end
            if wanted and self.eval is not None and not self.eval(self._given(node), False):
                run.stopped = True
                return

    def _count(self, moved: Moved) -> None:
        with self._counting:
            self.moved.add(moved)
