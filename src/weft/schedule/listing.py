"""A schedule as it runs, line by line: splits with their copies, nodes with their sources.

    ## split 1: cpu, 3 inputs: [x (64 B)] [node_4 (1.5 KiB)]
    node   12  MUL_MAT     ffn_up-0        f32[32, 4]    512 B  cpu 2.sup: blk.0.ffn_up [cpu] ...

Unlike `Schedule.explain` it shows the nodes that run, after copies were added and nodes fused, and
gives the causes as codes. With WEFT_SCHED_DEBUG every graph that is placed is printed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from weft.flags import FLAGS
from weft.graph.tensor import Tensor, shape_text
from weft.schedule.describe import cause_code
from weft.schedule.result import Schedule

__all__ = ["listing", "print_listing"]

_UNITS = ("B", "KiB", "MiB", "GiB")


def print_listing(schedule: Schedule) -> None:
    """Prints the listing to stderr where WEFT_SCHED_DEBUG asks for it."""
    if FLAGS.sched_debug > 0:
        print(listing(schedule, nodes=FLAGS.sched_debug > 1), file=sys.stderr, flush=True)


def listing(schedule: Schedule, *, nodes: bool = True) -> str:
    """A line for each split, with the tensors that are copied for it.

    `nodes` adds a line for each node except views, with its bytes, device and cause, and its
    sources with their devices."""
    devices = [backend.name for backend in schedule.backends]
    n_nodes = sum(len(split.nodes) for split in schedule.splits)
    parts = "split" if len(schedule.splits) == 1 else "splits"
    head = f"graph of {n_nodes} nodes in {len(schedule.splits)} {parts} on {', '.join(devices)}"
    if schedule.n_copies > 1:
        head += f", copy {schedule.cur_copy} of {schedule.n_copies}"
    lines = [head]
    number = 0
    for i, split in enumerate(schedule.splits):
        inputs = " ".join(f"[{t.name} ({_bytes(t)})]" for t in split.inputs)
        count = len(split.inputs)
        what = f", {count} input{'s' if count > 1 else ''}: {inputs}" if count else ""
        lines.append(f"## split {i}: {devices[split.backend]}{what}")
        for node in split.nodes:
            if nodes and not node.op.is_view:
                lines.append(_node_line(schedule, node, number, split.backend))
            number += 1
    return "\n".join(lines)


def _node_line(schedule: Schedule, node: Tensor, number: int, backend: int) -> str:
    cause = cause_code(schedule, schedule.origin.get(node, node))
    device = schedule.backends[backend].name
    sources = " ".join(_sources(schedule, node))
    return (
        f"node {number:>4}  {node.op.name:<14} {node.name:<24} {node.dtype.name}{shape_text(node)} "
        f"{_bytes(node)} {device} {cause or '-'}: {sources}"
    )


def _sources(schedule: Schedule, node: Tensor) -> Iterator[str]:
    for src in node.src:
        if src is None:
            yield "-"
            continue
        graphs = schedule.origin.get(src, src)
        index, why = schedule.backend_of.get(graphs, -1), cause_code(schedule, graphs)
        role = schedule.roles.get(src)
        if index < 0 and role is not None:
            index = role.backend
        where = "-" if index < 0 else schedule.backends[index].name
        yield f"{src.name or '?'} [{where} {why or '-'}]"


def _bytes(t: Tensor) -> str:
    value, unit = float(t.max_bytes), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.1f} {_UNITS[unit]}" if unit else f"{value:.0f} B"
