"""Walks an exported program node by node and builds its graph."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    OutputKind,
    SymIntArgument,
    TensorArgument,
)
from torch.fx import Node

from weft import graph as g
from weft.errors import GraphError, UnsupportedOpError
from weft.frontends.fx.builder import Builder
from weft.frontends.fx.call import Call, StaleValueError, aten_op, op_name
from weft.frontends.fx.channels_last import channels_last_nodes
from weft.frontends.fx.converted import Converted, Input, Output, State
from weft.frontends.fx.dtypes import STORED, refused_type, stored_type
from weft.frontends.fx.hosted import (
    Weights,
    add_region,
    carried_constant,
    carried_input,
    initial_values,
    state_leaf,
)
from weft.frontends.fx.layout import Carried, Value, folded_ne
from weft.frontends.fx.ops.quantized import chooses_parameters
from weft.frontends.fx.regions import (
    Constant,
    Region,
    in_stages,
    known_constants,
    part_of,
    regions,
    why_not_on_host,
)
from weft.frontends.fx.registry import find_visitor, is_from_data, supports_call
from weft.frontends.fx.rewrite import REWRITES
from weft.frontends.fx.sizes import Sizes
from weft.frontends.fx.support import FROM_DATA, YES, InheritedReason, Refusal, Support, refuse_all
from weft.graph.node import leaf
from weft.graph.tensor import Tensor

_ITEM = torch.ops.aten._local_scalar_dense.default
_INPUTS = (InputKind.USER_INPUT,)
_WRITES = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)
_CONSTANTS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


def supports(node: Node) -> Support:
    """Whether `convert` can build a node, with a reason where it cannot.

    Reads only the node's op, arguments and `meta["val"]`: it needs no program and no graph. Inputs,
    outputs and arithmetic on sizes are always supported."""
    if node.op == "call_function" and aten_op(node.target) is _ITEM:
        return Support(False, "a number is read out of a tensor, and the rest depends on it")
    if node.op != "call_function" or node.target is operator.getitem:
        return YES
    if _is_size(node):
        metadata = (node.meta.get("val"), *(n.meta.get("val") for n in node.all_input_nodes))
        return Support(False, FROM_DATA) if any(is_from_data(n) for n in metadata) else YES
    return supports_call(node)


def unsupported(program: ExportedProgram) -> list[Refusal]:
    """Every node of a program that cannot be converted, in order; nodes that are computed at
    conversion are not checked."""
    return _unsupported(program, known_constants(program))


def _unsupported(program: ExportedProgram, constants: Mapping[Node, Any]) -> list[Refusal]:
    refusals: list[Refusal] = []
    causes: dict[Node, str] = {}
    for node in program.graph.nodes:
        answer = YES if node in constants else supports(node)
        if not answer:
            cause = next((causes[n] for n in node.all_input_nodes if n in causes), "")
            cause = cause if isinstance(answer.reason, InheritedReason) else ""
            refusals.append(Refusal(node.name, op_name(node.target), answer.reason, cause))
            causes[node] = cause or node.name
    return refusals


def _is_size(node: Node) -> bool:
    return isinstance(
        node.meta.get("val"), (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)
    ) or (node.meta.get("val") is None and not node.users)


def weight_nodes(program: ExportedProgram) -> set[Node]:
    """Nodes of a program that are constants: parameters, and buffers that it does not write."""
    signature = program.graph_signature
    written = {s.target for s in signature.output_specs if s.kind in _WRITES}
    names = {
        spec.arg.name
        for spec in signature.input_specs
        if spec.kind in _CONSTANTS and spec.target not in written
    }
    nodes = program.graph.nodes
    return {n for n in nodes if n.op == "get_attr" or (n.op == "placeholder" and n.name in names)}


def convert(
    program: ExportedProgram, *, names: dict[str, str] | None = None, host: bool = False
) -> Converted:
    """The graph of an exported program of the aten or Edge dialect, without in-place ops (the
    result of `run_decompositions`).

    `names` are names of symbols, by PyTorch's name. Weights are used in the memory that they have.
    With `host`, nodes that cannot be converted become functions of the host that call PyTorch.
    Raises UnsupportedOpError with a line for each node that cannot be converted, GraphError for a
    symbol without an upper bound."""
    known = known_constants(program)
    refusals = _unsupported(program, known)
    if refusals and not host:
        raise refuse_all(refusals)
    nodes = {node.name: node for node in program.graph.nodes}
    hosted = {nodes[r.node]: r.reason for r in refusals}
    while True:
        stay = [r for r in refusals if why_not_on_host(nodes[r.node]) is not None]
        if stay:
            raise refuse_all([replace(r, cause="") for r in stay])
        found = regions(nodes.values(), hosted)
        try:
            return _Walk(
                program, Sizes(program.range_constraints, names), known, found, hosted
            ).run()
        except UnsupportedOpError as error:
            # a visitor finds out only from shapes and strides that it cannot build a node
            refusals = list(getattr(error, "refusals", ()))
            more = {nodes[r.node]: r.reason for r in refusals if nodes[r.node] not in hosted}
            if not host or not more or any(n in found for n in more):
                raise
            hosted |= more


class _Walk:
    """One conversion."""

    def __init__(
        self,
        program: ExportedProgram,
        sizes: Sizes,
        known: dict[Node, Constant],
        found: dict[Node, Region],
        reasons: Mapping[Node, str],
    ) -> None:
        self.program = program
        self.reasons = reasons
        """Why nodes are not converted."""
        self.builder = Builder(sizes)
        self.weights = Weights()
        self.inputs: list[Input] = []
        self.states: dict[str, State] = {}
        self.known = known
        """Constants, and values computed from them."""
        self.regions = found
        """The nodes that PyTorch runs."""
        self._constants = {n: v for n, v in known.items() if isinstance(v, torch.Tensor)}
        """Tensors that host functions read in PyTorch's memory."""
        self._drawn: Tensor | None = None
        self._given: set[Tensor] = set()
        """Tensors that outputs share memory with."""
        self._mutated = {
            spec.target for spec in program.graph_signature.output_specs if spec.kind in _WRITES
        }

    def run(self) -> Converted:
        """Builds inputs, nodes in order, outputs, and last the writes of the program."""
        specs = {spec.arg.name: spec for spec in self.program.graph_signature.input_specs}
        values = self.builder.values
        self.builder.pending = {n: len(n.users) for n in self.program.graph.nodes}
        self.builder.channels_last = channels_last_nodes(
            self.program.graph, weight_nodes(self.program) | set(self.known)
        )
        for node in in_stages(self.program.graph.nodes, self.regions):
            if node in self.regions:
                if node is self.regions[node].nodes[0]:
                    self._region(self.regions[node])
            elif node.op == "placeholder":
                values[node] = self._leaf(node, specs[node.name])
            elif node.op == "get_attr" and part_of(node) is None:
                self._constants[node] = _attribute(self.program, node)
                values[node] = self._weight(node, node.name, self._constants[node])
            elif node.op == "call_function":
                self._call(node)
        return self._finish()

    # ---- inputs ----------------------------------------------------------------------------------

    def _leaf(self, node: Node, spec: Any) -> Any:
        if spec.kind in _CONSTANTS:
            return self._constant(node, spec)
        if spec.kind not in _INPUTS:
            raise GraphError(f"input {node.name} is a {spec.kind.name.lower()}")
        if isinstance(spec.arg, ConstantArgument):
            self.inputs.append(Input(node.name, constant=spec.arg.value))
            return spec.arg.value
        fake = node.meta["val"]
        if isinstance(spec.arg, SymIntArgument):
            self.inputs.append(Input(node.name, size=self.builder.sizes.of(fake)))
            return None
        if not isinstance(spec.arg, TensorArgument):
            raise GraphError(f"input {node.name}: type {type(fake).__name__} is not supported")
        if fake.layout is not torch.strided:
            raise GraphError(f"input {node.name}: layout {fake.layout} is not supported")
        shape = self.builder.sizes.shape(fake.shape)
        if fake.dtype not in STORED:
            tensor, carried = carried_input(fake, self.builder.sizes, node.name)
            self.inputs.append(Input(node.name, fake.dtype, shape, tensor))
            return carried
        tensor = leaf(stored_type(fake.dtype), folded_ne(shape), node.name, frozenset({"input"}))
        self.inputs.append(Input(node.name, fake.dtype, shape, tensor))
        return Value.whole(tensor, fake.dtype, shape)

    def _weight(self, node: Node, name: str, data: torch.Tensor) -> Value | None:
        """A constant as a leaf; None where weft's nodes do not read it. Nodes without users only
        assert its type, or are the output."""
        readers = [n for n in node.users if n not in self.regions and n.users]
        if data.dtype not in STORED and all(n in self.known for n in readers):
            return None
        return self.weights.value(name, data)

    def _constant(self, node: Node, spec: Any) -> Value | None:
        target = spec.target
        parameter = self.program.state_dict.get(target)
        data = self.program.constants.get(target) if parameter is None else parameter
        if not isinstance(data, torch.Tensor):
            raise GraphError(f"{node.name} has no tensor called {target!r} in the program")
        if target not in self._mutated:
            self._constants[node] = data.detach()
            return self._weight(node, target, data)
        if data.dtype not in STORED:
            raise GraphError(
                f"buffer {target}, which the program writes: {refused_type(data.dtype)}"
            )
        tensor = state_leaf(target, data.detach())
        shape = tuple(int(n) for n in data.shape)
        self.states[target] = State(target, data.dtype, shape, tensor, initial_values(data))
        self.builder.states[tensor] = target
        return Value.whole(tensor, data.dtype, shape)

    # ---- nodes -----------------------------------------------------------------------------------

    def _region(self, region: Region) -> None:
        """Adds a host function for nodes that PyTorch runs; nothing where no other node reads
        them."""
        builder = self.builder
        first = region.nodes[0]
        builder.current = first.name
        results = [
            n
            for n in region.nodes
            if any(u not in self.regions or self.regions[u] is not region for u in n.users)
        ]
        if results:
            after = self._drawn if region.draws else None
            try:
                why = next(self.reasons[n] for n in region.nodes if n in self.reasons)
                found = add_region(builder, region, self._constants, results, after, why=why)
            except GraphError as error:
                refusal = Refusal(first.name, op_name(first.target), str(error))
                raise refuse_all([refusal]) from error
            builder.values.update(found)
            for node, value in found.items():
                builder.label(value.tensor, node.name)
                if region.draws:
                    self._drawn = value.tensor
        for node in region.nodes:
            for source in node.all_input_nodes:
                builder.pending[source] -= 1

    def _call(self, node: Node) -> None:
        builder = self.builder
        constant = self.known.get(node)
        if constant is not None:
            if isinstance(constant, torch.Tensor) and constant.dtype in STORED:
                builder.values[node] = self.weights.value(node.name, constant)
            return
        if node.target is operator.getitem:
            built = builder.values[node.args[0]]
            builder.values[node] = built[node.args[1]] if isinstance(built, list) else None
            return
        if _is_size(node):
            return
        builder.current = node.name
        try:
            results = self._built(node)
        except GraphError as error:
            raise refuse_all([Refusal(node.name, op_name(node.target), str(error))]) from error
        builder.values[node] = results
        for i, value in enumerate(results if isinstance(results, list) else [results]):
            if value is not None:
                self.builder.label(value.tensor, node.name if i == 0 else f"{node.name}.result{i}")
        for source in node.all_input_nodes:
            builder.pending[source] -= 1

    def _built(self, node: Node) -> Any:
        """The result of a rewrite that ends in a node, or of its visitor."""
        builder = self.builder
        call = Call(node, builder.values, builder.sizes, builder.overwritten)
        for rewrite in REWRITES.get(call.op, ()):
            try:
                result = rewrite.build(builder, call)
            except StaleValueError:
                # the source of the pattern is overwritten by now; the nodes in between were built
                continue
            if result is not None:
                return result
        visitor = find_visitor(node.target)
        assert visitor is not None
        return visitor.build(builder, call)

    # ---- outputs ---------------------------------------------------------------------------------

    def _finish(self) -> Converted:
        signature = self.program.graph_signature
        output = next(n for n in self.program.graph.nodes if n.op == "output")
        outputs: list[Output] = []
        writes: list[tuple[State, Value]] = []
        state_leaves = {state.tensor for state in self.states.values()}
        for i, (spec, arg) in enumerate(zip(signature.output_specs, output.args[0], strict=True)):
            if spec.kind in _WRITES:
                writes.append((self.states[spec.target], self.builder.values[arg]))
            elif spec.kind in (OutputKind.USER_OUTPUT, OutputKind.USER_INPUT_MUTATION):
                outputs.append(self._output(i, spec, arg))
            else:
                raise GraphError(f"output {i} is a {spec.kind.name.lower()}")
        sources = [(s, self._write_source(s, v, state_leaves)) for s, v in writes]
        graph = self.builder.graph
        graph.expand(*(o.tensor for o in outputs if o.tensor is not None))
        for state, source in sources:
            if source is not None:
                written = g.cpy(source, state.tensor)
                self.builder.label(written, f"{state.name}.write")
                graph.expand(written)
        outputs.sort(key=lambda o: o.mutates is not None)
        inputs = [
            i if i.tensor is None or i.tensor in graph else Input(i.name, i.dtype, i.shape)
            for i in self.inputs
        ]
        spec = self.program.call_spec
        nodes = {t: name for t, name in self.builder.nodes.items() if t in graph}
        return Converted(
            graph, tuple(inputs), tuple(outputs), tuple(self.states.values()), nodes,
            getattr(spec, "in_spec", None), getattr(spec, "out_spec", None),
            any(t.dtype.is_quantized for t in graph.leaves) and not any(
                map(chooses_parameters, self.program.graph.nodes)
            ),
            dict(self._node_values()),
        )  # fmt: skip

    def _node_values(self) -> Iterator[tuple[str, tuple[Value | None, ...]]]:
        for node, found in self.builder.values.items():
            results = found if isinstance(found, list) else [found]
            values = tuple(v if isinstance(v, Value) else None for v in results)
            if node.op == "call_function" and any(
                v is not None and (v.tensor.view_src or v.tensor) in self.builder.graph
                for v in values
            ):
                yield node.name, values

    def _output(self, i: int, spec: Any, arg: Any) -> Output:
        if not isinstance(arg, Node):
            return Output(f"output_{i}", constant=arg)
        fake = arg.meta["val"]
        value = self.builder.values.get(arg)
        if not isinstance(value, Value | Carried) and arg in self._constants:
            value = carried_constant(self._constants[arg], arg.name)
        mutates = None
        if spec.kind is OutputKind.USER_INPUT_MUTATION:
            mutates = next(k for k, port in enumerate(self.inputs) if port.name == spec.target)
        if isinstance(value, Carried):
            tensor = self._own_tensor(value.tensor)
            self.builder.label(tensor, f"{arg.name}.out{i}")
            tensor.as_output()
            return Output(
                tensor.name, value.dtype, value.shape, tensor, mutates=mutates,
                counted=value.counted, is_number=value.is_number,
            )  # fmt: skip
        if not isinstance(fake, torch.Tensor):
            return Output(arg.name, size=self.builder.sizes.of(fake))
        if fake.dtype not in STORED:
            raise GraphError(f"output {arg.name}: {refused_type(fake.dtype)}")
        if value is None:
            raise GraphError(f"output {arg.name} is a result that weft does not compute")
        tensor = self._own(value)
        self.builder.label(tensor, f"{arg.name}.out{i}")
        tensor.as_output()
        return Output(tensor.name, fake.dtype, value.shape, tensor, mutates=mutates)

    def _own(self, value: Value) -> Tensor:
        """A dense tensor in the stored type that a node computes: outputs never share memory with
        inputs, weights or state, nor with each other."""
        ready = self.builder.stored(value)
        return self._own_tensor(self.builder.dense(ready, stored=True))

    def _own_tensor(self, tensor: Tensor) -> Tensor:
        base = tensor if tensor.view_src is None else tensor.view_src
        if base.op is not g.OPS["NONE"] and base not in self._given:
            self._given.add(base)
            return tensor
        return g.cont(tensor)

    def _write_source(self, state: State, value: Value, kept: set[Tensor]) -> Tensor | None:
        """The tensor that is copied into a buffer at the end; None where it was written in
        place."""
        base = value.tensor if value.tensor.view_src is None else value.tensor.view_src
        if base is state.tensor and value.is_whole:
            self.builder.graph.expand(value.tensor)
            return None
        tensor = self.builder.dense(self.builder.stored(value), stored=True)
        base = tensor if tensor.view_src is None else tensor.view_src
        tensor = g.cont(tensor) if base in kept else tensor
        self.builder.graph.expand(tensor)
        return tensor


def _attribute(program: ExportedProgram, node: Node) -> torch.Tensor:
    value: Any = program.graph_module
    for part in str(node.target).split("."):
        value = getattr(value, part)
    if not isinstance(value, torch.Tensor):
        raise GraphError(f"{node.name} reads {node.target}, which is not a tensor")
    return value
