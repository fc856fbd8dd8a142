"""`WeftBackend`: a delegated part of an exported program becomes a blob and its constants."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, final

from executorch.exir._serialize._named_data_store import NamedDataStore
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from torch.export import ExportedProgram
from torch.utils._sympy.value_ranges import ValueRanges

from weft.frontends.fx import convert
from weft.frontends.fx.export import dim_names
from weft_executorch.edge_ops import plain
from weft_executorch.events import NodeInfo
from weft_executorch.from_fx import from_converted
from weft_executorch.options import Options
from weft_executorch.pending import Pending, find_pending
from weft_executorch.prepare import prepare

__all__ = ["NOTES", "WeftBackend", "declared_ranges"]

NOTES = "weft.notes"
"""The compile spec in which the partitioner passes its notes: `left_out`, rows of (node, op,
reason) that it refused, and `minima`, the declared lower bounds of symbols by name."""


@final
class WeftBackend(BackendDetails):
    """The backend that ExecuTorch calls for each part that `WeftPartitioner` has tagged."""

    @staticmethod
    def preprocess(
        edge_program: ExportedProgram, compile_specs: list[CompileSpec]
    ) -> PreprocessResult:
        """Plans the program and writes it.

        Weights go into the file's named data under a hash of their bytes, so that methods with
        equal weights share them. Raises WeftError for an unknown compile spec, UnsupportedOpError
        for a node that weft cannot run."""
        notes: dict[str, Any] = {"left_out": [], "minima": {}}
        for spec in compile_specs:
            if spec.key == NOTES:
                notes |= json.loads(bytes(spec.value))
        options = Options.from_specs([s for s in compile_specs if s.key != NOTES])
        edge_program.range_constraints.update(declared_ranges(edge_program, notes["minima"]))
        pending = find_pending(edge_program)
        nodes: tuple[NodeInfo, ...] = ()
        if pending is None:
            plain(edge_program)
            converted = convert(edge_program, names=dim_names(edge_program))
            pending, nodes = Pending(from_converted(converted)), _nodes(edge_program)
        delegated, left_out = pending.delegated, [tuple(row) for row in notes["left_out"]]
        n_outputs = len(edge_program.graph_signature.output_specs)
        blob = prepare(delegated, options, left_out, pending.fixed, nodes, n_outputs)
        store = NamedDataStore()
        for key, data in blob.constants.items():
            store.add_named_data(key, data.tobytes(), alignment=blob.alignment)
        return PreprocessResult(
            processed_bytes=blob.processed,
            debug_handle_map={event.name: event.handles for event in blob.events},
            data_store_output=store.get_named_data_store_output(),
        )


def declared_ranges(program: ExportedProgram, minima: Mapping[str, int]) -> dict[Any, Any]:
    """The ranges of symbols.

    The Edge dialect's passes raise the lower bound of a size that may be 0 or 1 to 2; `minima` are
    the declared bounds, by name."""
    ranges = dict(program.range_constraints)
    for symbol, bounds in ranges.items():
        declared = minima.get(str(symbol))
        if declared is not None and declared < bounds.lower:
            ranges[symbol] = ValueRanges(declared, bounds.upper)
    return ranges


def _nodes(program: ExportedProgram) -> tuple[NodeInfo, ...]:
    return tuple(
        NodeInfo(node.name, node.meta["debug_handle"], tuple(user.name for user in node.users))
        for node in program.graph.nodes
        if node.op == "call_function" and isinstance(node.meta.get("debug_handle"), int)
    )
