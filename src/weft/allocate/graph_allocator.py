"""`GraphAllocator`: ggml's graph allocator (ggml_gallocr, ggml 0.25), planning only.

Memory is handed out in graph order and freed after the last reader; an op may take over the memory
of a source whose last reader it is. Offsets, chunks, sizes and the decision whether a graph fits an
earlier plan equal the reference's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any

from weft.allocate.blocks import BlockAllocator
from weft.allocate.result import Allocation, Arena, Placement, padded, without_device
from weft.errors import AllocationError
from weft.graph.node import describe
from weft.graph.op import NONE
from weft.graph.tensor import Tensor
from weft.records import dataclass
from weft.schedule.collector import collector_paused
from weft.schedule.result import Schedule

Record = tuple[int, int, int, int]
"""(backend, chunk, offset, size): the place of a tensor in a plan, and the bytes it may use."""


class _State:
    """The planning state of one tensor."""

    __slots__ = ("allocated", "backend", "chunk", "n_children", "n_views", "offset")

    def __init__(self) -> None:
        self.n_children = 0
        self.n_views = 0
        self.backend = 0
        self.chunk = -1
        self.offset = 0
        self.allocated = False


@dataclass(slots=True)
class _Records:
    """The result of a plan: places by position in the plan lists, None for views and existing
    memory."""

    nodes: list[Record | None] = field(default_factory=list)
    sources: list[tuple[Record | None, ...]] = field(default_factory=list)
    leaves: list[Record | None] = field(default_factory=list)


class GraphAllocator:
    """Plans graph after graph into the same buffers.

    `reserve` plans, `alloc` plans only if the graph does not fit the last plan, `measure` plans
    without buffers. `reserves` counts plans, `reallocs` counts the plans that `alloc` had to
    make."""

    def __init__(self, buffer_types: Sequence[Any]) -> None:
        """`buffer_types`: one per backend, the same object where backends share memory."""
        self.buffer_types = list(buffer_types)
        self.reserves = 0
        self.reallocs = 0
        self.buffers: list[list[int] | None] = [None] * len(self.buffer_types)
        """Per backend, the sizes of its buffer's chunks; None: no buffer yet. Backends with the
        same buffer type share one list."""
        self.buffer_allocs: dict[int, int] = {}
        """Number of blocks allocated so far, per backend (the first of those that share)."""
        self.records = _Records()
        self.why = ""
        """The reason why the last graph did not fit the plan before it; empty where it fitted."""
        self._first = [
            next(i for i, other in enumerate(self.buffer_types) if other is t)
            for t in self.buffer_types
        ]
        allocators = [BlockAllocator(t.alignment, t.max_size) for t in self.buffer_types]
        self._blocks = [allocators[i] for i in self._first]
        self._states: dict[Tensor, _State] = {}
        self._sizes: dict[tuple[int, Tensor], int] = {}

    # -- the verbs

    def reserve(self, schedule: Schedule) -> None:
        """Plans `schedule` and grows the buffers to what the plan needs.

        Raises ScheduleError for a tensor without a device, AllocationError where an op takes over
        memory that is too small for it."""
        self._plan(schedule)
        self._grow_buffers(keep=True)

    def measure(self, schedule: Schedule) -> list[int]:
        """Plans `schedule` and returns the bytes per backend. Drops buffers that would have to
        grow."""
        self._plan(schedule)
        self._grow_buffers(keep=False)
        return [sum(sizes) for sizes in self.planned]

    def alloc(self, schedule: Schedule, *, backends_changed: bool = False) -> bool:
        """Uses the last plan if `schedule` fits it, else plans again; returns whether it planned
        again."""
        if not backends_changed and not self.needs_realloc(schedule):
            return False
        self.reallocs += 1
        self.reserve(schedule)
        return True

    @property
    def planned(self) -> list[list[int]]:
        """Per backend, the bytes of each chunk in the last plan."""
        return [[chunk.max_size for chunk in blocks.chunks] for blocks in self._blocks]

    @property
    def sizes(self) -> list[int]:
        """Per backend, the bytes of its buffer; 0 where an earlier backend shares it."""
        return [
            sum(chunks) if chunks is not None and self._first[i] == i else 0
            for i, chunks in enumerate(self.buffers)
        ]

    def allocation(
        self, schedule: Schedule, lower_bounds: Sequence[int] | None = None
    ) -> Allocation:
        """The last plan, for a graph that fits it; its blocks are the buffers, where there are."""
        firsts = list(dict.fromkeys(self._first))
        arena_of = [firsts.index(first) for first in self._first]
        place: dict[Tensor, Placement] = {}
        for tensors, records in (
            (schedule.plan_leaves, self.records.leaves),
            (schedule.plan_nodes, self.records.nodes),
        ):
            for tensor, record in zip(tensors, records, strict=True):
                has_memory = tensor.view_src is not None or tensor.buffer is not None
                if record is not None and not has_memory:
                    backend, chunk, offset, size = record
                    place.setdefault(tensor, Placement(arena_of[backend], chunk, offset, size))
        planned, arenas = self.planned, []
        for arena, first in enumerate(firsts):
            chunks = self.buffers[first] or planned[first]
            bound = 0 if lower_bounds is None else lower_bounds[arena]
            arenas.append(Arena(self.buffer_types[first], tuple(chunks), bound, "ggml"))
        return Allocation(tuple(arenas), place, tuple(arena_of))

    # -- does a graph fit the last plan

    def needs_realloc(self, schedule: Schedule) -> bool:
        """Whether some tensor of `schedule` needs more than the tensor in its place had; `why`
        names it."""
        records = self.records
        self.why = ""
        for what, now, before in (
            ("nodes", schedule.plan_nodes, records.nodes),
            ("leaves", schedule.plan_leaves, records.leaves),
        ):
            if len(now) != len(before):
                self.why = _other_count(what, now, len(before))
                return True
        self._sizes.clear()
        for i, node in enumerate(schedule.plan_nodes):
            if not self._fits(node, records.nodes[i]):
                return True
            source_records = records.sources[i]
            for j, src in enumerate(node.src):
                if src is not None and not self._fits(
                    src, source_records[j] if j < len(source_records) else None
                ):
                    return True
        return False

    def _fits(self, tensor: Tensor, record: Record | None) -> bool:
        if tensor.view_src is not None or tensor.buffer is not None:
            return True
        if record is None:
            self.why = f"{describe(tensor)} needs memory, but the tensor in its place had none"
            return False
        size = self._size(record[0], tensor)
        if size > record[3]:
            self.why = f"{describe(tensor)} needs {size} bytes, but {record[3]} were planned"
        return size <= record[3]

    # -- planning

    def _size(self, backend: int, tensor: Tensor) -> int:
        key = (self._first[backend], tensor)
        size = self._sizes.get(key)
        if size is None:
            size = self._sizes[key] = self.buffer_types[backend].alloc_size(tensor)
        return size

    @collector_paused()
    def _plan(self, schedule: Schedule) -> None:
        self.reserves += 1
        for blocks in self._blocks:
            blocks.reset()
        self._states = {}
        self._sizes.clear()
        nodes, backends = schedule.plan_nodes, schedule.plan_node_backends
        for leaf, b in zip(schedule.plan_leaves, schedule.plan_leaf_backends, strict=True):
            self._allocate(leaf, b)
        self._count(nodes, backends)
        for node, b in zip(nodes, backends, strict=True):
            for src in node.src:
                if src is not None:
                    self._allocate(src, b)
            self._allocate(node, b)
            for src in node.src:
                if src is not None:
                    self._release(src)
        self.records = _Records(
            [self._record(node) for node in nodes],
            [tuple([None if s is None else self._record(s) for s in node.src]) for node in nodes],
            [self._record(leaf) for leaf in schedule.plan_leaves],
        )

    def _state(self, tensor: Tensor) -> _State:
        state = self._states.get(tensor)
        if state is None:
            state = self._states[tensor] = _State()
        return state

    def _count(self, nodes: list[Tensor], backends: list[int]) -> None:
        """Counts readers and views.

        Inputs are allocated before everything else, so that the user can write them all before the
        run."""
        for node, b in zip(nodes, backends, strict=True):
            # a NONE node is a dependency: its sources count, but it is not a view of its base
            if node.view_src is not None and node.op is not NONE:
                self._state(node.view_src).n_views += 1
            if "input" in node.flags:
                self._allocate(node, b)
            for src in node.src:
                if src is not None:
                    self._state(src).n_children += 1
                    if "input" in src.flags:
                        self._allocate(src, b)

    def _allocate(self, tensor: Tensor, backend: int) -> None:
        if tensor.view_src is not None or tensor.buffer is not None:
            return
        if backend < 0:
            raise without_device(tensor)
        state = self._state(tensor)
        if state.allocated:
            return
        state.allocated = True
        if tensor.op.can_inplace and self._take_over(tensor, state):
            return
        state.backend = backend
        state.chunk, state.offset = self._blocks[backend].alloc(self._size(backend, tensor))

    def _take_over(self, node: Tensor, state: _State) -> bool:
        """Whether `node` takes the memory of a source.

        It takes the memory of the first source that this allocator owns, that is not an output, has
        the same type, sizes and strides, no other reader left and no views."""
        for src in node.src:
            if src is None or src.view_src is not None or "output" in src.flags:
                continue
            source = self._state(src)
            if (
                not source.allocated
                or source.n_children != 1
                or source.n_views != 0
                or src.dtype is not node.dtype
                or src.ne != node.ne
                or src.nb != node.nb
                or src is node
            ):
                continue
            state.backend, state.chunk = source.backend, source.chunk
            state.offset = source.offset
            source.allocated = False
            self._free_tail(node, src, state)
            return True
        return False

    def _free_tail(self, node: Tensor, src: Tensor, state: _State) -> None:
        alignment = self._blocks[state.backend].alignment
        have, need = self._size(state.backend, src), self._size(state.backend, node)
        if have < need:
            raise AllocationError(
                f"{describe(node)} needs {need} bytes and cannot take over the {have} bytes of "
                f"its source {describe(src)}"
            )
        have, need = padded(have, alignment), padded(need, alignment)
        if have > need:
            self._blocks[state.backend].free(state.chunk, state.offset + need, have - need)

    def _release(self, src: Tensor) -> None:
        """Counts one reader of `src` less; after the last reader frees it, or the base it views."""
        state = self._state(src)
        state.n_children -= 1
        if state.n_children != 0 or state.n_views != 0:
            return
        base = src.view_src
        if base is None:
            if state.allocated:
                self._free(src, state)
            return
        base_state = self._state(base)
        base_state.n_views -= 1
        if base_state.n_views == 0 and base_state.n_children == 0 and base_state.allocated:
            self._free(base, base_state)

    def _free(self, tensor: Tensor, state: _State) -> None:
        if "output" in tensor.flags:
            return
        size = self._size(state.backend, tensor)
        self._blocks[state.backend].free(state.chunk, state.offset, size)
        state.allocated = False

    def _record(self, tensor: Tensor) -> Record | None:
        if tensor.view_src is not None or tensor.buffer is not None:
            return None
        state = self._state(tensor)
        return (state.backend, state.chunk, state.offset, self._size(state.backend, tensor))

    # -- buffers

    def _grow_buffers(self, keep: bool) -> None:
        for i, first in enumerate(self._first):
            if first != i:
                self.buffers[i] = self.buffers[first]
                continue
            planned = [chunk.max_size for chunk in self._blocks[i].chunks]
            have = self.buffers[i]
            if have is not None and all(
                size <= (have[c] if c < len(have) else 0) for c, size in enumerate(planned)
            ):
                continue
            self.buffers[i] = planned if keep else None
            if keep:
                n_blocks = sum(size > 0 for size in planned)
                self.buffer_allocs[i] = self.buffer_allocs.get(i, 0) + n_blocks


def _other_count(what: str, now: list[Tensor], before: int) -> str:
    if before == 0:
        return f"no graph was planned before this one with {len(now)} {what}"
    end = f", the first beyond them {describe(now[before])}" if len(now) > before else ""
    return f"the graph has {len(now)} {what}, {before} were planned{end}"
