"""`WatchedSession`: a session that shows tensors to a callback as they are computed.

ask      once per graph, for every tensor of it: does the callback want to see it?
compile  as before, without fusions that would hide a wanted tensor
run      up to each wanted tensor, which the callback may then read, before it continues or stops
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from numpy.typing import NDArray

from weft import quants
from weft.compiler import planned_again
from weft.compiler.check import check_program
from weft.compiler.lower import lower_with_tensors, nodes_and_steps
from weft.dtype import DType
from weft.errors import AbortedError, ProgramError
from weft.execute.arena import ArenaPool
from weft.execute.session import Session
from weft.execute.values import check_values, read_array
from weft.graph.size import evaluate, upper
from weft.graph.tensor import Tensor
from weft.program import Program
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Reader:
    """An op that reads a watched tensor."""

    op: str
    place: int
    """Which of the op's sources the tensor is."""
    first: str
    """The name of the op's first source, which is the weights in a product."""
    first_shape: tuple[int, ...]
    """The four sizes of that source, outermost first."""


@dataclass(frozen=True, slots=True)
class WatchedTensor:
    """A tensor of a graph, in the form in which a callback sees it."""

    name: str
    op: str
    """The op that computes it, e.g. `MUL_MAT`."""
    dtype: DType
    shape: tuple[int, ...]
    """The sizes in PyTorch order; with `ask`, the largest for which the graph is planned."""
    device: str
    """Name of the device that computes it."""
    readers: tuple[Reader, ...] = ()
    """The ops of the graph that read it."""
    sources: tuple[str, ...] = ()
    """The names of the first two tensors that it is made of."""
    _read: Callable[[], NDArray[Any]] | None = field(default=None, repr=False)

    def read(self) -> NDArray[Any]:
        """A copy of its values, in `shape` (bf16 as uint16 bits, block types as uint8 rows).

        Raises ProgramError with `ask`, when the tensor is not computed yet."""
        if self._read is None:
            raise ProgramError(f"{self.name} is not computed yet; read it when `ask` is false")
        return self._read()

    def numbers(self) -> NDArray[Any]:
        """The values as numbers: float32 for bf16 and block types, else as `read`."""
        raw = self.read()
        plain = self.dtype.storage.kind in "fi" and not self.dtype.is_quantized
        return raw if plain and self.dtype.name != "bf16" else quants.from_storage(raw, self.dtype)


TensorCallback = Callable[[WatchedTensor, bool], bool]
"""`callback(tensor, ask)`. It is called with `ask` true once for each tensor when a graph is
compiled, and returns whether it wants to see the tensor. It is called with `ask` false in every run
when a wanted tensor is computed, may read it, and returns whether to continue."""


class WatchedSession(Session):
    """Runs the graph of a program for a callback."""

    def __init__(self, program: Program, arenas: ArenaPool, callback: TensorCallback) -> None:
        """`program` was compiled from a graph (`Program.plan`); it is compiled again with the same
        placement.

        Raises as `Session`, and the errors of the callback."""
        watched, self._wanted = _compile(program, callback)
        super().__init__(watched, arenas)
        self._callback = callback

    def execute(self, values: Mapping[str, int]) -> None:
        """Runs as `Session` does; raises AbortedError where the callback stops the run."""
        check_values(self.program, values)
        for number, split in enumerate(self.program.splits):
            self.moved.add(self._bound.copy_inputs(number, values))
            begin = 0
            for target in self._wanted[number]:
                if self._stop:
                    raise self._aborted()
                self._bound.run_steps(number, begin, target.end, values)
                begin = target.end
                if not self._callback(self._shown(target, values), False):
                    raise AbortedError(f"the run was stopped by the callback at {target.name}")
            if self._stop:
                raise self._aborted()
            self._bound.run_steps(number, begin, len(split.steps), values)

    def _shown(self, target: _Wanted, values: Mapping[str, int]) -> WatchedTensor:
        spec, now = self.program.tensors[target.index], dict(values)
        sizes = tuple(evaluate(n, now) for n in reversed(spec.ne[: target.n_dims]))
        memory = self._bound.memories[spec.buffer]
        return replace(
            target.tensor,
            shape=sizes,
            _read=lambda: read_array(spec, memory, now).reshape(_storage_shape(sizes, spec.dtype)),
        )


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A tensor that the callback wants to see."""

    tensor: WatchedTensor
    index: int
    """The row in the program's table of tensors."""
    end: int
    """The number of steps of its split up to the one that computes it."""
    n_dims: int

    @property
    def name(self) -> str:
        return self.tensor.name


def _compile(program: Program, callback: TensorCallback) -> tuple[Program, list[list[_Wanted]]]:
    schedule = program.plan.schedule
    graph = schedule.graph
    readers = _readers(graph.nodes)
    candidates = {
        node: _asked(node, schedule.backend_for(node), tuple(readers.get(node, ())))
        for node in graph.nodes
    }
    wanted = {node: shown for node, shown in candidates.items() if callback(shown, True)}
    keep = {base for node in wanted for base in (node, node.view_src) if base is not None}
    plan = planned_again(program, keep)
    compiled, index = lower_with_tensors(plan.schedule, plan.allocation, plan, plan.layouts)
    check_program(compiled)
    by_split: list[list[_Wanted]] = []
    origin = plan.schedule.origin
    for split in plan.schedule.splits:
        in_split = []
        for node, n_steps in nodes_and_steps(split):
            own = origin.get(node, node)
            if own in wanted and own in index:
                in_split.append(_Wanted(wanted[own], index[own], n_steps, len(own.shape)))
        by_split.append(in_split)
    return compiled, by_split


def _readers(nodes: Sequence[Tensor]) -> dict[Tensor, list[Reader]]:
    """The ops that read each node."""
    found: dict[Tensor, list[Reader]] = {}
    for node in nodes:
        for place, source in enumerate(node.src):
            first = node.src[0]
            if source is not None and first is not None:
                base = first if first.view_src is None else first.view_src
                sizes = tuple(upper(n) for n in reversed(first.ne))
                found.setdefault(source, []).append(Reader(node.op.name, place, base.name, sizes))
    return found


def _asked(node: Tensor, backend: Any, readers: tuple[Reader, ...]) -> WatchedTensor:
    shape = tuple(map(upper, node.shape))
    device = "" if backend is None else backend.name
    sources = tuple(source.name for source in node.src[:2] if source is not None)
    return WatchedTensor(node.name, node.op.name, node.dtype, shape, device, readers, sources)


def _storage_shape(sizes: tuple[int, ...], dtype: DType) -> tuple[int, ...]:
    if not dtype.is_quantized:
        return sizes
    return (*sizes[:-1], sizes[-1] // dtype.block * dtype.bytes)
