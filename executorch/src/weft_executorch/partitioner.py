"""`WeftPartitioner`: tags the nodes that weft can run, and reports those that it cannot."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from html import escape
from typing import Any

import torch
from executorch.exir.backend.canonical_partitioners.pattern_op_partitioner import (
    generate_partitions_from_list_of_nodes,
)
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from executorch.exir.backend.utils import (
    WhyNoPartitionReporter,
    tag_constant_data,
    tag_mutated_buffer,
)
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.passes.operator_support import OperatorSupportBase

from weft.errors import UnsupportedOpError, WeftError
from weft.frontends.fx.call import op_name
from weft.frontends.fx.channels_last import channels_last_nodes
from weft.frontends.fx.convert import weight_nodes
from weft.frontends.fx.export import dim_names
from weft.frontends.fx.sizes import Sizes
from weft.frontends.fx.support import InheritedReason
from weft.report import frame_html, page_html
from weft_executorch.backend import NOTES, WeftBackend, declared_ranges
from weft_executorch.dynamic_sizes import untold
from weft_executorch.named_results import name_results
from weft_executorch.options import Options
from weft_executorch.partition import PlacedNode, partition_data
from weft_executorch.trial import refusals

__all__ = ["WeftPartitioner"]

_NOTHING = "No program was partitioned: the lowering has not begun, or failed before that."

name_results()
_log = logging.getLogger("weft_executorch")


class WeftPartitioner(Partitioner):
    """Gives weft every node that it can run.

    `options` say how weft runs them. `ops` takes only ops of these names (`aten.linear.default`),
    `not_ops` none of these, `dtypes` only nodes whose tensors have these types. `refused` and
    `report()` have the refused nodes and the reasons, as has the exported file for `weft
    explain`; `nodes` and `report_html()` have all nodes."""

    def __init__(
        self,
        options: Options | None = None,
        *,
        ops: Collection[str] | None = None,
        not_ops: Collection[str] = (),
        dtypes: Collection[torch.dtype] | None = None,
        compile_specs: list[CompileSpec] | None = None,
    ) -> None:
        super().__init__()
        specs = options.to_specs() if options is not None else list(compile_specs or ())
        Options.from_specs(specs)  # raises now rather than in the middle of an export
        self._specs = specs
        self._ops = None if ops is None else frozenset(ops)
        self._not_ops = frozenset(not_ops)
        self._dtypes = None if dtypes is None else frozenset(dtypes)
        self.refused: dict[str, tuple[str, str]] = {}
        """Node -> (op, reason) for the refused nodes of the last program."""
        self.nodes: tuple[PlacedNode, ...] = ()
        """Where each node of the last program went, in order."""
        self._reporter = WhyNoPartitionReporter()
        self._minima: dict[str, int] = {}
        self._is_partitioned = False

    def told_not_to(self, node: Node) -> str:
        """The reason why the partitioner's own configuration leaves a node out; empty where it does
        not."""
        name = op_name(node.target)
        if (self._ops is not None and name not in self._ops) or name in self._not_ops:
            return "the partitioner was told to leave this op out"
        dtypes = self._dtypes
        if dtypes is not None:
            for dtype in _dtypes(node):
                if dtype not in dtypes:
                    return f"the partitioner was told to leave {dtype} out"
        return ""

    def ops_to_not_decompose(
        self, ep: ExportedProgram
    ) -> tuple[list[torch._ops.OpOverload], Callable[[Node], bool] | None]:
        """Every op of the program that weft runs whole, at all the places where it is called.

        Raises UnsupportedOpError, with a remedy, for ops that the Edge dialect refuses without
        one."""
        _refuse_int_mm(ep)
        for symbol, bounds in ep.range_constraints.items():
            low = int(max(0, bounds.lower))
            self._minima[str(symbol)] = min(low, self._minima.get(str(symbol), low))
        kept: dict[torch._ops.OpOverload, bool] = {}
        for node in ep.graph.nodes:
            if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
                whole = kept.get(node.target, True) and not self.told_not_to(node)
                # ExecuTorch itself computes sizes
                whole = whole and _computes(node) and not _promotes(node)
                kept[node.target] = whole and not refusals([node], Sizes(ep.range_constraints))
        return ([op for op, whole in kept.items() if whole], None)

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tags the nodes of each part, the weights that they read and the buffers they write."""
        self._is_partitioned = False
        _own_tables(exported_program)
        module = exported_program.graph_module
        self.refused = {}
        self._reporter = WhyNoPartitionReporter()
        support = _Support()
        for node in module.graph.nodes:
            if node.op == "call_function" and (why := self.told_not_to(node)):
                support.refused[node] = why
        parts = self._parts(exported_program, support)
        for node, reason in _in_order(module.graph.nodes, support.refused):
            self._reporter.report_reject(node, reason)
            self.refused[node.name] = (op_name(node.target), reason)
        if self.refused:
            _log.info("nodes that weft does not run:\n%s", self.report())
        rows = [(node, *why) for node, why in self.refused.items()]
        notes = {"left_out": rows, "minima": self._minima}
        known = CompileSpec(NOTES, json.dumps(notes).encode())
        spec = DelegationSpec(WeftBackend.__name__, [*self._specs, known])
        tags: dict[str, DelegationSpec] = {}
        for part in parts:
            tag = f"weft_{part.id}"
            tags[tag] = spec
            for node in part.nodes:
                node.meta["delegation_tag"] = tag
        if tags:
            tag_constant_data(exported_program)
            tag_mutated_buffer(exported_program)
            _keep_outside(exported_program)
        self.nodes = tuple(self._placed(module.graph.nodes, parts))
        self._is_partitioned = True
        return PartitionResult(exported_program, tags)

    def _parts(self, program: ExportedProgram, support: _Support) -> list[Any]:
        """Parts of which every node runs.

        Nodes that a trial refuses are left out and parts are formed again, until a trial refuses
        none."""
        order = {node: i for i, node in enumerate(program.graph_module.graph.nodes)}
        alone = [n for n in order if n not in support.refused]
        last = channels_last_nodes(program.graph, weight_nodes(program))
        ranges = declared_ranges(program, self._minima)
        sizes = Sizes(ranges, dim_names(program))
        support.refused |= refusals(alone, sizes, last)
        while True:
            parts = generate_partitions_from_list_of_nodes(program.graph_module, op_support=support)
            refused: dict[Node, str] = {}
            for part in parts:
                nodes = sorted(part.nodes, key=lambda n: order[n])
                refused |= refusals(nodes, sizes, last) or untold(nodes, sizes)
            if not refused:
                return [part for part in parts if any(map(_computes, part.nodes))]
            support.refused |= refused

    def _placed(self, nodes: Iterable[Node], parts: Iterable[Any]) -> Iterator[PlacedNode]:
        part_of = {node: part.id for part in parts for node in part.nodes}
        numbers: dict[int, int] = {}  # parts are numbered in the order of the program
        for node in nodes:
            if node.op != "call_function":
                continue
            part, (_, why) = part_of.get(node), self.refused.get(node.name, ("", ""))
            number = None if part is None else numbers.setdefault(part, len(numbers))
            why = why or ("" if number is not None else "it computes sizes, not tensors")
            yield PlacedNode(node.name, op_name(node.target), _result(node), number, why)

    def report(self) -> str:
        """The table of refused nodes with their reasons, or a sentence: there are none, or no
        program was partitioned, because the lowering has not begun or has failed."""
        if not self.refused and not self._is_partitioned:
            return _NOTHING
        return str(self._reporter.get_table_report())

    def report_html(self, title: str = "What weft runs") -> str:
        """One HTML file: which nodes weft runs, in which parts, and why it does not run the others.

        Raises WeftError where no program was partitioned."""
        if not self._is_partitioned:
            raise WeftError(_NOTHING)
        return page_html(partition_data(self.nodes, title))

    def _repr_html_(self) -> str:
        frame = frame_html(partition_data(self.nodes)) if self._is_partitioned else None
        return frame or f"<pre>{escape(self.report())}</pre>"


def _result(node: Node) -> str:
    """The type and sizes of what a node gives, such as "float32[2, 16]"."""
    values = node.meta.get("val")
    return ", ".join(
        f"{str(v.dtype).removeprefix('torch.')}[{', '.join(map(str, v.shape))}]"
        for v in (values if isinstance(values, list | tuple) else [values])
        if isinstance(v, torch.Tensor)
    )


def _own_tables(program: ExportedProgram) -> None:
    """Gives the program copies of its tables of tensors.

    Lowering removes the tensors of a part from these tables, which are shared with the program that
    the caller exported."""
    program._constants = dict(program.constants)
    program._state_dict = dict(program.state_dict)


class _Support(OperatorSupportBase):
    """Supports all nodes except those that were refused so far."""

    def __init__(self) -> None:
        self.refused: dict[Node, str] = {}

    def is_node_supported(self, submodules: Any, node: Node) -> bool:
        return node.op == "call_function" and node not in self.refused


def _computes(node: Node) -> bool:
    """Whether a node gives tensors; checks and arithmetic of sizes alone make no part."""
    values = node.meta.get("val")
    return any(
        isinstance(v, torch.Tensor)
        for v in (values if isinstance(values, list | tuple) else [values])
    )


def _in_order(nodes: Iterable[Node], refused: Mapping[Node, str]) -> Iterator[tuple[Node, str]]:
    """The refused nodes in program order; one that only inherited its shape or type names its
    source."""
    causes: dict[Node, Node] = {}
    for node in nodes:
        if node in refused:
            reason = refused[node]
            cause = next((causes[n] for n in node.all_input_nodes if n in causes), node)
            causes[node] = cause if isinstance(reason, InheritedReason) else node
            follows = causes[node] is not node
            yield node, f"follows {cause.name}: {reason.partition(',')[0]}" if follows else reason


def _keep_outside(program: ExportedProgram) -> None:
    """Removes the tags of weights and buffers that a part may not own.

    These are tensors that the program returns, buffers that are read or get their new value
    elsewhere, and weights that are written."""
    signature = program.graph_signature
    nodes = {n.name: n for n in program.graph.nodes}
    results = Counter(s.arg.name for s in signature.output_specs)
    changed = set(signature.parameters_to_mutate.values())
    new = {b: n for n, b in signature.buffers_to_mutate.items()}
    for name, node in nodes.items():
        tag = node.meta.get("delegation_tag")
        if node.op != "placeholder" or tag is None:
            continue
        elsewhere = any(user.op == "output" for user in node.users)
        elsewhere |= signature.inputs_to_parameters.get(name) in changed
        written = new.get(signature.inputs_to_buffers.get(name, ""))
        if written is not None:
            late = (user for user in nodes[written].users if user.op != "output")
            readers = (nodes[written], *node.users, *late)
            elsewhere |= any(n.meta.get("delegation_tag") != tag for n in readers)
            elsewhere |= nodes[written].op == "placeholder" or results[written] > 1
        if elsewhere:
            node.meta.pop("delegation_tag")


def _promotes(node: Node) -> bool:
    """Whether an elementwise function gets numbers of several types, or a plain number for a
    tensor.

    The Edge dialect converts such calls to one type only where it knows the op."""
    op = node.target
    assert isinstance(op, torch._ops.OpOverload)
    operands = [n.meta.get("val") for n in node.all_input_nodes]
    types = {v.dtype for v in operands if isinstance(v, torch.Tensor)} - {torch.bool}
    slots = zip(op._schema.arguments, node.args, strict=False)
    is_plain = any(str(a.type) == "Tensor" and isinstance(v, int | float) for a, v in slots)
    return is_plain or (torch.Tag.pointwise in op.tags and len(types) > 1)


def _refuse_int_mm(program: ExportedProgram) -> None:
    """Refuses aten._int_mm with a remedy, at the first request of an exporter, before ExecuTorch's
    verifier refuses it without one."""
    names = [n.name for n in program.graph.nodes if n.target is torch.ops.aten._int_mm.default]
    if names:
        raise UnsupportedOpError(
            f"the program calls aten._int_mm ({', '.join(names[:3])}), which ExecuTorch's Edge "
            "dialect refuses: torchao's Int8DynamicActivationInt8WeightConfig exports so. Call "
            "weft_executorch.exportable(model) between quantize_ and torch.export"
        )


def _dtypes(node: Node) -> set[torch.dtype]:
    dtypes = set()
    for at in (node, *node.all_input_nodes):
        values = at.meta.get("val")
        for value in values if isinstance(values, list | tuple) else [values]:
            if isinstance(value, torch.Tensor):
                dtypes.add(value.dtype)
    return dtypes
