"""`Program`: what to run, as data. The result of compilation, the input of every executor.

A program names its memory (buffers), its values (tensors: type, sizes, strides, place in a buffer)
and its work (splits, one device each, of steps grouped in stages). Sizes, strides and offsets may
be expressions over the program's symbols; memory is planned at their maxima.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import lru_cache
from typing import Any, Literal, Protocol

from weft.dtype import DType
from weft.errors import ProgramError
from weft.graph.op import Op
from weft.graph.params import Params
from weft.graph.size import Size, Sym, evaluate, lower, upper
from weft.graph.tensor import Ne, n_shown
from weft.notebook import in_notebook
from weft.records import dataclass
from weft.tables import html_table, size_text

__all__ = [
    "LAYOUTS",
    "BufferSpec",
    "CopySpec",
    "Layout",
    "Program",
    "SplitSpec",
    "StepSpec",
    "TensorSpec",
    "described",
]

Layout = Literal["rows", "interleaved", "lookup", "levels", "ordered", "planes"]
"""How the blocks of a matrix are stored.

    rows          row after row
    interleaved   in panels of 32 rows: the same bytes in another order, codes of q3_K, q5_K and
                  q6_K in other bits of them (`native/src/quants/interleave.h`)
    lookup        as indices of tables that are built for each column of activations; ternary
                  weights (`native/src/quants/lookup_layout.h`)
    levels        in panels of 32 rows that name each weight's level; codebook types
                  (`native/src/quants/levels.h`)
    ordered       row after row, of floats, whose products are added up in the order of panels
    planes        one plane for each part of a block; OpenCL devices
                  (`weft.backends.kernels.planes`)"""

LAYOUTS: tuple[Layout, ...] = ("rows", "interleaved", "lookup", "levels", "ordered", "planes")
"""All layouts, in the order of the native enum, which lacks the last one."""


@dataclass(frozen=True, slots=True)
class BufferSpec:
    """One block of memory.

    The session allocates a buffer of kind `arena`. One of kind `bound` exists already (weights, a
    KV cache): its `data` is a NumPy array in host memory or a `weft.backends.memory.Memory`. `size`
    is in bytes."""

    kind: Literal["arena", "bound"]
    buffer_type: Any
    size: int
    usage: Literal["weights", "compute", "any"]
    data: Any = None
    matrix: TensorSpec | None = None
    """The only tensor of a bound buffer that is repacked on loading; `buffer_type` is then a
    `weft.backends.memory.WeightBufferType`. None: the buffer is not repacked."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A value: sizes `ne` and byte strides `nb`, innermost first, at `offset` bytes in a buffer.

    `buffer` indexes the program's buffers."""

    name: str
    dtype: DType
    ne: Ne
    nb: Ne
    buffer: int
    offset: Size
    layout: Layout = "rows"
    """Only whole weights have a layout other than rows, and only as source 0 of a matmul (or of
    GET_ROWS, for planes)."""
    rank: int = -1
    """The number of dimensions that its arrays have at least; -1: not known."""

    def at(self, values: Mapping[str, int]) -> tuple[list[int], list[int], int]:
        """Sizes, byte strides and offset for the given values of the symbols."""
        ne, nb = ([evaluate(n, values) for n in sizes] for sizes in (self.ne, self.nb))
        return ne, nb, evaluate(self.offset, values)

    @property
    def extent(self) -> tuple[int, int]:
        """First byte and byte after the last in the buffer, for any values of the symbols."""
        span = _span(self.dtype.block, self.ne, self.nb)
        end = upper(self.offset) + span + self.dtype.bytes + self.dtype.tail
        return lower(self.offset), end


@lru_cache(maxsize=1 << 12)  # layers have the same sizes
def _span(block: int, ne: Ne, nb: Ne) -> int:
    """The bytes from the first to the last block, for any values of the symbols."""
    steps = (upper(ne[0]) // block - 1, *(upper(n) - 1 for n in ne[1:]))
    return sum(n * upper(b) for n, b in zip(steps, nb, strict=True) if n > 0)


@dataclass(frozen=True, slots=True)
class StepSpec:
    """One op. `dst` and `src` index the program's tensors; -1 is an absent optional source."""

    op: Op
    dst: int
    src: tuple[int, ...]
    params: Params | None


@dataclass(frozen=True, slots=True)
class CopySpec:
    """A copy before a split runs: of tensor `src` to tensor `dst`, of the same type and sizes."""

    src: int
    dst: int


@dataclass(frozen=True, slots=True)
class SplitSpec:
    """Steps that run on one device.

    `stages` are half-open ranges of `steps` that cover them in order; steps of one stage do not
    depend on each other. Views have no steps. `work_bytes` is the scratch memory of the split.

    `nodes` has the number of each step's node in the split, views not counted. Steps are ordered by
    stage, but may run in the order of the nodes too. If it is empty, both orders are the same."""

    device: str
    copies: tuple[CopySpec, ...]
    steps: tuple[StepSpec, ...]
    stages: tuple[tuple[int, int], ...]
    work_bytes: int = 0
    nodes: tuple[int, ...] = ()


class Explains(Protocol):
    """A plan that explains itself."""

    def explain(self, width: int | None = None) -> str:
        """Describes the plan in words; lines are broken at `width` characters."""


@dataclass(frozen=True, slots=True, repr=False)
class Program:
    """Everything that a session needs to run.

    `inputs` and `outputs` map names to indices of `tensors`; `symbols` has the sizes that are known
    only when it runs, by name."""

    symbols: dict[str, Sym]
    buffers: tuple[BufferSpec, ...]
    tensors: tuple[TensorSpec, ...]
    splits: tuple[SplitSpec, ...]
    inputs: dict[str, int]
    outputs: dict[str, int]
    devices: tuple[Any, ...] = field(default=())
    """The backends, in the order of the device list. `SplitSpec.device` is the name of one."""
    states: dict[str, int] = field(default_factory=dict)
    """Indices of the leaves that keep their values from run to run, by name; each session has its
    own values."""
    plan: Any = field(default=None, compare=False, repr=False)
    """The `weft.compiler.pipeline.Plan` that it was lowered from, for explanations."""

    @property
    def work_bytes(self) -> int:
        """Bytes of the kernels' scratch memory, which all splits share."""
        return max((split.work_bytes for split in self.splits), default=0)

    def explain(self, width: int | None = None) -> str:
        """Describes the splits, the device of each op and the reason for it, and the memory of each
        device. Lines are broken at `width` characters (None: at the width of the terminal).

        Raises ProgramError for a program that was not made from a plan."""
        plan: Explains | None = self.plan
        if plan is None:
            raise ProgramError(
                "this program was made without a plan; weft.compile makes one with it"
            )
        return plan.explain(width)

    def _repr_html_(self) -> str:
        return in_notebook(self, self.html("Program"))

    def html(self, what: str) -> str:
        """The program as HTML for notebooks: a summary and tables of its splits and memory."""
        splits = [
            (n, s.device, len(s.steps), len(s.stages), len(s.copies), size_text(s.work_bytes))
            for n, s in enumerate(self.splits)
        ]
        memory: dict[tuple[str, str], int] = {}
        for buffer in self.buffers:
            key = (buffer.buffer_type.name, "compute" if buffer.kind == "arena" else buffer.usage)
            memory[key] = memory.get(key, 0) + buffer.size
        rows = [(name, usage, f"{n:,}", size_text(n)) for (name, usage), n in memory.items()]
        counts = ("ops", "stages", "copies", "scratch")
        return html_table(self.summary(what), ("split", "device", *counts), splits, counts) + (
            html_table("memory", ("memory", "usage", "bytes", "size"), rows, ("bytes", "size"))
        )

    def summary(self, what: str) -> str:
        """One line, such as `<what x f32 (n, 32) -> y f32 (n, 8); 3 ops: cpu 3>`."""
        ins = ", ".join(described(n, self.tensors[i]) for n, i in self.inputs.items())
        outs = ", ".join(described(n, self.tensors[i]) for n, i in self.outputs.items())
        ops: dict[str, int] = {}
        for split in self.splits:
            ops[split.device] = ops.get(split.device, 0) + len(split.steps)
        work = ", ".join(f"{device} {n}" for device, n in ops.items())
        total = sum(ops.values())
        count = f"{total} op{'' if total == 1 else 's'}"
        return f"<{what} {ins or 'nothing'} -> {outs or 'nothing'}; {count}: {work}>"

    def __repr__(self) -> str:
        return self.summary("Program")


def described(name: str, spec: TensorSpec) -> str:
    """A tensor in a message, as `x f32 (n, 32)`: sizes in PyTorch order."""
    sizes = ", ".join(str(n) for n in reversed(spec.ne[: n_shown(spec.ne, spec.rank)]))
    return f"{name} {spec.dtype.name} ({sizes})"
