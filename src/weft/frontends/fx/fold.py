"""Constant folding: PyTorch computes all values that depend on no input when a program is
converted.

That holds for positions, masks of fixed sizes and other small tensors, but not for weights, which
stay in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node
from torch.fx.node import map_arg

from weft.frontends.fx.call import aten_op
from weft.frontends.fx.sizes import is_static

__all__ = ["MAX_FOLDED", "folded", "known_constants"]

MAX_FOLDED = 2**16
"""The number of elements of the largest tensor that is folded."""


_SMALL = (InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


def known_constants(program: ExportedProgram) -> dict[Node, torch.Tensor]:
    """Small buffers that the program does not write, and all values that it computes from them
    alone.

    They may have any type, as long as the program uses them in the place of constants."""
    signature = program.graph_signature
    written = {s.target for s in signature.output_specs if s.kind is OutputKind.BUFFER_MUTATION}
    specs = {spec.arg.name: spec for spec in signature.input_specs}
    known: dict[Node, torch.Tensor] = {}
    for node in program.graph.nodes:
        if node.op == "placeholder":
            spec = specs[node.name]
            if spec.kind in _SMALL and spec.target not in written:
                tensor = program.state_dict.get(spec.target)
                data = program.constants.get(spec.target) if tensor is None else tensor
                if isinstance(data, torch.Tensor) and data.numel() <= MAX_FOLDED:
                    known[node] = data.detach()
        elif node.op == "call_function":
            value = folded(node, known)
            if value is not None:
                known[node] = value
    return known


def folded(node: Node, known: Mapping[Node, torch.Tensor]) -> torch.Tensor | None:
    """The result of a node whose tensors are all known, or None where it is not folded."""
    fake, op = node.meta.get("val"), aten_op(node.target)
    if op is None or op.namespace != "aten" or not isinstance(fake, torch.Tensor):
        return None
    if not is_static(fake.shape) or fake.numel() > MAX_FOLDED:
        return None
    if any(n not in known for n in node.all_input_nodes):
        return None
    if torch.Tag.nondeterministic_seeded in op.tags:
        return None
    args: Any = map_arg(node.args, lambda n: known[n])
    kwargs: Any = map_arg(dict(node.kwargs), lambda n: known[n])
    try:
        with torch.no_grad():
            result = op(*args, **kwargs)
    except (RuntimeError, TypeError, ValueError):
        return None
    if (
        not isinstance(result, torch.Tensor)
        or result.shape != fake.shape
        or result.dtype != fake.dtype
    ):
        return None
    return result
