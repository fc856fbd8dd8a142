"""Which ops stay whole when a program is brought to the core ops."""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram, default_decompositions

from weft.frontends.fx.registry import find_visitor

__all__ = ["core_program", "kept_whole"]


def kept_whole() -> list[torch._ops.OpOverload]:
    """Ops that PyTorch would decompose and that weft builds as they are: `linear`, attention,
    norms, activations. For `ops_to_not_decompose` of a partitioner, too."""
    return [op for op in default_decompositions() if find_visitor(op) is not None]


def core_program(program: ExportedProgram) -> ExportedProgram:
    """The program without in-place ops, in core ops and those of `kept_whole`."""
    table: dict[Any, Any] = default_decompositions()
    for op in kept_whole():
        table.pop(op, None)
    return program.run_decompositions(table)
