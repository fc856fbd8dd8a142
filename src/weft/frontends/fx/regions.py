"""Nodes of a program that PyTorch itself runs: when it is converted, or later on the host.

Nodes that weft does not convert become host functions (`weft.graph.host`). Neighbours are one
function, so that values that weft has no type or no size for (float64, complex numbers, sizes that
depend on data) stay inside.

When a program is converted, PyTorch computes all values that depend on no input: positions, masks
of fixed sizes and other small tensors, but not weights, which stay in place.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeAlias

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node
from torch.fx.node import map_arg

from weft.frontends.fx.call import aten_op
from weft.frontends.fx.sizes import is_static
from weft.records import dataclass


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
    if aten_op(node.target) is None and not (_is_plain(node.target) or runs_parts(node)):
        return "it is a function of functions that weft does not know"
    if "val" not in node.meta and node.users:
        return "the exporter left no types and shapes on it"
    for other in (node, *node.all_input_nodes):
        for fake in _flat(other.meta.get("val")):
            if isinstance(fake, torch.Tensor) and fake.device.type not in ("cpu", "meta"):
                return f"it is on {fake.device}"
    return None


_OF_PARTS = ("cond", "while_loop", "scan", "associative_scan", "map_impl")


def runs_parts(node: Node) -> bool:
    """Whether a node runs parts of the program, which are modules: branches, or bodies of loops."""
    is_one = isinstance(node.target, torch._ops.HigherOrderOperator)
    return is_one and node.target.name() in _OF_PARTS


def part_of(node: Node) -> torch.nn.Module | None:
    """The part of the program that a node stands for, or None."""
    if node.op != "get_attr" or node.graph.owning_module is None:
        return None
    value: Any = node.graph.owning_module
    for name in str(node.target).split("."):
        value = getattr(value, name)
    return value if isinstance(value, torch.nn.Module) else None


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


MAX_FOLDED = 2**20
"""Maximum number of elements of a value that is folded, unless a parameter that it comes from is as
large."""
MAX_BUFFER = 2**16
"""Maximum number of elements of a buffer of any type that values are folded from."""

Constant: TypeAlias = torch.Tensor | list[torch.Tensor]
"""The result of a node that is folded: a list where it has several."""

_BUFFERS = (InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
_WRITTEN = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)


def known_constants(program: ExportedProgram) -> dict[Node, Constant]:
    """The small buffers that a program does not write, and all values that it computes from them
    and from its parameters alone, except for views of parameters, which are read where these lie.

    What comes from buffers may have any type, as long as the program uses it in the place of
    constants. Parameters, and what comes from them, are float32."""
    signature = program.graph_signature
    written = {s.target for s in signature.output_specs if s.kind in _WRITTEN}
    specs = {spec.arg.name: spec for spec in signature.input_specs}
    known: dict[Node, Constant] = {}
    parameters: dict[Node, Constant] = {}
    in_place: set[Node] = set()
    for node in program.graph.nodes:
        if node.op == "placeholder":
            spec = specs[node.name]
            if spec.target in written or spec.kind not in (*_BUFFERS, InputKind.PARAMETER):
                continue
            tensor = program.state_dict.get(spec.target)
            data = program.constants.get(spec.target) if tensor is None else tensor
            if not isinstance(data, torch.Tensor):
                continue
            if spec.kind in _BUFFERS and data.numel() <= MAX_BUFFER:
                known[node] = data.detach()
            elif _is_float_tensor(data):
                parameters[node] = data.detach()
                in_place.add(node)
        elif node.op == "call_function":
            value = folded(node, known, parameters)
            if value is not None:
                made = any(n in parameters for n in node.all_input_nodes)
                (parameters if made else known)[node] = value
                if (_is_view(node) or _is_part(node)) and node.args[0] in in_place:
                    in_place.add(node)
    return known | {n: value for n, value in parameters.items() if n not in in_place}


def _is_part(node: Node) -> bool:
    """Whether a node is one of the results of its first argument."""
    return node.target is operator.getitem


def _is_view(node: Node) -> bool:
    """Whether a node is its first argument in another order; weft reads that where it lies."""
    op = aten_op(node.target)
    return op is not None and (op.is_view or torch.Tag.view_copy in op.tags)


def _is_float_tensor(data: torch.Tensor) -> bool:
    """Whether a tensor is float32 in the memory of the processor."""
    kinds = (torch.Tensor, torch.nn.Parameter)
    return type(data) in kinds and data.device.type == "cpu" and data.dtype == torch.float32


def folded(
    node: Node, known: Mapping[Node, Constant], parameters: Mapping[Node, Constant]
) -> Constant | None:
    """The result of a node whose tensors are all known, or None where it is not folded.
    `parameters` are float32 as well as known."""
    sources = {n: parameters[n] if n in parameters else known.get(n) for n in node.all_input_nodes}
    if any(data is None for data in sources.values()):
        return None
    if _is_part(node):
        source = sources.get(node.args[0])
        return source[node.args[1]] if isinstance(source, list) else None
    op = aten_op(node.target)
    if op is None or op.namespace != "aten" or torch.Tag.nondeterministic_seeded in op.tags:
        return None
    large = [n for n in sources if n in parameters]
    most = max([MAX_FOLDED, *(_numel(parameters[n]) for n in large)])
    fakes = _flat(node.meta.get("val"))
    for fake in fakes:
        if not isinstance(fake, torch.Tensor) or not is_static(fake.shape) or fake.numel() > most:
            return None
        if large and fake.dtype != torch.float32:
            return None
    args: Any = map_arg(node.args, sources.__getitem__)
    kwargs: Any = map_arg(dict(node.kwargs), sources.__getitem__)
    try:
        with torch.no_grad():
            result = op(*args, **kwargs)
    except (RuntimeError, TypeError, ValueError):
        return None
    results = _flat(result)
    if len(results) != len(fakes) or not all(map(_fits, results, fakes)):
        return None
    return results if isinstance(result, (list, tuple)) else results[0]


def _numel(constant: Constant) -> int:
    return sum(data.numel() for data in _flat(constant))


def _fits(result: Any, fake: torch.Tensor) -> bool:
    """Whether a result has the shape and the type that the exporter says."""
    if not isinstance(result, torch.Tensor):
        return False
    return bool(result.shape == fake.shape and result.dtype == fake.dtype)
