"""A split as a recorded list of launches, over device memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from weft.backends.kernels.driver import Kernel, KernelDriver, MakesGraphs
from weft.backends.kernels.launch import Call, Launch, Limits, Scratch, Slot, Table, View, pieces
from weft.backends.kernels.memory import DeviceMemory
from weft.backends.kernels.ops import OwnKernels
from weft.backends.kernels.planes import READERS
from weft.backends.kernels.windows import cut, launches_of
from weft.backends.memory import Memory
from weft.dtype import DType
from weft.errors import DeviceError
from weft.graph.op import NONE
from weft.graph.size import Size, evaluate, symbols
from weft.program import Program, StepSpec, TensorSpec

_PRODUCTS = ("MUL_MAT", "MUL_MAT_ID")

Ready = tuple[Any, ...]
"""A launch as `KernelDriver.launch` takes it."""


class _Made(NamedTuple):
    """A launch that was made ready, maybe in pieces."""

    launch: Launch
    ready: list[Ready]
    form: tuple[Any, ...] | None
    """The contents that `Launch.makes` converts and their scratch address; None if it converts
    none."""


class _Step:
    """A step and its launches, which are made again only when a symbol they depend on changes."""

    __slots__ = (
        "bound", "description", "index", "kept", "kernels", "made", "names", "next", "number",
        "ready", "spec", "symbols", "written",
    )  # fmt: skip

    def __init__(
        self,
        index: int,
        spec: StepSpec,
        names: tuple[str, ...],
        description: str,
        after: StepSpec | None,
    ) -> None:
        self.index = index  # in `SplitSpec.steps`
        self.spec = spec
        self.next = after  # a step that may be done at once with this one, and is not listed itself
        self.symbols = names
        self.description = description
        self.number = -1
        self.bound: tuple[int, ...] | None = None
        self.made: list[_Made] = []
        self.kept: list[_Made] = []  # of `made`, what is run
        self.written: list[View] = []  # the results
        self.ready: list[Ready] = []  # what is run, piece by piece
        self.names: list[str] = []  # of their kernels
        # (number of the launch, file, defines, kernel) -> kernel
        self.kernels: dict[tuple[Any, ...], Kernel] = {}


class KernelExecutable:
    """Runs one split: a loop over prepared kernels. Returns once they are enqueued."""

    def __init__(
        self,
        driver: KernelDriver,
        own: OwnKernels,
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
        self._fed = self._readers(program.splits[split].steps)  # by the number of the result
        self._steps = self._join(program.splits[split].steps)
        self._fixed: dict[int, View] = {}  # of tensors without symbols
        self._views: dict[int, View] = {}  # of the others, with their present sizes
        self._launches: list[Ready] = []
        self._bound: tuple[int, ...] | None = None
        self._graphs = driver if isinstance(driver, MakesGraphs) else None
        self._graph: Any = None
        self._in_graph: list[Ready] = []  # the launches that are in it
        self._has_run = False  # a graph is made for what runs again
        names = sorted({name for step in self._steps for name in step.symbols})
        self._symbols = tuple(names)
        self._having: dict[frozenset[str], list[_Step]] = {}  # steps with any of some symbols
        if not names:
            self._bind({})
        elif driver.compiles_early:
            self._expect_early()

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
            if record is None and self._graphs is not None and self._has_run:
                launched = len(self._launches)
                self._start_graph(self._graphs)
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
            self._driver.compiling.all_there()
            self._has_run = True
        except self._driver.errors as error:
            why = self._driver.said(error)
            raise DeviceError(f"{self._driver.name}: {self._name(launched)}: {why}") from error

    def _start_graph(self, driver: MakesGraphs) -> None:
        """Starts all launches as one graph.

        Where sizes have changed since the last run, only the launches that were made again are
        replaced in it."""
        launches, present = self._launches, self._in_graph
        if not launches:
            return
        if self._graph is None or len(present) != len(launches):
            self._graph = driver.graph(launches)
        elif present is not launches:
            for i, (old, new) in enumerate(zip(present, launches, strict=True)):
                if old is not new:
                    self._graph.change(i, *new)
        self._in_graph = launches
        driver.start(self._graph)

    def _name(self, launch: int) -> str:
        """The step that a launch belongs to."""
        for step in self._steps:
            if launch < len(step.ready):
                return step.description
            launch -= len(step.ready)
        return "starting the work"

    # ---- binding ---------------------------------------------------------------------------------

    def _readers(self, specs: Sequence[StepSpec]) -> dict[int, DType]:
        """The types of the weights of the next products that read results in the form of
        `Launch.makes`. A product finds a result by its place, maybe as a view."""
        found, next_at = dict[int, DType](), dict[tuple[Any, ...], DType]()
        for spec in reversed(specs):
            if spec.op.is_view or spec.op is NONE:
                continue
            result = self._tensors[spec.dst]
            weights = next_at.pop((result.buffer, result.offset), None)
            if weights is not None:
                found[spec.dst] = weights
            if spec.op.name in _PRODUCTS:
                w, x = (self._tensors[i] for i in spec.src[:2])
                if self._own.feeds(w.dtype, w.layout):
                    next_at[x.buffer, x.offset] = w.dtype
        return found

    def _join(self, specs: Sequence[StepSpec]) -> list[_Step]:
        """The steps that compute something; two in a row are one where they may be."""
        work = [
            (i, spec) for i, spec in enumerate(specs) if not spec.op.is_view and spec.op is not NONE
        ]
        steps, n = [], 0
        while n < len(work):
            i, spec = work[n]
            after = work[n + 1][1] if n + 1 < len(work) else None
            ops = (spec.op.name, after.op.name if after else "")
            if after is not None and (ops not in self._own.joined or spec.dst not in after.src):
                after = None
            steps.append(self._step(i, spec, after))
            n += 1 if after is None else 2
        return steps

    def _step(self, index: int, spec: StepSpec, after: StepSpec | None) -> _Step:
        both = (spec,) if after is None else (spec, after)
        used = [i for s in both for i in (s.dst, *s.src) if i >= 0]
        names = {s.name for i in used for size in _sizes(self._tensors[i]) for s in symbols(size)}
        dst = self._tensors[spec.dst]
        sources = ", ".join(self._tensors[i].name or "?" for i in spec.src if i >= 0)
        description = f"{spec.op}({sources}) -> {dst.name}"
        return _Step(index, spec, tuple(sorted(names)), description, after)

    def _expect_early(self) -> None:
        """Tells the driver which kernels runs with few and with many elements have, so that it
        compiles them before the first run."""
        used = [s for spec in self._tensors for size in _sizes(spec) for s in symbols(size)]
        few = {symbol.name: max(symbol.min, 1) for symbol in used}
        for values in (few, {symbol.name: symbol.max for symbol in used}):
            self._views = {}
            for step in self._steps:
                try:
                    launches = self._launches_at(step, values)
                except (ArithmeticError, ValueError):  # bounds that never are sizes together
                    continue
                for launch in launches:
                    self._driver.expect(launch)
        self._views = {}

    def _bind(self, values: Mapping[str, int]) -> None:
        steps = self._affected(values)
        self._bound = None
        self._views = {}
        changed = []
        for step in steps:
            symbol_values = tuple(values[name] for name in step.symbols)
            if symbol_values != step.bound:
                step.bound = None
                changed.append((step, symbol_values, self._launches_at(step, values)))
        for step, _, launches in changed:
            for i, launch in enumerate(launches):
                if _kernel_key(i, launch) not in step.kernels:
                    self._driver.expect(launch)
        for step, symbol_values, launches in changed:
            with self._driver.guarded(f"{self._driver.name}: {step.description}"):
                step.made = [self._ready(step, i, launch) for i, launch in enumerate(launches)]
            step.bound = symbol_values
        self._driver.compiling.all_there()
        self._leave_out()
        self._launches = [ready for step in self._steps for ready in step.ready]
        self._bound = tuple(values[name] for name in self._symbols)

    def _affected(self, values: Mapping[str, int]) -> list[_Step]:
        """The steps whose sizes may have changed since the last run."""
        if self._bound is None:
            return self._steps
        pairs = zip(self._symbols, self._bound, strict=True)
        changed = frozenset([name for name, size in pairs if values[name] != size])
        steps = self._having.get(changed)
        if steps is None:
            steps = [step for step in self._steps if not changed.isdisjoint(step.symbols)]
            self._having[changed] = steps
        return steps

    def _leave_out(self) -> None:
        """Leaves out launches that only make a form of a tensor which an earlier one left in the
        same memory, where nothing has been written to the tensor since."""
        held: tuple[Any, ...] | None = None
        of: View | None = None
        for step in self._steps:
            kept = []
            for made in step.made:
                if made.form is not None:
                    if made.launch.is_extra and made.form == held:
                        continue
                    held, of = made.form, made.launch.makes
                kept.append(made)
            if of is not None and any(v is not of and _overlap(v, of) for v in step.written):
                held = of = None
            if kept != step.kept:
                step.kept = kept
                step.ready = [part for made in kept for part in made.ready]
                step.names = [made.launch.kernel for made in kept for _ in made.ready]

    def _launches_at(self, step: _Step, values: Mapping[str, int]) -> list[Launch]:
        calls = [self._call(spec, values) for spec in (step.spec, step.next) if spec is not None]
        step.written = [call.dst for call in calls]
        launches = None
        if len(calls) == 2 and 0 not in calls[0].dst.ne and len(list(cut(calls[0]))) == 1:
            launches = self._own.joined[calls[0].op, calls[1].op](calls[0], calls[1])
        if launches is None:
            own = self._own.launches.get
            launches = [launch for call in calls for launch in launches_of(call, own)]
        return launches

    def _call(self, spec: StepSpec, values: Mapping[str, int]) -> Call:
        dst = self._view(spec.dst, values)
        src = tuple(self._view(i, values) if i >= 0 else None for i in spec.src)
        for i, view in enumerate(src):
            if view is not None and view.layout != "rows" and (i or spec.op.name not in READERS):
                raise DeviceError(f"{spec.op} cannot read {view.name} in {view.layout}, only rows")
        return Call(spec.op.name, dst, src, spec.params, self._limits, self._fed.get(spec.dst))

    def _ready(self, step: _Step, index: int, launch: Launch) -> _Made:
        key = _kernel_key(index, launch)
        kernel = step.kernels.get(key)
        if kernel is None:
            kernel = self._driver.kernel(launch.file, launch.defines, launch.kernel)
            step.kernels[key] = kernel
        args: list[Any] = []
        form = None
        for arg in launch.args:
            if isinstance(arg, View):
                view = self._driver.window(arg)
                args += [view.buffer, view.packed]
                continue
            args.append(self._argument(step, arg))
            if launch.makes is not None and isinstance(arg, Scratch):
                form = (*_rows_of(launch.makes), args[-1])
        kernel.bind(args)
        parts = [
            self._driver.prepared(kernel, grid, launch.group, start)
            for grid, start in pieces(launch, self._limits.max_groups)
        ]
        return _Made(launch, parts, form)

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


def _kernel_key(number: int, launch: Launch) -> tuple[Any, ...]:
    return number, launch.file, launch.defines, launch.kernel


def _rows_of(view: View) -> tuple[Any, ...]:
    """A key of the contents of a tensor; views of other sizes with the same rows have the same
    key."""
    step, lies = view.nb[1], True
    for n, nb in zip(view.ne[1:], view.nb[1:], strict=True):
        lies = lies and (n == 1 or nb == step)
        step *= n
    sizes = (view.ne[0], view.nb[0], view.nb[1], view.n_elements) if lies else view.packed
    return (view.buffer, view.at, view.dtype.name, sizes)


def _overlap(a: View, b: View) -> bool:
    """Whether two tensors share bytes, or might."""
    if a.buffer is not b.buffer:
        return False
    ends = [
        v.at + v.dtype.bytes + sum(nb * (n - 1) for n, nb in zip(v.ne, v.nb, strict=True))
        for v in (a, b)
    ]
    return a.at < ends[1] and b.at < ends[0]


def _sizes(spec: TensorSpec) -> tuple[Size, ...]:
    return (*spec.ne, *spec.nb, spec.offset)
