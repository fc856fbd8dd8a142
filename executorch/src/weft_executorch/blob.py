"""A planned program as the bytes that the native delegate reads (`schema/program.fbs`)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import flatbuffers
import numpy as np
from numpy.typing import NDArray

from weft.backends.cpu.native_program import ExprTable
from weft.backends.memory import HostMemory
from weft.errors import ProgramError
from weft.graph.params import pack
from weft.graph.size import Size, Sym
from weft.program import LAYOUTS, BufferSpec, Program
from weft_executorch import program_generated
from weft_executorch.dynamic_sizes import linear
from weft_executorch.events import Event, EventValue

__all__ = ["VERSION", "Blob", "IoSpec", "Prediction", "StateSpec", "write_blob"]

VERSION = 2

_ALIGNMENT = 64

fb: Any = program_generated


@dataclass(frozen=True, slots=True)
class IoSpec:
    """An argument; `index` is its tensor in the program, -1 for an integer."""

    name: str
    index: int
    dims: tuple[Size, ...]
    scalar_type: int
    data: Any = None
    """The memory over which its tensor was planned, if it has memory of its own."""


@dataclass(frozen=True, slots=True)
class StateSpec:
    """Memory kept between calls: the memory over which its leaf was planned, its name, its first
    bytes."""

    data: Any
    name: str
    first: NDArray[np.uint8] | None


@dataclass(frozen=True, slots=True)
class Prediction:
    """The time of a call at its largest sizes that the profile of a machine predicts."""

    machine: str
    seconds: float
    """On the delegate's cpu."""
    devices: tuple[str, ...]
    """All devices of the machine."""
    least_seconds: float
    """The least over all devices, with weights where they are read fastest."""


@dataclass(frozen=True, slots=True)
class Blob:
    """A program in bytes.

    `processed` are the bytes of the program, `constants` the named data that it reads, `events`
    what tracers are told about its steps."""

    processed: bytes
    constants: dict[str, NDArray[np.uint8]]
    events: tuple[Event, ...]

    @property
    def alignment(self) -> int:
        """The alignment of constants in bytes, with which they are used in place."""
        return _ALIGNMENT


class About(NamedTuple):
    """Texts, events and times that a program has for people and tools; running needs none."""

    graph: str = ""
    """The delegated graph as text."""
    left_out: Sequence[tuple[str, str, str]] = ()
    """Rows of (node, op, reason) for the nodes that were not delegated."""
    events: tuple[Event, ...] = ()
    """An event for each step, for tracers; empty: tracers see no steps."""
    predicted: Prediction | None = None


def write_blob(
    program: Program,
    inputs: Sequence[IoSpec],
    outputs: Sequence[IoSpec],
    states: Sequence[StateSpec] = (),
    *,
    threads: int = 0,
    share_state: bool = False,
    fixed: Mapping[str, int] | None = None,
    about: About,
) -> Blob:
    """The blob of a program of one split on the cpu; symbols in `fixed` have one value.

    Raises ProgramError for a program of several splits, or with a size that no input determines."""
    if len(program.splits) != 1 or program.splits[0].copies:
        raise ProgramError(
            f"a delegated program runs on one device, this one has {len(program.splits)} splits"
        )
    writer = _Writer(program, inputs, outputs, states, fixed or {})
    return writer.write(threads, share_state, about)


class _Writer:
    def __init__(
        self,
        program: Program,
        inputs: Sequence[IoSpec],
        outputs: Sequence[IoSpec],
        states: Sequence[StateSpec],
        fixed: Mapping[str, int],
    ) -> None:
        self._program = program
        self._inputs = inputs
        self._outputs = outputs
        self._exprs = ExprTable(program.symbols, fixed)
        self._free = [s for name, s in program.symbols.items() if name not in fixed]
        self._constants: dict[str, NDArray[np.uint8]] = {}
        self._states = {id(s.data): s for s in states}
        self._memory = {id(v.data): fb.Memory.Output for v in outputs if v.data is not None}
        self._memory |= {id(v.data): fb.Memory.Input for v in inputs if v.data is not None}
        self._buffers: dict[int, int] = {}
        self._buffer_rows: list[Any] = []
        self._tensors: dict[int, int] = {}
        self._tensor_rows: list[Any] = []

    def write(
        self,
        threads: int,
        share_state: bool,
        about: About,
    ) -> Blob:
        split = self._program.splits[0]
        root = fb.ProgramT()
        root.version = VERSION
        ops: dict[str, int] = {}
        root.steps = [self._step(step, ops) for step in split.steps]
        for row, event in zip(root.steps, about.events, strict=False):
            row.name, row.values = event.name, [self._node_value(v) for v in event.values]
        root.inputs = [self._value(v) for v in self._inputs]
        root.outputs = [self._value(v) for v in self._outputs]
        root.symbols = [self._symbol(s) for s in self._free]
        root.ops = list(ops)
        root.exprs = [_struct(fb.ExprT(), kind=k, a=a, b=b) for k, a, b in self._exprs.rows]
        root.buffers = self._buffer_rows
        root.tensors = self._tensor_rows
        root.stages = [_struct(fb.StageT(), begin=b, end=e) for b, e in split.stages]
        root.workBytes = split.work_bytes
        root.threads = threads
        root.shareState = share_state
        root.graph = about.graph
        root.leftOut = [
            _struct(fb.RefusalT(), node=n, target=t, reason=r) for n, t, r in about.left_out
        ]
        predicted = about.predicted
        if predicted is not None:
            root.predicted = _struct(
                fb.PredictionT(),
                machine=predicted.machine,
                seconds=predicted.seconds,
                devices=list(predicted.devices),
                leastSeconds=predicted.least_seconds,
            )
        builder = flatbuffers.Builder(4096)
        builder.Finish(root.Pack(builder), b"WEFT")
        return Blob(bytes(builder.Output()), self._constants, about.events)

    # ---- rows of the tables ----------------------------------------------------------------------

    def _size(self, size: Size) -> Any:
        constant = isinstance(size, int)
        return _struct(
            fb.SizeT(),
            value=size if constant else 0,
            expr=-1 if constant else self._exprs.of(size),
        )

    def _step(self, step: Any, ops: dict[str, int]) -> Any:
        return _struct(
            fb.StepT(),
            op=ops.setdefault(step.op.name, len(ops)),
            dst=self._tensor(step.dst),
            src=[self._tensor(s) for s in step.src],
            params=pack(step.params),
        )

    def _tensor(self, index: int) -> int:
        if index < 0:
            return -1
        if index not in self._tensors:
            spec = self._program.tensors[index]
            self._tensors[index] = len(self._tensor_rows)
            self._tensor_rows.append(
                _struct(
                    fb.TensorT(),
                    name=spec.name,
                    type=spec.dtype.id,
                    layout=LAYOUTS.index(spec.layout),
                    buffer=self._buffer(spec.buffer),
                    ne=[self._size(n) for n in spec.ne],
                    nb=[self._size(n) for n in spec.nb],
                    offset=self._size(spec.offset),
                )
            )
        return self._tensors[index]

    def _buffer(self, index: int) -> int:
        if index not in self._buffers:
            self._buffers[index] = len(self._buffer_rows)
            self._buffer_rows.append(self._buffer_row(self._program.buffers[index]))
        return self._buffers[index]

    def _buffer_row(self, spec: BufferSpec) -> Any:
        row = _struct(fb.BufferT(), memory=fb.Memory.Arena, size=spec.size, stored=0)
        if spec.kind == "arena":
            return row
        state = self._states.get(id(spec.data))
        if state is not None:
            row.memory, row.name = fb.Memory.State, state.name
            if state.first is not None and state.first.any():
                row.key = self._store(state.first, "rows")
            return row
        if id(spec.data) in self._memory:
            row.memory = self._memory[id(spec.data)]
            return row
        row.memory = fb.Memory.Constant
        host = spec.data.host() if isinstance(spec.data, HostMemory) else spec.data
        if not isinstance(host, np.ndarray):
            raise ProgramError("a constant of a delegated program is not in host memory")
        stored = "rows"
        if spec.matrix is not None and spec.matrix.layout == "interleaved":
            matrix = spec.matrix
            ne = tuple(int(n) for n in matrix.ne if isinstance(n, int))
            host = spec.buffer_type.load(host, matrix.dtype, ne).panels
            stored = "interleaved"
        row.stored = LAYOUTS.index(stored)
        row.key = self._store(host.reshape(-1).view(np.uint8), stored)
        return row

    def _store(self, data: NDArray[np.uint8], layout: str) -> str:
        digest = hashlib.sha256(data.tobytes()).hexdigest()[:32]
        key = f"weft.{layout}.{digest}"
        self._constants[key] = data
        return key

    def _value(self, value: IoSpec) -> Any:
        return _struct(
            fb.ValueT(),
            name=value.name,
            tensor=self._tensor(value.index),
            scalarType=value.scalar_type,
            dims=[self._size(n) for n in value.dims],
        )

    def _node_value(self, value: EventValue) -> Any:
        return _struct(
            fb.NodeValueT(),
            step=value.step,
            scalarType=value.scalar_type,
            dims=[self._size(n) for n in value.dims],
            strides=[self._size(n) for n in value.strides] or None,
            offset=self._size(value.offset) if value.offset != 0 else None,
        )

    def _symbol(self, symbol: Sym) -> Any:
        row = _struct(
            fb.SymbolT(), name=symbol.name, min=symbol.min, max=symbol.max, mul=1, add=0, dim=-1
        )
        for number, value in enumerate(self._inputs):
            if value.scalar_type < 0 and value.dims == (symbol.size,):
                row.input = number
                return row
            for dim, size in enumerate(value.dims):
                factors = linear(size, symbol)
                if value.scalar_type >= 0 and factors is not None:
                    row.input, row.dim = number, dim
                    row.mul, row.add = factors
                    return row
        raise ProgramError(
            f"no input's size tells the value of symbol {symbol.name}; every dynamic size must be "
            "the size of an input"
        )


def _struct(row: Any, **values: Any) -> Any:
    for name, value in values.items():
        if not hasattr(row, name):
            raise ProgramError(f"the schema's {type(row).__name__} has no field {name}")
        setattr(row, name, value)
    return row
