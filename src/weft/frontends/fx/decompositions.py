"""PyTorch's own decompositions: how ops are made of core ops."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch.export import default_decompositions


def decompositions() -> dict[Any, Any]:
    """PyTorch's own table, kept as long as no other ops are defined: it takes long to make."""
    return _decompositions_of(tuple(torch._C._dispatch_get_all_op_names()))


@lru_cache(maxsize=1)
def _decompositions_of(ops: tuple[str, ...]) -> dict[Any, Any]:
    return dict(default_decompositions())


def is_drawing(op: Any) -> bool:
    """Whether an op draws random numbers: decomposed, it would draw others than PyTorch does.

    Layers with dropout inside (`lstm`) are none of these: outside of training they draw nothing."""
    drawing = torch.Tag.nondeterministic_seeded in op.tags
    return drawing and all(a.name != "dropout" for a in op._schema.arguments)


def is_decomposed(op: Any) -> bool:
    """Whether an op without a conversion of its own is made of core ops before a program is
    converted."""
    if not isinstance(op, torch._ops.OpOverload) or is_drawing(op):
        return False
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    return op in decompositions() or bool(op.has_kernel_for_dispatch_key(composite))
