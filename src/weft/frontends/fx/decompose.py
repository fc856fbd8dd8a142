"""The ops that stay whole when a program is decomposed into core ops."""

from __future__ import annotations

from typing import Any

import torch
from torch._decomp import get_decompositions
from torch.export import ExportedProgram, default_decompositions
from torch.export._remove_effect_tokens_pass import _remove_effect_tokens

from weft.frontends.fx.registry import find_visitor

__all__ = ["core_program", "kept_whole"]


_NOT_CORE = (
    torch.ops.aten._batch_norm_with_update_functional.default,
    torch.ops.aten._native_batch_norm_legit.no_stats,
    torch.ops.aten._native_batch_norm_legit_functional.default,
    torch.ops.aten.dist.default,
    torch.ops.aten.grid_sampler_2d.default,
    torch.ops.aten.ldexp.Tensor,
    torch.ops.aten.max_pool2d_with_indices_backward.default,
    torch.ops.aten.native_group_norm_backward.default,
    torch.ops.aten.native_layer_norm_backward.default,
    torch.ops.aten.tril_indices.default,
    torch.ops.aten.triu_indices.default,
)
"""Ops that PyTorch leaves whole, although it can decompose them."""

_FASTER_WHOLE = (torch.ops.aten.grid_sampler_2d.default,)
"""Ops of `_NOT_CORE` that PyTorch computes faster than what they decompose into is computed."""


def kept_whole() -> list[torch._ops.OpOverload]:
    """Ops that PyTorch would decompose and that weft builds whole: `linear`, attention, norms,
    activations.

    They are also for `ops_to_not_decompose` of a partitioner."""
    return [op for op in default_decompositions() if find_visitor(op) is not None]


def _drawing(table: dict[Any, Any]) -> list[Any]:
    """Ops that draw random numbers: decomposed, they would draw others than PyTorch does.

    Layers with dropout inside (`lstm`) are none of them: outside of training they draw nothing."""
    drawing = [op for op in table if torch.Tag.nondeterministic_seeded in op.tags]
    return [op for op in drawing if all(a.name != "dropout" for a in op._schema.arguments)]


def core_program(program: ExportedProgram, *, host: bool = False) -> ExportedProgram:
    """The program without in-place ops, in core ops and the ops of `kept_whole`; with `host`, what
    PyTorch computes faster stays whole, too."""
    table: dict[Any, Any] = default_decompositions()
    for op in table.keys() & {*kept_whole(), *_drawing(table)}:
        del table[op]
    table.update(
        get_decompositions([op for op in _NOT_CORE if not host or op not in _FASTER_WHOLE])
    )
    program = program.run_decompositions(table)
    if any(n.target is torch.ops.higher_order.with_effects for n in program.graph.nodes):
        program = _remove_effect_tokens(program)
    return program
