"""A program in core ops, by decomposing each kind of call once.

`run_decompositions` traces a whole program again, which takes longer than its export. Programs
repeat few kinds of calls (an op, the types and shapes of its arguments, its other arguments). A
sample program with one call of each kind is decomposed instead, and what becomes of a call replaces
every call of its kind.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymIntArgument,
    TensorArgument,
)
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from weft.frontends.fx.call import fake_of
from weft.frontends.fx.registry import is_from_data

Stays = Callable[[Node], bool]
"""Whether decomposing would leave a call as it is."""

_PROVED = (torch.ops.aten._assert_tensor_metadata.default,)
"""Calls without results: the export has made sure of what they assert."""


class _NotExpandableError(Exception):
    """A program that is only decomposed whole."""


def expanded(
    program: ExportedProgram,
    stays: Stays,
    decomposed: Callable[[ExportedProgram], ExportedProgram],
) -> ExportedProgram | None:
    """The program with every call that does not stay in core ops, and without in-place ops; None
    for programs that are only decomposed whole.

    `decomposed` decomposes the sample program. Programs that hold other programs or calls of vmap,
    that write inputs, buffers or views, or whose sizes depend on data are only decomposed whole."""
    try:
        kinds: dict[Node, str] = {}
        sample: dict[str, Node] = {}
        for node in program.graph.nodes:
            _require_plain(node)
            if _is_decomposed(node) and not _is_identity(node) and not stays(node):
                kinds[node] = _kind(node)
                sample.setdefault(kinds[node], node)
        parts = _decomposed_parts(program, sample, decomposed)
        return _Copy(program, stays).run({n: parts[kind] for n, kind in kinds.items()})
    except _NotExpandableError:
        return None


def without_identities(program: ExportedProgram) -> ExportedProgram:
    """The program without the nodes that return their argument itself, so that a program which
    writes into the result of one writes into the argument."""
    if not any(map(_is_identity, program.graph.nodes)):
        return program
    graph, values = Graph(), {}  # type: Graph, dict[Node, Node]
    for node in program.graph.nodes:
        if _is_identity(node):
            values[node] = values[node.args[0]]
        else:
            values[node] = graph.node_copy(node, values.__getitem__)
            if node.op == "placeholder":
                values[node].name = node.name
    return _with_graph(program, graph)


def _with_graph(program: ExportedProgram, graph: Graph) -> ExportedProgram:
    """The program with another graph, whose placeholders have the same names."""
    old = program.graph_signature
    results = next(n for n in reversed(graph.nodes) if n.op == "output").args[0]
    outputs = [
        OutputSpec(s.kind, type(s.arg)(name=n.name), s.target) if isinstance(n, Node) else s
        for s, n in zip(old.output_specs, results, strict=True)
    ]
    return ExportedProgram(
        root=GraphModule(program.graph_module, graph),
        graph=graph,
        graph_signature=ExportGraphSignature(list(old.input_specs), outputs),
        state_dict=program.state_dict,
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        constants=program.constants,
        verifiers=program.verifiers,
    )


def _require_plain(node: Node) -> None:
    of_vmap = getattr(node.target, "__module__", "").startswith("torch._functorch")
    if node.op == "get_attr" or of_vmap:
        raise _NotExpandableError
    for fake in pytree.tree_leaves(node.meta.get("val")):
        is_tensor = isinstance(fake, torch.Tensor)
        if is_traceable_wrapper_subclass(fake) or (is_tensor and fake.layout is not torch.strided):
            raise _NotExpandableError
        if any(map(is_from_data, fake.shape if is_tensor else (fake,))):
            raise _NotExpandableError


def _is_mutable(node: Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _is_decomposed(node: Node) -> bool:
    """Whether a node calls an op that makes tensors; others compute sizes, or assert something."""
    is_op = isinstance(node.target, torch._ops.OpOverload) and not _is_mutable(node)
    return is_op and isinstance(node.meta.get("val"), (torch.Tensor, list, tuple))


def _is_identity(node: Node) -> bool:
    """Whether a node returns its argument itself, which `run_decompositions` makes a copy."""
    if node.target is torch.ops.aten.type_as.default:
        return _looks_alike(node.args[0].meta.get("val"), node.meta.get("val"))
    is_dropout = node.target is torch.ops.aten.dropout.default
    return is_dropout and len(node.args) == 3 and node.args[2] is False


def _kind(node: Node) -> str:
    """A text that is equal for calls that decompose alike."""
    numbers = {source: i for i, source in enumerate(node.all_input_nodes)}

    def described(source: Node) -> Any:
        fake = source.meta.get("val")
        if isinstance(fake, torch.Tensor):
            flags = fake.requires_grad, fake.is_conj(), fake.is_neg(), fake.storage_offset()
            fake = fake.dtype, fake.device, fake.layout, *fake.shape, fake.stride(), *flags
        return f"<{numbers[source]}: {fake}>"

    return repr((node.target, *map_arg((node.args, dict(node.kwargs)), described)))


# -- the sample ------------------------------------------------------------------------------------


def _decomposed_parts(
    program: ExportedProgram,
    sample: Mapping[str, Node],
    decomposed: Callable[[ExportedProgram], ExportedProgram],
) -> dict[str, _Part]:
    """The nodes that each kind of call is decomposed into."""
    if not sample:
        return {}
    result = decomposed(_sample_program(program, list(sample.values())))
    signature = result.graph_signature
    if any(s.kind is not InputKind.USER_INPUT for s in signature.input_specs) or any(
        s.kind is not OutputKind.USER_OUTPUT for s in signature.output_specs
    ):
        raise _NotExpandableError  # a decomposition has constants, or writes
    nodes = list(result.graph.nodes)
    sources = iter(n for n in nodes if n.op == "placeholder")
    results = iter(nodes[-1].args[0])
    return {
        kind: _Part(
            [next(sources) for _ in node.all_input_nodes],
            [None if f is None else next(results) for f in _fakes(node)],
            isinstance(node.meta["val"], (list, tuple)),
            nodes,
        )
        for kind, node in sample.items()
    }


class _Part:
    """The nodes that a call decomposes into: `sources` stand for its arguments."""

    def __init__(
        self, sources: list[Node], results: list[Any], several: bool, nodes: Sequence[Node]
    ) -> None:
        self.sources, self.results, self.several = sources, results, several
        found = _before([n for n in results if n is not None])
        for check in nodes:
            if check.op == "call_function" and not check.users and check.meta.get("val") is None:
                read = _before([check])  # such as the check that a matrix has an inverse
                if check.target not in _PROVED and not read.isdisjoint(sources):
                    found |= read
        self.nodes = [n for n in nodes if n in found and n.op != "placeholder"]
        if any(n.op != "call_function" or _is_mutable(n) for n in self.nodes) or any(
            n.op == "placeholder" and n not in sources for n in found
        ):
            raise _NotExpandableError


def _before(results: Sequence[Node]) -> set[Node]:
    """The results and all nodes that they are computed from."""
    found: set[Node] = set()
    wanted: list[Any] = list(results)
    while wanted:
        node = wanted.pop()
        if not isinstance(node, Node):
            raise _NotExpandableError
        if node not in found:
            found.add(node)
            wanted += node.all_input_nodes
    return found


def _fakes(node: Node) -> list[torch.Tensor | None]:
    """The exporter's tensor of each result, None for a result that is not there."""
    fakes = node.meta.get("val")
    fakes = list(fakes) if isinstance(fakes, (list, tuple)) else [fakes]
    if not all(f is None or isinstance(f, torch.Tensor) for f in fakes):
        raise _NotExpandableError
    return fakes


def _sample_program(program: ExportedProgram, calls: Sequence[Node]) -> ExportedProgram:
    graph = Graph()
    sources = [{} for _ in calls]  # type: list[dict[Node, Node]]
    inputs: list[InputSpec] = []
    examples: list[Any] = []
    for call, copied in zip(calls, sources, strict=True):
        for source in call.all_input_nodes:
            fake = source.meta.get("val")
            if not isinstance(fake, (torch.Tensor, int, torch.SymInt)):
                raise _NotExpandableError
            node = copied[source] = graph.placeholder(f"source{len(inputs)}")
            node.meta["val"] = fake
            kind = TensorArgument if isinstance(fake, torch.Tensor) else SymIntArgument
            inputs.append(InputSpec(InputKind.USER_INPUT, kind(name=node.name), None))
            examples.append(fake)
    results: list[Node] = []
    for call, copied in zip(calls, sources, strict=True):
        node = graph.node_copy(call, copied.__getitem__)
        if not isinstance(call.meta["val"], (list, tuple)):
            results.append(node)
            continue
        for i, fake in enumerate(_fakes(call)):
            if fake is not None:
                item = graph.call_function(operator.getitem, (node, i))
                item.meta = {**call.meta, "val": fake}
                results.append(item)
    graph.output(tuple(results))
    outputs = [
        OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(name=node.name), None) for node in results
    ]
    in_spec = pytree.tree_flatten((tuple(examples), {}))[1]
    out_spec = pytree.tree_flatten(tuple(results))[1]
    nesting = ModuleCallSignature(inputs=[], outputs=[], in_spec=in_spec, out_spec=out_spec)
    return ExportedProgram(
        root=GraphModule(torch.nn.Module(), graph),
        graph=graph,
        graph_signature=ExportGraphSignature(inputs, outputs),
        state_dict={},
        range_constraints=dict(program.range_constraints),
        module_call_graph=[ModuleCallEntry(fqn="", signature=nesting)],
        verifiers=program.verifiers,
    )


# -- the program -----------------------------------------------------------------------------------


class _Copy:
    """A program that is copied node by node, with the parts instead of the calls."""

    def __init__(self, program: ExportedProgram, stays: Stays) -> None:
        self.program, self.stays = program, stays
        self.graph = Graph()
        self.values: dict[Node, Any] = {}
        """The copy of each node, a list for a call with several results."""
        self.shares: dict[Node, set[Node]] = {}
        """The nodes of the copy that may share memory with each node, itself among them."""
        self.written: dict[Node, Node] = {}
        """The node that has the value of another one since that was written."""
        self.stale: set[Node] = set()
        """Nodes of the copy whose memory was written since."""

    def run(self, parts: Mapping[Node, _Part]) -> ExportedProgram:
        for node in self.program.graph.nodes:
            if node in parts:
                self._put(node, parts[node])
            elif node.target is operator.getitem and isinstance(
                found := self.values[node.args[0]], list
            ):
                self.values[node] = found[node.args[1]]
            elif _is_identity(node):
                self.values[node] = self._now(node.args[0])
            elif _is_mutable(node):
                self._write(node)
            elif node.target not in _PROVED:
                self.values[node] = self._node(node, self._now)
        return _with_graph(self.program, self.graph)

    def _now(self, source: Node) -> Node:
        """The node that has the value of `source` at present."""
        found = self.values[source]
        while found in self.written:
            found = self.written[found]
        if not isinstance(found, Node) or found in self.stale:
            raise _NotExpandableError
        return found

    def _node(self, node: Node, source: Callable[[Node], Node], name: str | None = None) -> Node:
        """Adds the copy of a node. What it may share memory with follows from its schema."""
        if name is None:
            made = self.graph.node_copy(node, source)
            if node.op == "placeholder":
                made.name = node.name  # by which the signature knows it, also where Python has it
        else:
            args, kwargs = map_arg((node.args, dict(node.kwargs)), source)
            made = self.graph.create_node(node.op, node.target, args, kwargs, name)
            made.meta = dict(node.meta)
        shared = {made}.union(*(self.shares[n] for n in _shared_sources(made)))
        for each in shared:
            self.shares[each] = shared
        return made

    def _put(self, node: Node, part: _Part) -> None:
        inner = dict(zip(part.sources, map(self._now, node.all_input_nodes), strict=True))
        last = part.results[0]
        for step in part.nodes:
            name = node.name if step is last else f"{node.name}_{step.name}"
            inner[step] = self._node(step, inner.__getitem__, name)
        found = [None if r is None else inner[r] for r in part.results]
        self.values[node] = found if part.several else found[0]

    def _write(self, node: Node) -> None:
        """Adds x' = f(x, ...) for f_(x, ...), and reads x' instead of x from now on."""
        function = _without_writing(node.target)
        if function is None or not isinstance(node.args[0], Node):
            raise _NotExpandableError
        before = self._now(node.args[0])
        if any(n.op != "call_function" for n in self.shares[before]):
            raise _NotExpandableError  # inputs and buffers are written
        args, kwargs = map_arg((node.args, dict(node.kwargs)), self._now)
        made = self.graph.call_function(function, args, kwargs)
        fake = before.meta["val"]
        with torch.no_grad():
            found = function(*map_arg(args, fake_of), **map_arg(kwargs, fake_of))
        made.meta = {**node.meta, "val": found}
        if not _looks_alike(found, fake) or not self.stays(made):
            raise _NotExpandableError
        self.stale |= self.shares[before]
        self.written[before] = made
        self.shares[made] = {made}
        self.values[node] = made


def _shared_sources(node: Node) -> list[Node]:
    """The arguments that a result of a node may share memory with.

    Views say so in their schema. Ops made of others, such as `type_as`, may return an argument as
    it is without saying so."""
    op = node.target
    if not isinstance(op, torch._ops.OpOverload):
        return list(node.all_input_nodes) if op is operator.getitem else []
    if any(r.alias_info is not None for r in op._schema.returns):
        return list(node.all_input_nodes)
    if not op.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd):
        return []
    return [
        n for n in node.all_input_nodes if _looks_alike(n.meta.get("val"), node.meta.get("val"))
    ]


def _looks_alike(a: Any, b: Any) -> bool:
    both = isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
    return both and a.dtype == b.dtype and a.shape == b.shape


def _without_writing(op: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """The op that returns what `op` writes to its first argument, or None."""
    packet = op._schema.name.removeprefix("aten::")
    arguments = op._schema.arguments
    if not packet.endswith("_") or any(a.is_write for a in arguments[1:]):
        return None
    other = getattr(getattr(torch.ops.aten, packet[:-1], None), op._overloadname, None)
    if not isinstance(other, torch._ops.OpOverload) or other._schema.is_mutable:
        return None
    same = [a.name for a in other._schema.arguments] == [a.name for a in arguments]
    return other if same and len(other._schema.returns) == 1 else None
