"""From a schedule and its memory plan to a `Program`."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.allocate import Allocation
from weft.backends.memory import BufferType, HostMemory
from weft.compiler.layouts import Layouts
from weft.compiler.stages import Access, Range, form_stages
from weft.errors import ProgramError
from weft.graph.node import describe
from weft.graph.op import NONE
from weft.graph.tensor import Tensor
from weft.program import BufferSpec, CopySpec, Layout, Program, SplitSpec, StepSpec, TensorSpec
from weft.schedule import Schedule, Split

_HOST = -1
"""The number of this process's address space, among the numbers of buffers."""


def lower(
    schedule: Schedule, allocation: Allocation, plan: Any = None, layouts: Layouts | None = None
) -> Program:
    """The program of a planned schedule: buffers, tensors with addresses, splits with stages.

    `layouts` are weights that live elsewhere than in their buffers, see `choose_layouts`. Raises
    ProgramError when a tensor has no memory."""
    return _lower(schedule, _Tensors(schedule, allocation, layouts or {}), plan)


def lower_with_tensors(
    schedule: Schedule, allocation: Allocation, plan: Any = None, layouts: Layouts | None = None
) -> tuple[Program, dict[Tensor, int]]:
    """The program, and its tensor for each tensor of the graph that has memory, which debuggers
    show."""
    table = _Tensors(schedule, allocation, layouts or {})
    index_of = {}
    for tensor in schedule.graph.tensors:
        final = schedule.final_of(tensor)
        base = final if final.view_src is None else final.view_src
        if base in allocation.place or (base.buffer is not None and base.buffer.data is not None):
            index_of[tensor] = table.index(final)
    return _lower(schedule, table, plan), index_of


def _lower(schedule: Schedule, table: _Tensors, plan: Any) -> Program:
    splits = tuple(_lower_split(schedule, split, table) for split in schedule.splits)
    graph = schedule.graph
    inputs = {n: table.index(schedule.final_of(t)) for n, t in graph.inputs.items()}
    outputs = {n: table.index(schedule.final_of(t)) for n, t in graph.outputs.items()}
    states = {n: table.index(schedule.final_of(t)) for n, t in graph.states.items()}
    return Program(
        symbols=graph.symbols,
        buffers=tuple(table.buffers),
        tensors=tuple(table.specs),
        splits=splits,
        inputs=inputs,
        outputs=outputs,
        devices=schedule.backends,
        states=states,
        plan=plan,
    )


class _Tensors:
    """The program's tensor and buffer tables, filled on demand."""

    def __init__(self, schedule: Schedule, allocation: Allocation, layouts: Layouts) -> None:
        self.specs: list[TensorSpec] = []
        self.buffers: list[BufferSpec] = []
        self._schedule = schedule
        self._allocation = allocation
        self._layouts = layouts
        self._index: dict[Tensor, int] = {}
        self._chunks: dict[tuple[int, int], int] = {}
        self._bound: dict[tuple[int, int], int] = {}
        self._address: dict[int, int] = {}
        self._extent: dict[int, Range] = {}
        for a, arena in enumerate(allocation.arenas):
            for c, size in enumerate(arena.chunks):
                self._chunks[a, c] = len(self.buffers)
                self.buffers.append(BufferSpec("arena", arena.buffer_type, size, "compute"))

    def index(self, tensor: Tensor) -> int:
        """The row of a final tensor in the table."""
        row = self._index.get(tensor)
        if row is None:
            row = self._index[tensor] = len(self.specs)
            base = tensor if tensor.view_src is None else tensor.view_src
            buffer, offset = self._home(base, tensor)
            at, layout = tensor.view_offs + offset, self._layout(tensor)
            place = buffer, at, layout, tensor.rank
            spec = TensorSpec(tensor.name, tensor.dtype, tensor.ne, tensor.nb, *place)
            self.specs.append(spec)
        return row

    def _layout(self, tensor: Tensor) -> Layout:
        memory = self._layouts.get(tensor)
        return "rows" if memory is None else memory.layout

    def _home(self, base: Tensor, tensor: Tensor) -> tuple[int, int]:
        """The buffer and the byte offset of a tensor that is not a view."""
        if base.buffer is not None:
            buffer_type = base.buffer.type or self._schedule.backends[-1].buffer_type
            data = base.buffer.data
            if data is None:
                raise ProgramError(f"{describe(tensor)} has a buffer without memory")
            return self._bind(self._layouts.get(base, buffer_type), base), base.buffer.offset
        place = self._allocation.place.get(base)
        if place is None:
            raise ProgramError(
                f"{describe(tensor)} has no memory: nothing computes it and it is not an input"
            )
        return self._chunks[place.arena, place.chunk], place.offset

    def _bind(self, buffer_type: BufferType, base: Tensor) -> int:
        assert base.buffer is not None
        data = base.buffer.data
        # views of one mapped file are separate arrays over the same bytes, with a buffer each
        key = (id(buffer_type), id(data))
        if key not in self._bound:
            size = data.nbytes
            self._bound[key] = len(self.buffers)
            host = data.host() if isinstance(data, HostMemory) else data
            if isinstance(host, np.ndarray):
                self._address[self._bound[key]] = host.ctypes.data
            matrix = None
            if base in self._layouts:
                buffer = self._bound[key]
                layout = self._layout(base)
                matrix = TensorSpec(base.name, base.dtype, base.ne, base.nb, buffer, 0, layout)
            self.buffers.append(
                BufferSpec("bound", buffer_type, size, base.buffer.usage, data, matrix)
            )
        return self._bound[key]

    def extent(self, index: int) -> Range:
        """The bytes that a tensor covers at the symbols' maxima.

        Memory of the user is identified by its address, so that two arrays over the same bytes are
        one."""
        extent = self._extent.get(index)
        if extent is None:
            t = self.specs[index]
            start, end = t.extent
            address = self._address.get(t.buffer)
            if address is None:
                extent = (t.buffer, start, end)
            else:
                extent = (_HOST, address + start, address + end)
            self._extent[index] = extent
        return extent


def nodes_and_steps(split: Split) -> list[tuple[Tensor, int]]:
    """Each node of a split with the number of steps up to it, itself included; views and
    dependencies are not steps."""
    nodes, n_steps = [], 0
    for node in split.nodes:
        n_steps += not (node.op.is_view or node.op is NONE)
        nodes.append((node, n_steps))
    return nodes


def _lower_split(schedule: Schedule, split: Split, table: _Tensors) -> SplitSpec:
    backend = schedule.backends[split.backend]
    steps: list[StepSpec] = []
    accesses: list[Access] = []
    work = 0
    for node in split.nodes:
        if node.op.is_view or node.op is NONE:
            continue
        dst = table.index(node)
        src = tuple(-1 if s is None else table.index(s) for s in node.src)
        steps.append(StepSpec(node.op, dst, src, node.params))
        reads = tuple(table.extent(s) for s in src if s >= 0)
        accesses.append(Access(table.extent(dst), reads))
        work = max(work, backend.work_bytes(node))
    stages = form_stages(accesses)
    return SplitSpec(
        device=backend.name,
        copies=tuple(CopySpec(table.index(s), table.index(d)) for s, d in split.copies),
        steps=tuple(steps[i] for i in stages.order),
        stages=stages.bounds,
        work_bytes=work,
        nodes=stages.order,
    )
