"""A split as a recorded list of launches, over device memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.backends.kernels.driver import Kernel, KernelDriver
from weft.backends.kernels.launch import Call, Launch, Limits, Scratch, Slot, Table, View, pieces
from weft.backends.kernels.memory import DeviceMemory
from weft.backends.kernels.ops import Own, find_family
from weft.backends.kernels.planes import READERS
from weft.backends.memory import Memory
from weft.errors import DeviceError
from weft.graph.op import NONE
from weft.graph.size import Size, evaluate, symbols
from weft.program import Program, StepSpec, TensorSpec

__all__ = ["KernelExecutable"]

Ready = tuple[Any, ...]
"""A launch as `KernelDriver.launch` takes it."""


class _Step:
    """A step and its launches, which are made again only when a symbol they depend on changes."""

    __slots__ = (
        "bound", "description", "index", "kernels", "names", "number", "ready", "spec", "symbols",
    )  # fmt: skip

    def __init__(
        self, index: int, spec: StepSpec, names: tuple[str, ...], description: str
    ) -> None:
        self.index = index  # in `SplitSpec.steps`
        self.spec = spec
        self.symbols = names
        self.description = description
        self.number = -1
        self.bound: tuple[int, ...] | None = None
        self.ready: list[Ready] = []
        self.names: list[str] = []  # of their kernels
        # (number of the launch, file, defines, kernel) -> kernel
        self.kernels: dict[tuple[Any, ...], Kernel] = {}


class KernelExecutable:
    """Runs one split: a loop over prepared kernels. Returns once they are enqueued."""

    def __init__(
        self,
        driver: KernelDriver,
        own: Own,
        limits: Limits,
        program: Program,
        split: int,
        memories: Sequence[Memory],
    ) -> None:
        self._driver = driver
        self._own = own
        self._limits = limits
        self._tensors = program.tensors
        self._memories = memories
        self._steps = [
            self._step(i, spec)
            for i, spec in enumerate(program.splits[split].steps)
            if not spec.op.is_view and spec.op is not NONE
        ]
        self._fixed: dict[int, View] = {}  # of tensors without symbols
        self._views: dict[int, View] = {}  # of the others, with their present sizes
        self._launches: list[Ready] = []
        self._bound: tuple[int, ...] | None = None
        self._graphs = driver.has_graphs
        self._graph: Any = None
        self._in_graph: list[Ready] = []  # the launches that are in it
        self._has_run = False  # a graph is made for what runs again
        names = sorted({name for step in self._steps for name in step.symbols})
        self._symbols = tuple(names)
        if not names:
            self._bind({})

    @property
    def n_launches(self) -> int:
        """The number of kernels of a run, with the sizes of the last one."""
        return len(self._launches)

    def run(self, values: Mapping[str, int]) -> None:
        """Enqueues every kernel; raises DeviceError naming the step that was refused."""
        if self._symbols:
            try:
                key = tuple([values[name] for name in self._symbols])
            except KeyError as error:
                raise DeviceError(f"no value for symbol {error.args[0]}") from error
            if key != self._bound:
                self._bind(values)
        launch, record, launched = self._driver.launch, self._driver.record, 0
        try:
            if record is None and self._graphs and self._has_run:
                launched = len(self._launches)
                self._start_graph()
            elif record is None:
                for ready in self._launches:
                    launch(*ready)
                    launched += 1
            else:
                for step in self._steps:
                    for name, ready in zip(step.names, step.ready, strict=True):
                        record.kernel(step.index, name, launch(*ready))
                        launched += 1
            self._driver.flush()
            self._has_run = True
        except self._driver.errors as error:
            raise DeviceError(f"{self._driver.name}: {self._name(launched)}: {error}") from error

    def _start_graph(self) -> None:
        """Starts all launches as one graph.

        Where sizes have changed since the last run, only the launches that were made again are
        replaced in it."""
        launches, present = self._launches, self._in_graph
        if not launches:
            return
        if self._graph is None or len(present) != len(launches):
            self._graph = self._driver.graph(launches)
        elif present is not launches:
            for i, (old, new) in enumerate(zip(present, launches, strict=True)):
                if old is not new:
                    self._graph.change(i, *new)
        self._in_graph = launches
        self._driver.start(self._graph)

    def _name(self, launch: int) -> str:
        """The step that a launch belongs to."""
        for step in self._steps:
            if launch < len(step.ready):
                return step.description
            launch -= len(step.ready)
        return "starting the work"

    # ---- binding ---------------------------------------------------------------------------------

    def _step(self, index: int, spec: StepSpec) -> _Step:
        used = [i for i in (spec.dst, *spec.src) if i >= 0]
        names = {s.name for i in used for size in _sizes(self._tensors[i]) for s in symbols(size)}
        dst = self._tensors[spec.dst]
        sources = ", ".join(self._tensors[i].name or "?" for i in spec.src if i >= 0)
        return _Step(index, spec, tuple(sorted(names)), f"{spec.op}({sources}) -> {dst.name}")

    def _bind(self, values: Mapping[str, int]) -> None:
        self._bound = None
        self._views = {}
        for step in self._steps:
            symbol_values = tuple(values[name] for name in step.symbols)
            if symbol_values != step.bound:
                step.bound = None
                with self._driver.guarded(f"{self._driver.name}: {step.description}"):
                    step.ready = self._make(step, values)
                step.bound = symbol_values
        self._launches = [ready for step in self._steps for ready in step.ready]
        self._bound = tuple(values[name] for name in self._symbols)

    def _make(self, step: _Step, values: Mapping[str, int]) -> list[Ready]:
        spec = step.spec
        family = find_family(spec.op.name)
        if family is None:
            raise DeviceError(f"no kernel for {spec.op}; give it another device")
        dst = self._view(spec.dst, values)
        if 0 in dst.ne:
            step.names = []
            return []
        src = tuple(self._view(i, values) if i >= 0 else None for i in spec.src)
        for i, view in enumerate(src):
            if view is not None and view.layout != "rows" and (i or spec.op.name not in READERS):
                raise DeviceError(f"{spec.op} cannot read {view.name} in {view.layout}, only rows")
        call = Call(spec.op.name, dst, src, spec.params, self._limits)
        own = self._own.get(spec.op.name)
        launches = None if own is None else own(call)
        step.names = []
        return [
            part
            for i, launch in enumerate(family.launches(call) if launches is None else launches)
            for part in self._ready(step, i, launch)
        ]

    def _ready(self, step: _Step, index: int, launch: Launch) -> list[Ready]:
        key = (index, launch.file, launch.defines, launch.kernel)
        kernel = step.kernels.get(key)
        if kernel is None:
            kernel = self._driver.kernel(launch.file, launch.defines, launch.kernel)
            step.kernels[key] = kernel
        args: list[Any] = []
        for arg in launch.args:
            if isinstance(arg, View):
                args += [arg.buffer, arg.packed]
            else:
                args.append(self._argument(step, arg))
        kernel.bind(args)
        parts = [
            self._driver.prepared(kernel, grid, launch.group, start)
            for grid, start in pieces(launch, self._limits.max_groups)
        ]
        step.names += [launch.kernel] * len(parts)
        return parts

    def _argument(self, step: _Step, arg: Any) -> Any:
        if isinstance(arg, Table):
            return self._driver.table(arg.data)
        if isinstance(arg, Scratch):
            return self._driver.scratch(arg.slot, arg.nbytes)
        if arg is Slot.FAULT:
            return self._driver.fault
        if arg is Slot.STEP:
            if step.number < 0:
                step.number = self._driver.watch(step.description)
            return step.number.to_bytes(4, "little")
        return arg

    def _view(self, i: int, values: Mapping[str, int]) -> View:
        view = self._fixed.get(i) or self._views.get(i)
        if view is None:
            is_fixed = all(isinstance(size, int) for size in _sizes(self._tensors[i]))
            view = self._make_view(i, values)
            (self._fixed if is_fixed else self._views)[i] = view
        return view

    def _make_view(self, i: int, values: Mapping[str, int]) -> View:
        spec = self._tensors[i]
        memory = self._memories[spec.buffer]
        if not isinstance(memory, DeviceMemory):
            raise DeviceError(
                f"tensor {spec.name or i} is in {type(memory).__name__}; {self._driver.name} only "
                "reaches its own memory: copy it there first"
            )
        ne = tuple([n if isinstance(n, int) else evaluate(n, values) for n in spec.ne])
        nb = tuple([n if isinstance(n, int) else evaluate(n, values) for n in spec.nb])
        at = evaluate(spec.offset, values)
        return View(spec.dtype, ne, nb, at, memory.buffer, spec.name, spec.layout)


def _sizes(spec: TensorSpec) -> tuple[Size, ...]:
    return (*spec.ne, *spec.nb, spec.offset)
