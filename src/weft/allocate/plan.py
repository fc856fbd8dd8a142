"""`allocate`: several planners, of which the smallest plan wins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

from weft.allocate.graph_allocator import GraphAllocator
from weft.allocate.lifetime import Item, Lifetimes, lifetimes, over_stages, stage_spans
from weft.allocate.pack import Packing, Problem
from weft.allocate.result import Allocation, Arena, Placement
from weft.allocate.search import improve
from weft.allocate.validate import validate
from weft.errors import AllocationError
from weft.graph.size import lower
from weft.graph.tensor import Tensor
from weft.options import require_choice
from weft.schedule.collector import collector_paused
from weft.schedule.describe import name_of
from weft.schedule.result import Schedule

Memory: TypeAlias = Literal["best", "ggml", "bound"]

# The number of steps after which the search stops: about 0.3 s.
_EFFORT = 2_500_000
# An arena may grow by one part in this many to keep the nodes of a stage independent.
_STAGES_WORTH = 64


@collector_paused()
def allocate(schedule: Schedule, policy: Memory = "best") -> Allocation:
    """A place for every tensor of `schedule` that has no memory yet.

    Policy `ggml` plans as the reference's graph allocator does. Policy `best` takes the smallest of
    several plans, of which the reference's is one. Policy `bound` gives no places: its arenas are
    as large as their lower bounds. Raises ScheduleError for a tensor without a device,
    AllocationError for an unknown policy or a plan that cannot be made."""
    if policy == "ggml":
        return like_reference(schedule, lifetimes(schedule))
    if policy == "bound":
        return _bounds(lifetimes(schedule))
    require_choice("memory", policy, ("best", "ggml", "bound"), AllocationError)
    return _best(schedule)


def _bounds(life: Lifetimes) -> Allocation:
    arenas = (
        Arena(buffer_type, (bound,), bound, "bound")
        for buffer_type, bound in zip(life.buffer_types, life.lower_bounds, strict=True)
    )
    return Allocation(tuple(arenas), {}, tuple(life.arena_of))


def like_reference(
    schedule: Schedule, life: Lifetimes, planner: GraphAllocator | None = None
) -> Allocation:
    """The plan of the reference's graph allocator; of `planner`, if one has planned already."""
    if planner is None:
        planner = GraphAllocator([b.buffer_type for b in schedule.backends])
        planner.reserve(schedule)
    return planner.allocation(schedule, life.lower_bounds)


def place_lines(schedule: Schedule, plan: Allocation, name: str) -> Iterator[str]:
    """Where the tensors called `name` are in memory, and how long: a line for each that a plan has
    a place for. The place that the reference's allocator gives them stands beside."""
    life = lifetimes(schedule)
    names = [name_of(node) for node in schedule.plan_nodes]
    reference = like_reference(schedule, life).place
    for tensor in dict.fromkeys(map(schedule.final_of, schedule.graph.tensors)):
        at = plan.place.get(tensor)
        if at is None or tensor.name != name:
            continue
        least, most = lower(tensor.nbytes), at.size
        size = f"{most:,} B" if least == most else f"{least:,} to {most:,} B"
        memory = plan.arenas[at.arena]
        chunk = f" of block {at.chunk}" if len(memory.chunks) > 1 else ""
        first, last = (names[max(0, min(time, len(names) - 1))] for time in life.spans[tensor])
        yield (
            f"{name} ({tensor.op.name}): {size} of {memory.buffer_type.name} compute memory at "
            f"byte {at.offset:,}{chunk}, from {first} to {last}; ggml's allocator: byte "
            f"{reference[tensor].offset:,}"
        )


def _best(schedule: Schedule) -> Allocation:
    life = lifetimes(schedule)
    packings = [
        _smallest(items, life.lower_bounds[arena], life.buffer_types[arena].max_size)
        for arena, items in enumerate(life.items)
    ]
    plan = _to_allocation(life, packings)
    if plan.total > plan.lower_bound:
        other = like_reference(schedule, life)
        if other.total < plan.total and _is_valid(schedule, other):
            plan = other
    return _over_stages(schedule, life, packings, plan.total) or plan


def _smallest(items: list[Item], bound: int, max_size: int | None) -> tuple[Packing, str]:
    # the limit of a chunk does not matter while one chunk is enough
    if max_size is None or bound <= max_size:
        packing, how = improve(Problem(items, None), bound, _EFFORT)
        if max_size is None or packing.size <= max_size:
            return packing, how
    return improve(Problem(items, max_size), bound, _EFFORT)


def _over_stages(
    schedule: Schedule, life: Lifetimes, packings: list[tuple[Packing, str]], total: int
) -> Allocation | None:
    """A plan that lets no node depend on another of its stage, if it needs hardly more memory; else
    None."""
    spans = stage_spans(schedule)
    if spans is None:
        return None
    longer_packings = []
    for number, (items, packing) in enumerate(zip(life.items, packings, strict=True)):
        longer = over_stages(items, spans)
        if longer != items and life.buffer_types[number].max_size is None:
            packing = improve(Problem(longer, None), packing[0].size, _EFFORT // 4)
        longer_packings.append(packing)
    plan = _to_allocation(life, longer_packings)
    return plan if plan.total <= total + total // _STAGES_WORTH else None


def _to_allocation(life: Lifetimes, packings: list[tuple[Packing, str]]) -> Allocation:
    place: dict[Tensor, Placement] = {}
    arenas = []
    for arena, (packing, name) in enumerate(packings):
        places = zip(life.items[arena], packing.chunk_of, packing.offsets, strict=True)
        for item, chunk, offset in places:
            for tensor in item.tensors:
                place[tensor] = Placement(arena, chunk, offset, life.sizes[tensor])
        bound = life.lower_bounds[arena]
        arenas.append(Arena(life.buffer_types[arena], tuple(packing.chunks), bound, name))
    return Allocation(tuple(arenas), place, tuple(life.arena_of))


def _is_valid(schedule: Schedule, plan: Allocation) -> bool:
    try:
        validate(schedule, plan)
    except AllocationError:
        return False
    return True
