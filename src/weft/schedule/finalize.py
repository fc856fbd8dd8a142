"""Final tensors: a tensor of the graph stands for itself until one of its sources becomes a
copy.
"""

from __future__ import annotations

from weft.graph.graph import Graph
from weft.graph.tensor import Tensor

_IN_AND_OUT = frozenset({"input", "output"})


def clone(tensor: Tensor) -> Tensor:
    """A new tensor with the same fields."""
    return Tensor(
        tensor.dtype,
        tensor.ne,
        nb=tensor.nb,
        name=tensor.name,
        op=tensor.op,
        params=tensor.params,
        src=tensor.src,
        view_src=tensor.view_src,
        view_offs=tensor.view_offs,
        flags=tensor.flags,
        buffer=tensor.buffer,
        rank=tensor.rank,
    )


def final_tensors(
    graph: Graph, rewired: dict[tuple[Tensor, int], Tensor], graph_inputs: list[Tensor]
) -> dict[Tensor, Tensor]:
    """Graph tensor -> final tensor, for those that differ.

    They differ for nodes with a rewired source, for inputs with several copies (their memory must
    survive the run, so they become outputs too), and for everything that depends on one of
    these."""
    if not rewired and not graph_inputs:
        return {}
    final = {leaf: clone(leaf) for leaf in graph_inputs}
    for leaf in final.values():
        leaf.flags = leaf.flags | _IN_AND_OUT
    for node, _ in rewired:
        if node not in final:
            final[node] = clone(node)
    views = [leaf for leaf in graph.leaves if leaf.view_src is not None]
    _spread(graph.nodes, views, final)
    for old, new in final.items():
        new.src = tuple(None if s is None else final.get(s, s) for s in old.src)
        if old.view_src is not None:
            new.view_src = final.get(old.view_src, old.view_src)
    for (node, j), copy in rewired.items():
        new = final[node]
        new.src = (*new.src[:j], copy, *new.src[j + 1 :])
    return final


def _spread(nodes: list[Tensor], leaf_views: list[Tensor], final: dict[Tensor, Tensor]) -> None:
    """Adds clones of the tensors that read or view a tensor in `final`.

    One walk along the nodes is enough, except that a view that is a leaf may come before its
    base."""
    while True:
        before = len(final)
        for node in nodes:
            if node in final:
                continue
            if node.view_src in final:
                final[node] = clone(node)
                continue
            for s in node.src:
                if s in final:
                    final[node] = clone(node)
                    break
        n_nodes = len(final)
        for leaf in leaf_views:
            if leaf not in final and leaf.view_src in final:
                final[leaf] = clone(leaf)
        if len(final) == n_nodes or len(final) == before:
            return
