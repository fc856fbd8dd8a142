"""Memory for nodes that run at the same time.

Packing lets a result take the bytes of another that is read for the last time just before, so that
the one must wait for the other. Where a backend runs independent nodes together, everything that a
node of a stage needs is therefore kept for the whole stage.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.allocate.lifetime import Item
from weft.graph.op import NONE
from weft.graph.tensor import Tensor
from weft.schedule.result import Schedule

__all__ = ["over_stages", "stage_spans"]


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
    """The items with lifetimes of whole stages; an item that does not change is returned itself."""
    n = len(spans)
    longer = []
    for item in items:
        start = spans[item.start][0] if 0 <= item.start < n else item.start
        end = spans[item.end][1] if 0 <= item.end < n else item.end
        if (start, end) != (item.start, item.end):
            item = Item(item.arena, start, end, item.size, item.tensors)
        longer.append(item)
    return longer
