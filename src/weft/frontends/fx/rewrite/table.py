"""The table of rewrites, and the helpers with which they examine nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch.fx import Node

from weft.errors import GraphError
from weft.frontends.fx.builder import Builder
from weft.frontends.fx.call import Call, aten_op
from weft.frontends.fx.layout import Value
from weft.records import dataclass

Build: TypeAlias = Callable[[Builder, Call], "Value | list[Value | None] | None"]


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A rewrite by name; `build` returns None where the pattern is another."""

    name: str
    build: Build


REWRITES: dict[torch._ops.OpOverload, list[Rewrite]] = {}
"""Rewrites by the op of the last node of the pattern, in the order in which they are tried."""


def rewrite(name: str, *ops: Any) -> Callable[[Build], Build]:
    """Registers a rewrite for patterns that end in one of these ops."""

    def register(build: Build) -> Build:
        for op in ops:
            if any(r.name == name for r in REWRITES.get(op, ())):
                raise GraphError(f"rewrite {name} is registered twice for {op}")
            REWRITES.setdefault(op, []).append(Rewrite(name, build))
        return build

    return register


def is_call(node: Any, *names: str) -> bool:
    """Whether `node` calls an aten op of one of these names (any overload)."""
    if not isinstance(node, Node) or node.op != "call_function":
        return False
    op = aten_op(node.target)
    return op is not None and op._schema.name.removeprefix("aten::") in names


def source_of(node: Any, *names: str) -> Any:
    """The node before any calls of these ops, e.g. conversions of type."""
    while is_call(node, *names):
        node = node.args[0]
    return node


def factors(node: Any, name: str = "mul") -> list[tuple[Any, Any]]:
    """Both orders of the operands of a product (or another op that takes them in any order)."""
    if not is_call(node, name) or len(node.args) < 2:
        return []
    left, right = node.args[:2]
    return [(left, right), (right, left)]
