"""First and last use of every tensor that needs memory; views and in-place ops folded.

Times are positions in `Schedule.plan_nodes`; -1 is before the run, when the user writes inputs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from weft.allocate.result import padded
from weft.errors import ScheduleError
from weft.graph.node import describe
from weft.graph.op import NONE
from weft.graph.tensor import Tensor
from weft.schedule.result import Schedule

__all__ = ["Item", "Lifetimes", "lifetimes"]


@dataclass(slots=True, eq=False)
class Item:
    """Memory that is in use from `start` to `end`, both included.

    `tensors` use it one after the other: each op took over the memory of the one before."""

    arena: int
    start: int
    end: int
    size: int
    """Bytes, rounded up to the alignment; those of the largest tensor."""
    tensors: list[Tensor] = field(default_factory=list)


@dataclass(slots=True)
class Lifetimes:
    """Everything to be packed, by arena."""

    buffer_types: list[Any]
    arena_of: list[int]
    """Per backend, its arena."""
    items: list[list[Item]]
    lower_bounds: list[int]
    """Per arena, the most bytes in use at any time."""
    sizes: dict[Tensor, int]
    """Unpadded bytes of each tensor in its arena's buffer type."""


def lifetimes(schedule: Schedule) -> Lifetimes:
    """Lifetimes of all tensors that have no memory yet.

    A tensor lives from the node that writes it (inputs and other leaves: from before the run; a
    copy: from when it is made) to the last node that reads it or a view of it. Outputs, bases of
    views that are outputs, and results that nothing reads live to the end."""
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

    def _arena(self, buffer_type: Any) -> int:
        for i, known in enumerate(self.buffer_types):
            if known is buffer_type:
                return i
        self.buffer_types.append(buffer_type)
        return len(self.buffer_types) - 1

    def run(self) -> Lifetimes:
        self._starts()
        self._ends()
        items, bounds = self._fold()
        return Lifetimes(self.buffer_types, self.arena_of, items, bounds, self.sizes)

    def _own(self, tensor: Tensor, start: int, backend: int) -> None:
        if tensor.view_src is not None or tensor.buffer is not None or tensor in self.start:
            return
        if backend < 0:
            raise ScheduleError(
                f"{describe(tensor)} has no device: it has no memory, is no input, and only views "
                "read it; mark it as an input or assign it to a device"
            )
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
                # nothing computes it; a copy is made when its dependency, the entry before, is read
                role = roles.get(node)
                start = i - 1 if role is not None and role.kind == "copy" else -1
            self._own(node, start, schedule.plan_node_backends[i])

    def _ends(self) -> None:
        last, end = self.last, self.end_of_run
        read: set[Tensor] = set()
        for i, node in enumerate(self.schedule.plan_nodes):
            for src in node.src:
                if src is not None and src is not node:
                    read.add(src)
                    if not node.op.is_view:
                        last[src if src.view_src is None else src.view_src] = i
            if node.view_src is not None and not node.op.is_view and node.op is not NONE:
                last[node.view_src] = i
        roles = self.schedule.roles
        for node in self.schedule.plan_nodes:
            if "output" in node.flags or (node not in read and node not in roles):
                last[node if node.view_src is None else node.view_src] = end
        for leaf in self.schedule.plan_leaves:
            if "output" in leaf.flags:
                last[leaf if leaf.view_src is None else leaf.view_src] = end

    def _fold(self) -> tuple[list[list[Item]], list[int]]:
        items: list[list[Item]] = [[] for _ in self.buffer_types]
        alignments = [t.alignment for t in self.buffer_types]
        item_of: dict[Tensor, Item] = {}
        # bytes that come into use (positive) and go out of use at each time, shifted by one
        changes: list[dict[int, int]] = [{} for _ in self.buffer_types]
        for tensor, start in self.start.items():
            arena = self.arena[tensor]
            size = padded(self.sizes[tensor], alignments[arena])
            end = max(self.last.get(tensor, start), start)
            parent = self._taken_over(tensor, start, item_of) if start >= 0 else None
            if parent is not None:
                item = item_of[parent]
                item.end = end
                item.tensors.append(tensor)
                # the parent's bytes change hands now, not after this node
                old = padded(self.sizes[parent], alignments[arena])
                change = changes[arena]
                change[start + 1] = change.get(start + 1, 0) + old
                change[start] = change.get(start, 0) - old
            else:
                item = Item(arena, start, end, size, [tensor])
                items[arena].append(item)
            item_of[tensor] = item
            change = changes[arena]
            change[start] = change.get(start, 0) + size
            change[end + 1] = change.get(end + 1, 0) - size
        return items, [_peak(change) for change in changes]

    def _taken_over(self, node: Tensor, now: int, item_of: dict[Tensor, Item]) -> Tensor | None:
        """The source whose memory `node` takes: the first with the same type, sizes, strides and
        arena, read here for the last time, once, that is no output and no view."""
        if not node.op.can_inplace:
            return None
        for src in node.src:
            if (
                src is None
                or src not in item_of
                or self.last.get(src) != now
                or "output" in src.flags
                or src.dtype is not node.dtype
                or self.arena[src] != self.arena[node]
                or src.ne != node.ne
                or src.nb != node.nb
                or self.sizes[src] < self.sizes[node]
                or item_of[src].tensors[-1] is not src
            ):
                continue
            reads = sum(1 for s in node.src if s is src or (s is not None and s.view_src is src))
            if reads == 1:
                return src
        return None


def _peak(changes: dict[int, int]) -> int:
    peak = now = 0
    for time in sorted(changes):
        now += changes[time]
        peak = max(peak, now)
    return peak
