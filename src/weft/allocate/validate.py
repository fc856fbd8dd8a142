"""`validate`: checks a memory plan pair by pair; it shares no code with the planners.

The check replays the plan's node list: when a node writes its result, no other value that is still
needed may be in the same bytes, except a source that the node replaces element by element.
"""

from __future__ import annotations

from bisect import bisect_left

from weft.allocate.result import Allocation, Placement
from weft.errors import AllocationError
from weft.graph.node import describe
from weft.graph.tensor import Tensor
from weft.schedule.collector import collector_paused
from weft.schedule.result import Schedule

__all__ = ["check_users", "replaces", "uses", "validate"]


@collector_paused()
def validate(schedule: Schedule, plan: Allocation) -> None:
    """Raises AllocationError, naming both tensors, where two values that are needed at the same
    time share bytes; and for a place outside its chunk, misaligned, too small, or missing."""
    writes, needed_until = uses(schedule)
    copied_from = {copy: src for split in schedule.splits for src, copy in split.copies}
    for _, tensor in writes:
        _check_place(tensor, plan)
    check_users(schedule, plan)
    live: dict[tuple[int, int], _Live] = {}
    for now, tensor in writes:
        at = plan.place[tensor]
        if at.size == 0:
            continue
        chunk = live.setdefault((at.arena, at.chunk), _Live(needed_until))
        for other in chunk.overlapping(at, now):
            if not (
                at.offset == plan.place[other].offset
                and needed_until[other] == now
                and (copied_from.get(tensor) is other or replaces(tensor, other))
            ):
                raise _both_needed(tensor, other, now, plan)
            chunk.remove(other, at.offset)
        chunk.add(tensor, at)


class _Live:
    """The values in one chunk, by offset.

    They never overlap, because each was checked when it was added. A value that is no longer needed
    is removed when another comes near its bytes."""

    def __init__(self, needed_until: dict[Tensor, int]) -> None:
        self._until = needed_until
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._tensors: list[Tensor] = []

    def overlapping(self, at: Placement, now: int) -> list[Tensor]:
        """Values that are still needed and share bytes with `at`."""
        i = bisect_left(self._starts, at.offset)
        if i > 0 and self._ends[i - 1] > at.offset:
            i -= 1
        tensors = []
        while i < len(self._starts) and self._starts[i] < at.offset + at.size:
            if self._until[self._tensors[i]] < now:
                self._delete(i)
            else:
                tensors.append(self._tensors[i])
                i += 1
        return tensors

    def add(self, tensor: Tensor, at: Placement) -> None:
        """Adds a value whose bytes are free."""
        i = bisect_left(self._starts, at.offset)
        self._starts.insert(i, at.offset)
        self._ends.insert(i, at.offset + at.size)
        self._tensors.insert(i, tensor)

    def remove(self, tensor: Tensor, offset: int) -> None:
        """Removes a value that is replaced."""
        i = bisect_left(self._starts, offset)
        assert self._tensors[i] is tensor
        self._delete(i)

    def _delete(self, i: int) -> None:
        del self._starts[i], self._ends[i], self._tensors[i]


def uses(schedule: Schedule) -> tuple[list[tuple[int, Tensor]], dict[Tensor, int]]:
    """The time at which each value is written (sorted), and until when it is needed."""
    n = len(schedule.plan_nodes)
    written: dict[Tensor, int] = {}
    until: dict[Tensor, int] = {}
    has_reader: set[Tensor] = set()
    filled = {n.view_src for n in schedule.plan_nodes if n.op.name != "NONE" and not n.op.is_view}
    for leaf in schedule.plan_leaves:
        if _is_owner(leaf):
            written.setdefault(leaf, -1)
    for i, node in enumerate(schedule.plan_nodes):
        role = schedule.roles.get(node)
        if _is_owner(node) and node not in written:
            if role is not None and role.kind == "copy":
                written[node] = i - 1
            elif node.op.name == "NONE" or node.is_input:
                written[node] = -1
            else:
                written[node] = i
        for src in node.src:
            if src is None or src is node:
                continue
            has_reader.add(src)
            nothing = _is_view_of_nothing(src) and src.view_src not in filled
            if not node.op.is_view and not nothing:
                until[_base(src)] = i
        if node.op.name == "NONE" or node.op.is_view:
            continue
        until[_base(node)] = max(until.get(_base(node), i), i)
    for tensor in (*schedule.plan_nodes, *schedule.plan_leaves):
        stays = tensor.is_output
        if tensor.op.name != "NONE" and tensor not in has_reader:
            stays = True
        if stays:
            until[_base(tensor)] = n
    for tensor, start in written.items():
        until[tensor] = max(until.get(tensor, start), start)
    return sorted(((at, t) for t, at in written.items()), key=lambda w: w[0]), until


def _base(tensor: Tensor) -> Tensor:
    return tensor if tensor.view_src is None else tensor.view_src


def check_users(schedule: Schedule, plan: Allocation) -> None:
    """Raises AllocationError where a tensor lies in another device's memory that a user of it
    cannot read."""
    moved: dict[Tensor, int] = {}
    for tensor, b in zip(schedule.plan_nodes, schedule.plan_node_backends, strict=True):
        at = plan.place.get(tensor)
        if at is not None and b >= 0 and at.arena != plan.arena_of[b]:
            moved[tensor] = at.arena
    if not moved:
        return
    for node, b in zip(schedule.plan_nodes, schedule.plan_node_backends, strict=True):
        if node.op.is_view or node.op.name == "NONE":
            continue
        for used in (node, *node.src):
            if used is None or _base(used) not in moved:
                continue
            buffer_type = plan.arenas[moved[_base(used)]].buffer_type
            if not schedule.backends[b].supports_buffer_type(buffer_type):
                raise AllocationError(
                    f"{describe(node)} runs on {schedule.backends[b].name}, which cannot use "
                    f"{buffer_type.name} memory, where {describe(used)} is"
                )


def _is_view_of_nothing(tensor: Tensor) -> bool:
    """Whether a leaf views a leaf that is not an input: no value was set, so none can be lost."""
    base = tensor.view_src
    return base is not None and tensor.op.name == base.op.name == "NONE" and not base.flags


def _is_owner(tensor: Tensor) -> bool:
    return tensor.view_src is None and tensor.buffer is None


def _check_place(tensor: Tensor, plan: Allocation) -> None:
    at = plan.place.get(tensor)
    if at is None:
        raise AllocationError(f"{describe(tensor)} has no place in the memory plan")
    if not 0 <= at.arena < len(plan.arenas):
        raise AllocationError(f"{describe(tensor)} is in arena {at.arena}, which does not exist")
    arena = plan.arenas[at.arena]
    need = arena.buffer_type.alloc_size(tensor)
    if at.size < need:
        raise AllocationError(f"{describe(tensor)} needs {need} bytes, the plan gives {at.size}")
    if at.offset < 0 or at.offset % arena.buffer_type.alignment:
        raise AllocationError(
            f"{describe(tensor)} is at offset {at.offset}, not a multiple of the alignment "
            f"{arena.buffer_type.alignment} of {arena.buffer_type.name}"
        )
    if not 0 <= at.chunk < len(arena.chunks) or at.offset + at.size > arena.chunks[at.chunk]:
        raise AllocationError(
            f"{describe(tensor)} ends at byte {at.offset + at.size} of chunk {at.chunk}, outside "
            f"the chunks {list(arena.chunks)} of {arena.buffer_type.name}"
        )


def _both_needed(tensor: Tensor, other: Tensor, now: int, plan: Allocation) -> AllocationError:
    at, there = plan.place[tensor], plan.place[other]
    return AllocationError(
        f"{describe(tensor)} and {describe(other)} are both needed at node {now} and share "
        f"memory: bytes {at.offset}..{at.offset + at.size} and "
        f"{there.offset}..{there.offset + there.size} of chunk {at.chunk} of "
        f"{plan.arenas[at.arena].buffer_type.name}"
    )


def replaces(node: Tensor, src: Tensor) -> bool:
    """Whether `node` may be computed in place over `src`, given that it is the last reader."""
    return (
        node.op.can_inplace
        and not src.is_output
        and src.dtype is node.dtype
        and src.ne == node.ne
        and src.nb == node.nb
        and [s for s in node.src if s is not None and _base(s) is src] == [src]
    )
