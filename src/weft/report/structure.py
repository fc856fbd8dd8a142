"""A graph's memory as the page shows it at other sizes: lifetimes of tensors, formulas of their
bytes, and the places that weft gave them where it made a plan.

Tensors are numbered in the order in which lifetimes begin to be planned; sizes are numbers of
formulas.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from weft.allocate import allocate
from weft.allocate.lifetime import Lifetimes, lifetimes
from weft.graph.tensor import Tensor
from weft.report.formulas import Formulas, NotCarried, Ranges, upper_at
from weft.report.tables import times_in_use, unique_names
from weft.schedule import Schedule


def structure(
    schedule: Schedule, formulas: Formulas, positions: Iterable[Ranges]
) -> dict[str, Any]:
    """The structure of a graph's memory as plain data.

    symbols    names of symbols, in the order of the keys of packings
    names      of the tensors
    sizes      the numbers of their formulas
    spans      first and last time of each
    times      number of steps
    arenas     memory, alignment, and `peaks`: the sums of formulas, as [number, how often] each, of
               which one is the lower bound at each of the positions

    Raises NotCarried where a size has no formula, or a memory gives a tensor another size."""
    life = lifetimes(schedule)
    for tensor, size in life.sizes.items():
        if size != tensor.max_bytes:
            raise NotCarried(f"a memory gives {tensor.name} more bytes than it has")
    spans = times_in_use(life)
    number = {tensor: formulas.number(tensor.nbytes) for tensor in life.spans}
    places = list(positions)
    return {
        "symbols": list(schedule.graph.symbols),
        "names": unique_names(list(life.spans)),
        "sizes": list(number.values()),
        "spans": [spans[tensor] for tensor in life.spans],
        "times": len(schedule.plan_nodes),
        "arenas": [
            {
                "memory": buffer_type.name,
                "alignment": buffer_type.alignment,
                "peaks": _peaks(life, arena, spans, number, places),
            }
            for arena, buffer_type in enumerate(life.buffer_types)
        ],
    }


def _peaks(
    life: Lifetimes,
    arena: int,
    spans: dict[Tensor, tuple[int, int]],
    number: dict[Tensor, int],
    places: list[Ranges],
) -> list[list[list[int]]]:
    """The formulas of what is in use at each time that is the peak at some position."""
    tensors = [tensor for item in life.items[arena] for tensor in item.tensors]
    if not tensors:
        return []
    alignment = life.buffer_types[arena].alignment
    sizes = {number[t]: t.nbytes for t in tensors}
    rows = {n: row for row, n in enumerate(sizes)}
    change = np.zeros((len(rows), max(end for _, end in spans.values()) + 3), np.int64)
    for tensor in tensors:
        start, end = spans[tensor]
        change[rows[number[tensor]], [start + 1, end + 2]] += (1, -1)  # times begin at -1
    in_use = change.cumsum(axis=1)
    peaks = {}
    for ranges in places:
        padded = [-(-upper_at(size, ranges) // alignment) * alignment for size in sizes.values()]
        at = int(np.argmax(np.array(padded, np.int64) @ in_use))
        counts = [[n, int(in_use[row, at])] for n, row in rows.items() if in_use[row, at]]
        peaks[str(counts)] = counts
    return list(peaks.values())


def packing(schedule: Schedule) -> dict[str, Any]:
    """The places of the tensors of `structure`: `arenas`, and a list each of the arena, the block
    of the arena, and the offset of every tensor."""
    memory = allocate(schedule)
    places = [memory.place[tensor] for tensor in lifetimes(schedule).spans]
    return {
        "arenas": [
            {
                "chunks": list(arena.chunks),
                "bytes": arena.size,
                "lower_bound": arena.lower_bound,
                "planner": arena.planner,
            }
            for arena in memory.arenas
        ],
        "arena": [place.arena for place in places],
        "chunk": [place.chunk for place in places],
        "offset": [place.offset for place in places],
    }
