"""The nodes that a partitioner gave to weft, as the data of a page of `weft.report`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from weft.version import __version__

__all__ = ["PlacedNode", "partition_data"]


@dataclass(frozen=True, slots=True)
class PlacedNode:
    """A node of a program, and where the partitioner put it."""

    node: str
    op: str
    result: str
    """Type and sizes, such as "float32[2, 16]"; empty for a node that gives no tensor."""
    part: int | None
    """The number of the part that weft runs; None where the node stays outside."""
    reason: str = ""
    """Why it stays outside; empty where it does not."""


def partition_data(nodes: Sequence[PlacedNode], title: str = "What weft runs") -> dict[str, Any]:
    """The data of a partition's page; `nodes` are in the order of the program."""
    parts = Counter(node.part for node in nodes if node.part is not None)
    outside = [node for node in nodes if node.part is None]
    lines = [
        f"weft runs {sum(parts.values())} of {_plural(len(nodes), 'node')} "
        f"in {_plural(len(parts), 'part')}."
    ]
    reasons = Counter((node.op, node.reason) for node in outside)
    if outside:
        lines += ["", f"{_plural(len(outside), 'node')} left out:"]
        lines += [f"  {n} x {op}: {why}" for (op, why), n in reasons.most_common()]
    return {
        "kind": "partition",
        "title": title,
        "weft": __version__,
        "text": lines,
        "nodes": [asdict(node) for node in nodes],
    }


def _plural(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"
