"""Graphs that are built before ExecuTorch asks for them, by the name of the op that represents
each: `weft::NAME` in an exported program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch.export import ExportedProgram

from weft.frontends.fx.call import op_name
from weft_executorch.lowered import Delegated

__all__ = ["PENDING", "Pending", "find_pending"]


@dataclass(frozen=True, slots=True)
class Pending:
    """A graph, and the symbols of it that have one value in the file."""

    delegated: Delegated
    fixed: Mapping[str, int] = field(default_factory=dict)


PENDING: dict[str, Pending] = {}


def find_pending(program: ExportedProgram) -> Pending | None:
    """The graph of a program whose only op represents it; None for other programs."""
    calls = [op_name(n.target) for n in program.graph.nodes if n.op == "call_function"]
    names = [name.split(".")[1] for name in calls if name.startswith("weft.")]
    return PENDING.get(names[0]) if len(names) == len(calls) == 1 else None
