"""The first and the last use of every tensor that needs memory, with views and in-place ops folded.

Times are positions in `Schedule.plan_nodes`; -1 is before the run, when the user writes inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any

from weft.allocate.result import padded, without_device
from weft.graph.op import NONE
from weft.graph.tensor import Tensor
from weft.records import dataclass
from weft.schedule.result import Schedule


@dataclass(slots=True, eq=False)
class Item:
    """Memory that is in use from `start` to `end`, both included.

    `tensors` use it one after the other: each op took over the memory of the op before."""

    arena: int
    start: int
    end: int
    size: int
    """Bytes of the largest tensor, rounded up to the alignment."""
    tensors: list[Tensor] = field(default_factory=list)


@dataclass(slots=True)
class Lifetimes:
    """Every item to be packed, by arena."""

    buffer_types: list[Any]
    arena_of: list[int]
    items: list[list[Item]]
    lower_bounds: list[int]
    """Maximum number of bytes in use at any time, per arena."""
    sizes: dict[Tensor, int]
    """Unpadded bytes of each tensor in its arena's buffer type."""
    spans: dict[Tensor, tuple[int, int]]
    """The first and the last time at which each tensor is in use, in the order of planning."""


def lifetimes(schedule: Schedule) -> Lifetimes:
    """Lifetimes of all tensors that have no memory yet.

    A tensor lives from the node that writes it (inputs and other leaves: from before the run; a
    copy: from the split that it is made for) to the last node that reads it or a view of it.
    Outputs, bases of views that are outputs, and results that nothing reads live to the end. A leaf
    that is not an input has a value that nobody could set, so later reads of it through a view that
    is a leaf do not count (nor do they in the reference)."""
    return _Analysis(schedule).run()


class _Analysis:
    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.buffer_types: list[Any] = []
        self.arena_of = [self._arena(b.buffer_type) for b in schedule.backends]
        self.end_of_run = len(schedule.plan_nodes)
        self.start: dict[Tensor, int] = {}
        self.arena: dict[Tensor, int] = {}
        self.last: dict[Tensor, int] = {}
        self.sizes: dict[Tensor, int] = {}
        # base -> set of backends (as bits) whose kernels use its memory
        self.users: dict[Tensor, int] = {}
        self.can_use: dict[tuple[int, int], bool] = {}

    def _arena(self, buffer_type: Any) -> int:
        for i, existing in enumerate(self.buffer_types):
            if existing is buffer_type:
                return i
        self.buffer_types.append(buffer_type)
        return len(self.buffer_types) - 1

    def run(self) -> Lifetimes:
        self._starts()
        self._ends()
        items, bounds = self._fold()
        spans = {t: (start, self._end(t, start)) for t, start in self.start.items()}
        return Lifetimes(self.buffer_types, self.arena_of, items, bounds, self.sizes, spans)

    def _end(self, tensor: Tensor, start: int) -> int:
        return max(self.last.get(tensor, start), start)

    def _own(self, tensor: Tensor, start: int, backend: int) -> None:
        if tensor.view_src is not None or tensor.buffer is not None or tensor in self.start:
            return
        if backend < 0:
            raise without_device(tensor)
        arena = self.arena_of[backend]
        self.start[tensor] = start
        self.arena[tensor] = arena
        self.sizes[tensor] = self.buffer_types[arena].alloc_size(tensor)

    def _starts(self) -> None:
        schedule = self.schedule
        for leaf, b in zip(schedule.plan_leaves, schedule.plan_leaf_backends, strict=True):
            self._own(leaf, -1, b)
        roles = schedule.roles
        for i, node in enumerate(schedule.plan_nodes):
            start = i
            if node.op is NONE or "input" in node.flags:
                # No node computes it; a copy begins where its dependency, the entry before it,
                # is read.
                role = roles.get(node)
                start = i - 1 if role is not None and role.kind == "copy" else -1
            self._own(node, start, schedule.plan_node_backends[i])

    def _ends(self) -> None:
        schedule, last, users, end = self.schedule, self.last, self.users, self.end_of_run
        read: set[Tensor] = set()
        written = {n.view_src for n in schedule.plan_nodes if not n.op.is_view and n.op is not NONE}
        for i, node in enumerate(schedule.plan_nodes):
            read.update(s for s in node.src if s is not None and s is not node)
            if node.op.is_view:
                continue
            user = 0 if node.op is NONE else 1 << schedule.plan_node_backends[i]
            for src in node.src:
                if src is None or _reads_nothing(src, written):
                    continue
                base = src.base
                last[base] = i
                users[base] = users.get(base, 0) | user
            if node.view_src is not None and user:
                last[node.view_src] = i
                users[node.view_src] = users.get(node.view_src, 0) | user
        for node in schedule.plan_nodes:
            if "output" in node.flags or (node not in read and node.op is not NONE):
                last[node.base] = end
        for leaf in schedule.plan_leaves:
            if "output" in leaf.flags:
                last[leaf.base] = end

    def _fold(self) -> tuple[list[list[Item]], list[int]]:
        items: list[list[Item]] = [[] for _ in self.buffer_types]
        item_of: dict[Tensor, Item] = {}
        # per arena, bytes that come into use (positive) and go out of use (negative) at each time
        changes: list[dict[int, int]] = [{} for _ in self.buffer_types]
        made_from = {copy: src for split in self.schedule.splits for src, copy in split.copies}
        for tensor, start in self.start.items():
            end = self._end(tensor, start)
            parent = None
            if start >= 0:
                if tensor.op.can_inplace:
                    parent = self._taken_over(tensor, start, item_of)
                elif tensor in made_from and self._copied_onto_itself(
                    tensor, made_from[tensor], start, item_of
                ):
                    parent = made_from[tensor]
            if parent is not None:
                item = item_of[parent]
                item.end = end
                item.tensors.append(tensor)
                self.arena[tensor] = item.arena
                # the parent's bytes pass to `node` now, not after it
                old = self._padded(parent)
                change = changes[item.arena]
                change[start + 1] = change.get(start + 1, 0) + old
                change[start] = change.get(start, 0) - old
            else:
                arena = self.arena[tensor]
                item = Item(arena, start, end, self._padded(tensor), [tensor])
                items[arena].append(item)
            item_of[tensor] = item
            size = self._padded(tensor)
            change = changes[item.arena]
            change[start] = change.get(start, 0) + size
            change[end + 1] = change.get(end + 1, 0) - size
        return items, [_peak(change) for change in changes]

    def _padded(self, tensor: Tensor) -> int:
        return padded(self.sizes[tensor], self.buffer_types[self.arena[tensor]].alignment)

    def _taken_over(self, node: Tensor, now: int, item_of: dict[Tensor, Item]) -> Tensor | None:
        """The source whose memory `node` takes, or None.

        It is the first source with the same type, sizes and strides that is read here for the last
        time, once, and that is neither an output nor a view."""
        for src in node.src:
            if (
                src is None
                or src not in item_of
                or self.last.get(src) != now
                or "output" in src.flags
                or src.dtype is not node.dtype
                or src.ne != node.ne
                or src.nb != node.nb
                or item_of[src].tensors[-1] is not src
            ):
                continue
            reads = sum(1 for s in node.src if s is src or (s is not None and s.view_src is src))
            if reads == 1 and self._may_live_in(node, self.arena[src], self.sizes[src]):
                return src
        return None

    def _may_live_in(self, node: Tensor, arena: int, size: int) -> bool:
        """Whether `node` fits `size` bytes of the arena, and all other backends that use it can
        read it there.

        The node's own backend can, because it reads a source in the same memory."""
        if arena == self.arena[node]:
            return self.sizes[node] <= size
        need = self.buffer_types[arena].alloc_size(node)
        users = self.users.get(node, 0)
        for b, backend in enumerate(self.schedule.backends):
            if not users >> b & 1:
                continue
            ok = self.can_use.get((b, arena))
            if ok is None:
                ok = backend.supports_buffer_type(self.buffer_types[arena])
                self.can_use[(b, arena)] = ok
            if not ok:
                return False
        if need > size:
            return False
        self.sizes[node] = need
        return True

    def _copied_onto_itself(
        self, copy: Tensor, src: Tensor, now: int, item_of: dict[Tensor, Item]
    ) -> bool:
        """Whether a copy may stay where its source is: in memory of the same type that nothing else
        uses.

        That happens to results that took over memory of another device."""
        return (
            src in item_of
            and self.arena[src] == self.arena[copy]
            and self.last.get(src) == now
            and item_of[src].tensors[-1] is src
            and self.sizes[copy] <= self.sizes[src]
        )


def _reads_nothing(src: Tensor, written: set[Tensor | None]) -> bool:
    base = src.view_src
    if base is None or src.op is not NONE or base.op is not NONE:
        return False
    return not base.flags and base not in written


def _peak(changes: dict[int, int]) -> int:
    peak = now = 0
    for time in sorted(changes):
        now += changes[time]
        peak = max(peak, now)
    return peak


def stage_spans(schedule: Schedule) -> list[tuple[int, int]] | None:
    """The first and the last node of the stage of each entry of `Schedule.plan_nodes`.

    A stage is consecutive nodes of one backend of which none reads or overwrites what another
    writes. None where no backend runs nodes at the same time (`Backend.runs_stages`)."""
    runs_stages = [b.runs_stages for b in schedule.backends]
    if not any(runs_stages):
        return None
    nodes = schedule.plan_nodes
    starts: list[int] = []
    backend = -1
    written: set[Tensor] = set()
    read: set[Tensor] = set()
    for i, node in enumerate(nodes):
        own = schedule.plan_node_backends[i]
        if node.op.is_view and starts:
            continue
        sources = [s.base for s in node.src if s is not None]
        target = node.base
        apart = own != backend or node.op is NONE or not runs_stages[own]
        if apart or target in written or target in read or not written.isdisjoint(sources):
            starts.append(i)
            backend = -1 if node.op is NONE else own
            written.clear()
            read.clear()
        written.add(target)
        read.update(sources)
    spans: list[tuple[int, int]] = []
    for first, end in zip(starts, [*starts[1:], len(nodes)], strict=False):
        spans += [(first, end - 1)] * (end - first)
    return [(0, 0)] * (len(nodes) - len(spans)) + spans


def over_stages(items: Sequence[Item], spans: Sequence[tuple[int, int]]) -> list[Item]:
    """The items with lifetimes of whole stages; an item that does not change is returned itself.

    Packing lets a result take the bytes of another that is read for the last time just before, so
    that the one must wait for the other. Where a backend runs independent nodes together,
    everything that a node of a stage needs is therefore kept for the whole stage."""
    n = len(spans)
    longer = []
    for item in items:
        start = spans[item.start][0] if 0 <= item.start < n else item.start
        end = spans[item.end][1] if 0 <= item.end < n else item.end
        if (start, end) != (item.start, item.end):
            item = Item(item.arena, start, end, item.size, item.tensors)
        longer.append(item)
    return longer
