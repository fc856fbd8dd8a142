"""A schedule in words: a text table, and the same as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weft.graph.tensor import Tensor, shape_text

if TYPE_CHECKING:
    from weft.schedule.result import Schedule

__all__ = ["CAUSES", "cause_text", "table", "to_json"]

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
    """Plain data: `devices`, `splits` (device, node range, inputs with bytes, nodes with device,
    cause and refusals), `totals` (splits, copies, bytes copied in one run)."""
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
