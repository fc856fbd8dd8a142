"""Nodes of a program that PyTorch itself runs, on the host: which ones, and in which groups.

Nodes that weft does not convert become host functions (`weft.graph.host`). Neighbours are one
function, so that values that weft has no type or no size for (float64, complex numbers, sizes that
depend on data) stay inside.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch.fx import Node

from weft.frontends.fx.call import aten_op
from weft.records import dataclass

__all__ = ["Region", "in_stages", "is_drawn", "regions", "why_not_on_host"]


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """Nodes that one host function computes, in order."""

    nodes: tuple[Node, ...]
    stage: int

    @property
    def draws(self) -> bool:
        """Whether it draws random numbers."""
        return any(is_drawn(n) for n in self.nodes)


def is_drawn(node: Node) -> bool:
    """Whether a node draws random numbers."""
    op = aten_op(node.target) if node.op == "call_function" else None
    return op is not None and torch.Tag.nondeterministic_seeded in op.tags


def why_not_on_host(node: Node) -> str | None:
    """The reason why PyTorch cannot run a node that weft does not convert; None where it can."""
    if aten_op(node.target) is None and not _is_plain(node.target):
        return "it runs a part of the program that is chosen at run time"
    if "val" not in node.meta and node.users:
        return "the exporter left no types and shapes on it"
    for other in (node, *node.all_input_nodes):
        for fake in _flat(other.meta.get("val")):
            if isinstance(fake, torch.Tensor) and fake.device.type not in ("cpu", "meta"):
                return f"it is on {fake.device}"
    return None


def _is_plain(target: Any) -> bool:
    """Whether a target is a function of numbers, such as `operator.add` or `torch.sym_max`."""
    module = getattr(target, "__module__", "") or ""
    return module in ("_operator", "builtins", "math", "torch") or target is operator.getitem


def _is_check(node: Node) -> bool:
    """Whether a node has no result, as assertions have none."""
    return node.op == "call_function" and node.meta.get("val") is None and not node.users


def _flat(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def regions(nodes: Iterable[Node], hosted: Collection[Node]) -> dict[Node, Region]:
    """Groups of the nodes that PyTorch runs, with the results that are taken apart behind them.

    Stages alternate between the two: a node is of a later stage than one of the other kind that
    it reads. Connected nodes of a stage are a group, so that no group waits for itself. Nodes that
    draw random numbers are connected in their order."""
    stage: dict[Node, int] = {}
    group: dict[Node, Node] = {}
    on_host = set(hosted)
    drawn: Node | None = None

    def root(node: Node) -> Node:
        while group[node] is not node:
            group[node] = group[group[node]]
            node = group[node]
        return node

    for node in nodes:
        sources = list(node.all_input_nodes)
        follows = node.target is operator.getitem or _is_check(node)
        if follows and any(s in on_host for s in sources):
            on_host.add(node)
        if is_drawn(node) and node in on_host:
            sources += [drawn] if drawn is not None else []
            drawn = node
        here = node in on_host
        stage[node] = max((stage[s] + ((s in on_host) != here) for s in sources), default=0)
        if here:
            group[node] = node
            for s in sources:
                if s in on_host and stage[s] == stage[node]:
                    group[root(s)] = root(node)
    members: dict[Node, list[Node]] = {}
    for node in group:
        members.setdefault(root(node), []).append(node)
    found: dict[Node, Region] = {}
    for part in members.values():
        region = Region(tuple(part), stage[part[0]])
        found.update(dict.fromkeys(part, region))
    return found


def in_stages(nodes: Iterable[Node], found: dict[Node, Region]) -> list[Node]:
    """The nodes in an order in which a region may be computed at its first node."""
    ordered = list(nodes)
    if not found:
        return ordered
    stage: dict[Node, int] = {}
    for node in ordered:
        here = found.get(node)
        stage[node] = here.stage if here is not None else max(
            (stage[s] + (s in found) for s in node.all_input_nodes), default=0
        )  # fmt: skip
    return sorted(ordered, key=stage.__getitem__)
