"""A schedule in words: a text table, and the same as plain data."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from weft.errors import ScheduleError
from weft.graph.tensor import Tensor, shape_text

if TYPE_CHECKING:
    from weft.schedule.result import Schedule

__all__ = ["CAUSES", "cause_text", "dot", "mermaid", "table", "to_json", "why"]

FORMAT = "weft-plan-1"
"""What `to_json` makes; changes when its keys do."""

CAUSES: dict[str, str] = {
    "usr": "assigned by the user",
    "1.dst": "its memory is there",
    "1.inp": "it is an input, which the last device holds",
    "1.off": "the device asked for it, although a weight is in host memory",
    "1.wgt": "a weight is there",
    "2.sup": "a neighbour is there, and the device runs it",
    "3.best": "most of its sources can be read there",
    "3.upg": "a higher device uses the same memory and runs it",
    "4.vsrc": "the tensor it views is there",
    "4.cur": "the node that reads it is there",
    "4.cpy": "a copy for a split",
    "6.cpy": "an input with several copies",
}
"""Cause code -> meaning; a weight's code ends in the index of the source."""


def cause_text(schedule: Schedule, tensor: Tensor) -> str:
    """Why `tensor` is where it is, with the names that decided."""
    code = schedule.cause_of.get(tensor, "")
    if code in ("1.dst", "4.vsrc"):
        base = tensor if tensor.view_src is None else tensor.view_src
        if base.buffer is not None:
            what = "it" if base is tensor else _name(base)
            return f"{what} lives in {_memory(base)} memory"
        return f"the tensor it views, {_name(base)}, is there"
    if code.startswith("1.wgt") or code == "1.off":
        weight = _deciding_weight(tensor, code)
        lives = f"weight {_name(weight)} lives in {_memory(weight)} memory"
        return f"asked for by the device; {lives}" if code == "1.off" else lives
    if code == "1.inp":
        return "it is an input, the last device holds those"
    return CAUSES.get(code, "not assigned")


def why(schedule: Schedule, name: str) -> str:
    """Everything known about one tensor of the graph: device, cause, refusals, split, and the
    copies that its readers use instead. Raises ScheduleError for a name the graph does not have."""
    found = [t for t in schedule.graph.tensors if t.name == name]
    if not found:
        near = get_close_matches(name, [t.name for t in schedule.graph.tensors], 3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise ScheduleError(f"the graph has no tensor called {name!r}{hint}")
    return "\n".join(line for tensor in found for line in _why_lines(schedule, tensor))


def _why_lines(schedule: Schedule, tensor: Tensor) -> list[str]:
    backend = schedule.backend_for(tensor)
    code = schedule.cause_of.get(tensor, "")
    where = "no device" if backend is None else backend.name
    lines = [
        f"{_name(tensor)}: {tensor.op.name} {tensor.dtype.name}{shape_text(tensor)} on {where}",
        f"  because ({code or '-'}) {cause_text(schedule, tensor)}",
    ]
    for b, other in enumerate(schedule.backends):
        if (tensor, b) in schedule.refusals:
            lines.append(f"  {other.name} refused: {schedule.refusals[(tensor, b)]}")
    for number, split in enumerate(schedule.splits):
        if tensor in schedule.graph.nodes[split.start : split.end]:
            lines.append(f"  runs in split {number} ({schedule.backends[split.backend].name})")
        if tensor in split.inputs:
            name = schedule.backends[split.backend].name
            lines.append(f"  copied to {name} before split {number} ({tensor.max_bytes:,} B)")
    return lines


def _deciding_weight(tensor: Tensor, code: str) -> Tensor:
    if code.startswith("1.wgt"):
        found = tensor.src[int(code.removeprefix("1.wgt"))]
    else:
        found = next(
            s for s in tensor.src if s is not None and s.buffer and s.buffer.usage == "weights"
        )
    assert found is not None
    return found


def _name(tensor: Tensor) -> str:
    return tensor.name or tensor.op.name.lower()


def _memory(tensor: Tensor) -> str:
    buffer_type = tensor.buffer.type if tensor.buffer is not None else None
    return "host" if buffer_type is None else str(buffer_type.name)


def to_json(schedule: Schedule) -> dict[str, Any]:
    """Plain data: `format`, `devices`, `splits` (device, node range, inputs with bytes, nodes with
    device, cause and refusals), `totals` (splits, copies, bytes copied in one run)."""
    names = [b.name for b in schedule.backends]

    def device(tensor: Tensor) -> str | None:
        index = schedule.backend_of.get(tensor, -1)
        return None if index < 0 else names[index]

    splits = []
    for number, split in enumerate(schedule.splits):
        nodes = []
        for i in range(split.start, split.end):
            node = schedule.graph.nodes[i]
            nodes.append(
                {
                    "index": i,
                    "name": node.name,
                    "op": node.op.name,
                    "shape": shape_text(node),
                    "type": node.dtype.name,
                    "device": device(node),
                    "cause": schedule.cause_of.get(node, ""),
                    "why": cause_text(schedule, node),
                    "refused": {
                        name: schedule.refusals[(node, b)]
                        for b, name in enumerate(names)
                        if (node, b) in schedule.refusals
                    },
                }
            )
        splits.append(
            {
                "split": number,
                "device": names[split.backend],
                "start": split.start,
                "end": split.end,
                "inputs": [
                    {"name": t.name, "from": device(t), "bytes": t.max_bytes} for t in split.inputs
                ],
                "nodes": nodes,
            }
        )
    crossing = [t.max_bytes for split in schedule.splits for t in split.inputs]
    return {
        "format": FORMAT,
        "devices": [
            {"name": b.name, "kind": b.kind, "memory": b.buffer_type.name}
            for b in schedule.backends
        ],
        "n_copies": schedule.n_copies,
        "splits": splits,
        "totals": {
            "splits": len(splits),
            "nodes": len(schedule.graph.nodes),
            "copies": len(crossing),
            "copied_bytes": sum(crossing),
        },
    }


def table(schedule: Schedule) -> str:
    """The same as text: a line per split, then a line per node of it."""
    data = to_json(schedule)
    lines = ["devices: " + ", ".join(f"{d['name']} ({d['kind']})" for d in data["devices"])]
    rows = [node for split in data["splits"] for node in split["nodes"]]
    name_width = min(40, max((len(r["name"]) for r in rows), default=0))
    op_width = max((len(r["op"]) for r in rows), default=0)
    device_width = max(len(d["name"]) for d in data["devices"])
    for split in data["splits"]:
        lines.append("")
        lines.append(
            f"split {split['split']}: {split['device']}, nodes {split['start']}..{split['end']}"
        )
        for entry in split["inputs"]:
            lines.append(f"  copies {entry['name']} from {entry['from']} ({entry['bytes']:,} B)")
        for r in split["nodes"]:
            line = (
                f"  {r['index']:>5}  {r['name']:<{name_width}}  {r['op']:<{op_width}}  "
                f"{r['device'] or '-':<{device_width}}  {r['cause']:<6}  {r['why']}"
            )
            lines.append(line.rstrip())
            for name, why in r["refused"].items():
                lines.append(f"         {name} refused: {why}")
    t = data["totals"]
    lines.append("")
    lines.append(
        f"total: {t['splits']} splits, {t['nodes']} nodes, {t['copies']} copies, "
        f"{t['copied_bytes']:,} B copied per run"
    )
    return "\n".join(lines)


def mermaid(schedule: Schedule) -> str:
    """The splits and what is copied between them, as a Mermaid flowchart."""
    boxes, edges = _split_graph(schedule)
    lines = ["flowchart TD"]
    lines += [f'  {key}["{label}"]' for key, label in boxes.items()]
    lines += [f'  {a} -->|"{label}"| {b}' for a, b, label in edges]
    return "\n".join(lines)


def dot(schedule: Schedule) -> str:
    """The same for Graphviz."""
    boxes, edges = _split_graph(schedule)
    lines = ["digraph splits {", "  node [shape=box];"]
    lines += [f'  {key} [label="{label}"];' for key, label in boxes.items()]
    lines += [f'  {a} -> {b} [label="{label}"];' for a, b, label in edges]
    return "\n".join([*lines, "}"])


def _split_graph(schedule: Schedule) -> tuple[dict[str, str], list[tuple[str, str, str]]]:
    """Boxes (key -> label) and edges (from, to, label): one per split, one per device for what
    exists before the run."""
    names = [b.name for b in schedule.backends]
    boxes = {
        f"s{i}": f"split {i}: {names[s.backend]}, {s.end - s.start} nodes"
        for i, s in enumerate(schedule.splits)
    }
    made_in = {
        node: f"s{i}"
        for i, split in enumerate(schedule.splits)
        for node in schedule.graph.nodes[split.start : split.end]
    }
    moved: dict[tuple[str, str], list[Tensor]] = {}
    for i, split in enumerate(schedule.splits):
        for tensor in split.inputs:
            origin = made_in.get(tensor)
            if origin is None:
                device = schedule.backend_of.get(tensor, -1)
                origin = f"d{device}"
                boxes.setdefault(origin, f"inputs and weights of {names[device]}")
            moved.setdefault((origin, f"s{i}"), []).append(tensor)
    edges = []
    for (a, b), tensors in moved.items():
        size = sum(t.max_bytes for t in tensors)
        what = _name(tensors[0]) if len(tensors) == 1 else f"{len(tensors)} tensors"
        edges.append((a, b, f"{what}, {size:,} B".replace('"', "'")))
    return boxes, edges
