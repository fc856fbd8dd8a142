"""`validate`: checks a memory plan by replaying its nodes; it shares no code with the planners."""

from __future__ import annotations

from collections import defaultdict

from weft.allocate.result import Allocation, Placement, replaces, uses
from weft.errors import AllocationError
from weft.graph.node import describe
from weft.graph.op import NONE
from weft.graph.tensor import Tensor
from weft.schedule.collector import collector_paused
from weft.schedule.result import Schedule


@collector_paused()
def validate(schedule: Schedule, plan: Allocation) -> None:
    """Raises AllocationError, naming both tensors, where two values that are needed at the same
    time share bytes; and for a place outside its chunk, misaligned, too small, or missing."""
    writes, needed_until = uses(schedule)
    for _, tensor in writes:
        _check_place(tensor, plan)
    check_users(schedule, plan)
    copied_from = {copy: src for split in schedule.splits for src, copy in split.copies}
    live: dict[tuple[int, int], list[Tensor]] = defaultdict(list)
    for now, tensor in writes:
        at = plan.place[tensor]
        memory = plan.arenas[at.arena].buffer_type
        needed = [t for t in live[at.arena, at.chunk] if needed_until[t] >= now]
        shared = [t for t in needed if _overlap(at, plan.place[t])]
        for other in shared:
            in_place = copied_from.get(tensor) is other or replaces(tensor, other)
            is_last_use = needed_until[other] == now and plan.place[other].offset == at.offset
            if not (in_place and is_last_use):
                raise AllocationError(
                    f"{describe(tensor)} and {describe(other)} are both needed at node {now} and "
                    f"share memory: {at} and {plan.place[other]} of {memory.name}"
                )
        live[at.arena, at.chunk] = [tensor, *(t for t in needed if t not in shared)]


def _overlap(a: Placement, b: Placement) -> bool:
    first, second = (a, b) if a.offset <= b.offset else (b, a)
    return bool(a.size and b.size) and second.offset < first.offset + first.size


def _check_place(tensor: Tensor, plan: Allocation) -> None:
    at = plan.place.get(tensor)
    if at is None:
        raise AllocationError(f"{describe(tensor)} has no place in the memory plan")
    if not 0 <= at.arena < len(plan.arenas):
        raise AllocationError(f"{describe(tensor)} is in arena {at.arena}, which does not exist")
    chunks, memory = plan.arenas[at.arena].chunks, plan.arenas[at.arena].buffer_type
    wrong = ""
    if at.size < memory.alloc_size(tensor):
        wrong = f"needs {memory.alloc_size(tensor)} bytes, the plan gives {at.size}"
    elif at.offset < 0 or at.offset % memory.alignment:
        wrong = f"is at offset {at.offset}, not a multiple of the alignment {memory.alignment}"
    elif not 0 <= at.chunk < len(chunks) or at.offset + at.size > chunks[at.chunk]:
        wrong = f"has {at}, outside the chunks {list(chunks)}"
    if wrong:
        raise AllocationError(f"{describe(tensor)} {wrong} (memory {memory.name})")


def check_users(schedule: Schedule, plan: Allocation) -> None:
    """Raises AllocationError for a node on a device that cannot use the memory of its tensors."""
    on = list(zip(schedule.plan_nodes, schedule.plan_node_backends, strict=True))
    arenas = {node: plan.place[node].arena for node, b in on if b >= 0 and node in plan.place}
    moved = {node for node, b in on if node in arenas and arenas[node] != plan.arena_of[b]}
    for node, b in on:
        tensors = () if node.op.is_view or node.op is NONE else (node, *node.src)
        for used in (t for t in tensors if t is not None and t.base in moved):
            backend, memory = schedule.backends[b], plan.arenas[arenas[used.base]].buffer_type
            if not backend.supports_buffer_type(memory):
                raise AllocationError(
                    f"{describe(node)} runs on {backend.name}, which cannot use {memory.name} "
                    f"memory, where {describe(used)} is"
                )
