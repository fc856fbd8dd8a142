"""The splits and the copies between them as a graph, for Mermaid and Graphviz."""

from __future__ import annotations

from weft.graph.tensor import Tensor
from weft.schedule.describe import Placed, name_of


def mermaid(schedule: Placed) -> str:
    """The splits and the copies between them, as a Mermaid flowchart."""
    boxes, edges = _split_graph(schedule)
    lines = ["flowchart TD"]
    lines += [f'  {key}["{label}"]' for key, label in boxes.items()]
    lines += [f'  {a} -->|"{label}"| {b}' for a, b, label in edges]
    return "\n".join(lines)


def dot(schedule: Placed) -> str:
    """The splits and the copies between them, as a graph for Graphviz."""
    boxes, edges = _split_graph(schedule)
    lines = ["digraph splits {", "  node [shape=box];"]
    lines += [f'  {key} [label="{label}"];' for key, label in boxes.items()]
    lines += [f'  {a} -> {b} [label="{label}"];' for a, b, label in edges]
    return "\n".join([*lines, "}"])


def _split_graph(schedule: Placed) -> tuple[dict[str, str], list[tuple[str, str, str]]]:
    """Boxes (key -> label) and edges (from, to, label).

    There is one box for each split, and one for each device that holds inputs or weights before the
    run."""
    names = [b.name for b in schedule.backends]
    boxes = {
        f"s{i}": f"split {i}: {names[s.backend]}, {s.n_ops} op{'' if s.n_ops == 1 else 's'}"
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
        what = name_of(tensors[0]) if len(tensors) == 1 else f"{len(tensors)} tensors"
        edges.append((a, b, f"{_plain(what)}, {size:,} B"))
    return {key: _plain(label) for key, label in boxes.items()}, edges


def _plain(text: str) -> str:
    """`text` without characters that would end a label."""
    return text.replace('"', "'").replace("\\", "/")
