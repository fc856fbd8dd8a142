"""All that packing a graph into memory depends on besides the sizes of its tensors.

The page packs it again with other sizes, as `weft.allocate` does: it has the items with their
lifetimes, the steps of the reference's allocator, and what the check of its plan asks. Tensors are
numbered in the order in which lifetimes begin to be planned; sizes are numbers of formulas.
"""

from __future__ import annotations

from typing import Any

from weft.allocate import GraphAllocator
from weft.allocate.lifetime import Lifetimes, lifetimes, over_stages, stage_spans
from weft.allocate.plan import like_reference
from weft.allocate.result import replaces, uses
from weft.allocate.validate import check_users
from weft.errors import AllocationError
from weft.graph.tensor import Tensor
from weft.report.formulas import Formulas, NotCarried
from weft.report.tables import unique_names
from weft.schedule import Schedule

__all__ = ["structure"]


def structure(schedule: Schedule, formulas: Formulas) -> dict[str, Any]:
    """The structure of a schedule's memory as plain data.

    names      of the tensors
    sizes      their formulas
    spans      first and last time of each
    parents    the tensor whose memory each takes over, or -1
    arenas     memory, alignment, max_size (or null) and `items`, a list of [first tensor, start,
               end, start and end over stages]
    arena_of   the arena of each backend
    stages     whether some device runs nodes at the same time
    events     of the reference's allocator: ["a", tensor, backend], ["t", tensor, source], ["f",
               tensor]
    writes     [time, tensor] in the order of the check, until: when each is read for the last time
    over       the tensors that each may replace
    usable     whether all devices can read what the reference's plan gives them

    Raises NotCarried where a size has no formula, or a memory gives a tensor another size."""
    life = lifetimes(schedule)
    planner = _Recorded([b.buffer_type for b in schedule.backends], life)
    planner.measure(schedule)
    tensors = list(life.spans)
    index = {tensor: i for i, tensor in enumerate(tensors)}
    _check_sizes(life)
    parents = [-1] * len(tensors)
    for items in life.items:
        for item in items:
            for before, after in zip(item.tensors, item.tensors[1:], strict=False):
                parents[index[after]] = index[before]
    spans = stage_spans(schedule)
    writes, until = uses(schedule)
    copied = {copy: source for split in schedule.splits for source, copy in split.copies}
    arenas = []
    for items, buffer_type in zip(life.items, life.buffer_types, strict=True):
        longer = items if spans is None else over_stages(items, spans)
        arenas.append(
            {
                "memory": buffer_type.name,
                "alignment": buffer_type.alignment,
                "max_size": buffer_type.max_size,
                "items": [
                    [index[a.tensors[0]], a.start, a.end, b.start, b.end]
                    for a, b in zip(items, longer, strict=True)
                ],
                "longer": longer != items,
            }
        )
    return {
        "names": unique_names(tensors),
        "sizes": [formulas.number(t.nbytes) for t in tensors],
        "spans": [list(life.spans[t]) for t in tensors],
        "parents": parents,
        "arenas": arenas,
        "arena_of": life.arena_of,
        "times": len(schedule.plan_nodes),
        "stages": spans is not None,
        "events": [
            [kind, index[tensor], index[other] if isinstance(other, Tensor) else other]
            for kind, tensor, other in planner.events
        ],
        "writes": [[at, index[t]] for at, t in writes],
        "until": [until[t] for t in tensors],
        "over": [
            [
                index[s]
                for s in dict.fromkeys((*t.src, copied.get(t)))
                if s is not None and s in index and (copied.get(t) is s or replaces(t, s))
            ]
            for t in tensors
        ],
        "usable": _usable(schedule, life, planner),
    }


def _check_sizes(life: Lifetimes) -> None:
    for tensor, size in life.sizes.items():
        if size != tensor.max_bytes:
            raise NotCarried(f"a memory gives {tensor.name} more bytes than it has")


def _usable(schedule: Schedule, life: Lifetimes, planner: GraphAllocator) -> bool:
    if len(life.buffer_types) == 1:
        return True
    try:
        check_users(schedule, like_reference(schedule, life, planner))
    except AllocationError:
        return False
    return True


class _Recorded(GraphAllocator):
    """The reference's allocator, which notes what it does; that does not depend on sizes."""

    def __init__(self, buffer_types: list[Any], life: Lifetimes) -> None:
        super().__init__(buffer_types)
        self.events: list[tuple[str, Tensor, Tensor | int]] = []
        self._life = life

    def _size(self, backend: int, tensor: Tensor) -> int:
        return self._life.sizes[tensor]  # the same in all memories, as `_check_sizes` found

    def _allocate(self, tensor: Tensor, backend: int) -> None:
        if tensor.view_src is not None or tensor.buffer is not None:
            return
        if self._state(tensor).allocated:
            return
        n = len(self.events)
        super()._allocate(tensor, backend)
        if not any(kind == "t" for kind, _, _ in self.events[n:]):
            self.events.append(("a", tensor, self._first[backend]))

    def _free_tail(self, node: Tensor, src: Tensor, state: Any) -> None:
        self.events.append(("t", node, src))
        super()._free_tail(node, src, state)

    def _free(self, tensor: Tensor, state: Any) -> None:
        if "output" not in tensor.flags:
            self.events.append(("f", tensor, 0))
        super()._free(tensor, state)
