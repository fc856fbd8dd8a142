"""The ops that ExecuTorch's Edge dialect has in place of ATen's: copies with an order of
dimensions.

The order of a value in memory matters at the borders of a delegated part only, where the delegate
examines strides. So inside, these ops are ATen's clone and _to_copy, and
`weft.frontends.fx.registry` gives them the visitors of those.
"""

from __future__ import annotations

import torch
from executorch.exir.passes import dim_order_ops_registry  # noqa: F401  (defines the ops)
from torch.export import ExportedProgram
from torch.export.graph_signature import SymIntArgument, TensorArgument

from weft.frontends.fx.call import aten_op

__all__ = ["plain"]

_CLONE = torch.ops.dim_order_ops._clone_dim_order.default
_TO_COPY = torch.ops.dim_order_ops._to_dim_order_copy.default


def plain(program: ExportedProgram) -> None:
    """Replaces these ops by ATen's, in place, so that patterns of the frontend match.

    It also marks the inputs that are sizes, because the partitioner has marked every input as a
    tensor."""
    graph = program.graph
    for node in list(graph.nodes):
        op = aten_op(node.target) if node.op == "call_function" else None
        if op not in (_CLONE, _TO_COPY):
            continue
        with graph.inserting_before(node):
            if op is _CLONE:
                new = graph.call_function(torch.ops.aten.clone.default, (node.args[0],))
            else:
                dtype = node.meta["val"].dtype
                new = graph.call_function(
                    torch.ops.aten._to_copy.default, (node.args[0],), {"dtype": dtype}
                )
        new.meta = dict(node.meta)
        node.replace_all_uses_with(new, propagate_meta=False)
        graph.erase_node(node)
        _rename(program, node.name, new.name)
    values = {n.name: n.meta.get("val") for n in graph.nodes if n.op == "placeholder"}
    for spec in program.graph_signature.input_specs:
        if isinstance(spec.arg, TensorArgument) and isinstance(
            values.get(spec.arg.name), torch.SymInt
        ):
            spec.arg = SymIntArgument(spec.arg.name)


def _rename(program: ExportedProgram, old: str, new: str) -> None:
    for spec in program.graph_signature.output_specs:
        if getattr(spec.arg, "name", None) == old:
            spec.arg = TensorArgument(new)
