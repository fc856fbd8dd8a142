"""`WatchedSession`: a session that shows tensors to a callback as they are computed.

ask      once per graph, for every tensor of it: does the callback want to see it?
compile  as before, but for fusions that would hide one that is wanted
run      up to each wanted tensor, which the callback may then read, and go on or stop
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from weft import quants
from weft.compiler import planned_again
from weft.compiler.check import check_program
from weft.compiler.lower import lower_with_tensors
from weft.dtype import DType
from weft.errors import AbortedError, ProgramError
from weft.execute.arena import ArenaPool
from weft.execute.session import Session
from weft.execute.values import check_values, read_array
from weft.graph.op import NONE
from weft.graph.size import evaluate, upper
from weft.graph.tensor import Tensor
from weft.program import Program

__all__ = ["TensorCallback", "WatchedSession", "WatchedTensor"]


@dataclass(frozen=True, slots=True)
class WatchedTensor:
    """A tensor of a graph, as a callback sees it."""

    name: str
    op: str
    """What computes it, e.g. `MUL_MAT`."""
    dtype: DType
    shape: tuple[int, ...]
    """In PyTorch order; when asked, at the largest sizes that the graph is planned for."""
    device: str
    """Name of the device that computes it."""
    _read: Callable[[], NDArray[Any]] | None = field(default=None, repr=False)

    def read(self) -> NDArray[Any]:
        """A copy of its values, in `shape` (bf16 as uint16 bits, block types as uint8 rows).

        Raises ProgramError when only asked about: it is not computed yet."""
        if self._read is None:
            raise ProgramError(f"{self.name} is not computed yet; read it when the answer is due")
        return self._read()

    def numbers(self) -> NDArray[Any]:
        """Its values as numbers: float32 for bf16 and block types, else as `read`."""
        raw = self.read()
        plain = self.dtype.storage.kind in "fi" and not self.dtype.is_quantized
        return raw if plain and self.dtype.name != "bf16" else quants.from_storage(raw, self.dtype)


TensorCallback = Callable[[WatchedTensor, bool], bool]
"""`callback(tensor, ask)`. With `ask` true, once for each tensor when a graph is compiled: whether
it wants to see it. With `ask` false, in every run when a wanted one is computed: whether to go on;
it may read the tensor then."""


class WatchedSession(Session):
    """Runs the graph of a program for a callback."""

    def __init__(self, program: Program, arenas: ArenaPool, callback: TensorCallback) -> None:
        """`program`: compiled from a graph (`Program.plan` says which); it is compiled again, every
        node where it is there. Raises as `Session`, and what the callback raises."""
        watched, self._wanted = _compile(program, callback)
        super().__init__(watched, arenas)
        self._callback = callback

    def execute(self, values: Mapping[str, int]) -> None:
        """As of `Session`; raises AbortedError where the callback does not go on."""
        check_values(self.program, values)
        for number, split in enumerate(self.program.splits):
            self.moved.add(self._bound.copy_inputs(number, values))
            begin = 0
            for wanted in self._wanted[number]:
                if self._stop:
                    raise self._aborted()
                self._bound.run_steps(number, begin, wanted.end, values)
                begin = wanted.end
                if not self._callback(self._shown(wanted, values), False):
                    raise AbortedError(f"the run was stopped by the callback at {wanted.name}")
            if self._stop:
                raise self._aborted()
            self._bound.run_steps(number, begin, len(split.steps), values)

    def _shown(self, wanted: _Wanted, values: Mapping[str, int]) -> WatchedTensor:
        spec, now = self.program.tensors[wanted.index], dict(values)
        sizes = tuple(evaluate(n, now) for n in reversed(spec.ne[: wanted.n_dims]))
        memory = self._bound.memories[spec.buffer]
        return replace(
            wanted.tensor,
            shape=sizes,
            _read=lambda: read_array(spec, memory, now).reshape(_storage_shape(sizes, spec.dtype)),
        )


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A tensor that the callback wants to see."""

    tensor: WatchedTensor
    index: int
    """Among the program's tensors."""
    end: int
    """Steps of its split that are done once it is computed."""
    n_dims: int

    @property
    def name(self) -> str:
        return self.tensor.name


def _compile(program: Program, callback: TensorCallback) -> tuple[Program, list[list[_Wanted]]]:
    schedule = program.plan.schedule
    graph = schedule.graph
    asked = {node: _asked(node, schedule.backend_for(node)) for node in graph.nodes}
    wanted = {node: shown for node, shown in asked.items() if callback(shown, True)}
    keep = {base for node in wanted for base in (node, node.view_src) if base is not None}
    plan = planned_again(program, keep)
    made, index = lower_with_tensors(plan.schedule, plan.allocation, plan, plan.layouts)
    check_program(made)
    found: list[list[_Wanted]] = []
    origin = plan.schedule.origin
    for split in plan.schedule.splits:
        done, in_split = 0, []
        for node in split.nodes:
            done += not (node.op.is_view or node.op is NONE)
            own = origin.get(node, node)
            if own in wanted and own in index:
                in_split.append(_Wanted(wanted[own], index[own], done, own.n_dims))
        found.append(in_split)
    return made, found


def _asked(node: Tensor, backend: Any) -> WatchedTensor:
    shape = tuple(upper(n) for n in reversed(node.ne[: node.n_dims]))
    device = "" if backend is None else backend.name
    return WatchedTensor(node.name, node.op.name, node.dtype, shape, device)


def _storage_shape(sizes: tuple[int, ...], dtype: DType) -> tuple[int, ...]:
    if not dtype.is_quantized:
        return sizes
    return (*sizes[:-1], sizes[-1] // dtype.block * dtype.bytes)
