"""`Graph`: the nodes to compute, in order, and the leaves they start from."""

from __future__ import annotations

from collections.abc import Iterable

from weft.errors import GraphError
from weft.graph.format import format_shortly
from weft.graph.op import NONE
from weft.graph.size import Expr, Sym, symbols
from weft.graph.tensor import Tensor


class Graph:
    """Nodes and leaves in the order that ggml's build_forward_expand gives them.

    `Graph(*outputs)` expands each output in turn; tensors that no output reaches are ignored."""

    def __init__(self, *outputs: Tensor) -> None:
        self.nodes: list[Tensor] = []
        self.leaves: list[Tensor] = []
        self._seen: set[Tensor] = set()
        self.expand(*outputs)

    @classmethod
    def of(cls, leaves: Iterable[Tensor], nodes: Iterable[Tensor]) -> Graph:
        """A graph of exactly these tensors in this order; `check_graph` says which orders are
        legal."""
        graph = cls()
        graph.leaves.extend(leaves)
        graph.nodes.extend(nodes)
        graph._seen.update(graph.tensors)
        return graph

    def expand(self, *outputs: Tensor) -> Graph:
        """Adds everything that `outputs` need, depth first, sources left to right; returns self.

        A tensor without an op is a leaf, unless it has the `param` flag. Unnamed tensors are named
        `leaf_N` or `node_N` by their position. The walk is iterative, so depth is not limited."""
        for output in outputs:
            if output in self._seen:
                continue
            self._seen.add(output)
            stack: list[tuple[Tensor, int]] = [(output, 0)]
            while stack:
                tensor, next_src = stack.pop()
                for i in range(next_src, len(tensor.src)):
                    src = tensor.src[i]
                    # marked before descending: a tensor may be its own source
                    if src is not None and src not in self._seen:
                        self._seen.add(src)
                        stack.append((tensor, i + 1))
                        stack.append((src, 0))
                        break
                else:
                    self._append(tensor)
        return self

    def _append(self, tensor: Tensor) -> None:
        if tensor.op is NONE and "param" not in tensor.flags:
            if not tensor.name:
                tensor.name = f"leaf_{len(self.leaves)}"
            self.leaves.append(tensor)
        else:
            if not tensor.name:
                tensor.name = f"node_{len(self.nodes)}"
            self.nodes.append(tensor)

    @property
    def tensors(self) -> Iterable[Tensor]:
        """The leaves, then the nodes."""
        yield from self.leaves
        yield from self.nodes

    @property
    def inputs(self) -> dict[str, Tensor]:
        """Leaves that the user supplies, by name; raises GraphError on a name used twice."""
        return _by_name((t for t in self.leaves if t.is_input), "input")

    @property
    def outputs(self) -> dict[str, Tensor]:
        """Tensors that the user reads, by name; raises GraphError on a name used twice."""
        return _by_name((t for t in self.tensors if t.is_output), "output")

    @property
    def states(self) -> dict[str, Tensor]:
        """Leaves whose values stay from run to run, by name; raises GraphError on a name used
        twice."""
        return _by_name((t for t in self.leaves if t.is_state), "state")

    @property
    def symbols(self) -> dict[str, Sym]:
        """Every symbol of the graph, by name; raises GraphError where two share a name."""
        by_name: dict[str, Sym] = {}
        for t in self.tensors:
            for size in (*t.ne, *t.nb, t.view_offs):
                for sym in symbols(size) if isinstance(size, Expr) else ():
                    if by_name.setdefault(sym.name, sym) != sym:
                        raise GraphError(
                            f"symbol {sym.name} is declared twice with different bounds "
                            f"(tensor {t.name}): {sym} and {by_name[sym.name]}"
                        )
        return by_name

    def __contains__(self, tensor: Tensor) -> bool:
        return tensor in self._seen

    def __str__(self) -> str:
        """The tensors as text, one a line, in the format of `weft.graph.text`; a long text lacks
        its middle."""
        return format_shortly(self)

    def __repr__(self) -> str:
        ins = ", ".join(_described(t) for t in self.leaves if t.is_input)
        outs = ", ".join(_described(t) for t in self.tensors if t.is_output)
        return (
            f"<Graph {ins or 'nothing'} -> {outs or 'nothing'}; {len(self.nodes)} nodes, "
            f"{len(self.leaves)} leaves>"
        )


def _described(t: Tensor) -> str:
    return f"{t.name} {t.dtype.name} ({', '.join(map(str, t.shape))})"


def _by_name(tensors: Iterable[Tensor], what: str) -> dict[str, Tensor]:
    by_name: dict[str, Tensor] = {}
    for t in tensors:
        if t.name in by_name and by_name[t.name] is not t:
            raise GraphError(f"two graph {what}s are called {t.name!r}; give each its own name")
        by_name[t.name] = t
    return by_name
