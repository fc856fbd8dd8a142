"""`check_graph` accepts what constructors make and names what breaks a rule."""

from collections.abc import Callable

import numpy as np
import pytest

from weft import graph as g
from weft.dtype import DTYPES
from weft.errors import GraphError
from weft.graph import Buffer, Graph, Sym, Tensor, check_graph
from weft.graph.op import OPS
from weft.graph.ops import EpsParams, ScaleParams

F32 = DTYPES["f32"]


def chain() -> tuple[Tensor, Tensor, Tensor]:
    x = g.input("x", [3, 4])
    h = g.silu(x)
    return x, h, g.scale(h, 2.0).as_output("y")


def test_a_built_graph_is_legal() -> None:
    x, h, y = chain()
    check_graph(Graph(y))
    cache = g.leaf("f16", [4, 8], "cache", buffer=Buffer("any", data=np.zeros((8, 4), np.float16)))
    rows = g.input("rows", [3], "i32")
    check_graph(Graph(g.set_rows(cache, h, rows), y))
    check_graph(Graph(g.cast(x, "f16")))
    check_graph(Graph())


def test_a_channels_innermost_result_is_legal() -> None:
    data = g.permute(g.input("d", [1, 8, 8, 4]), 2, 0, 1, 3)
    kernel = g.permute(g.input("k", [1, 3, 3, 4]), 3, 0, 1, 2)
    check_graph(Graph(g.conv_2d_dw(kernel, data)))


def change(t: Tensor, **fields: object) -> Tensor:
    for name, value in fields.items():
        setattr(t, name, value)
    return t


def node(**fields: object) -> Graph:
    """The chain's graph with its middle node damaged."""
    _, h, y = chain()
    graph = Graph(y)
    change(h, **fields)
    return graph


def leaf_graph(**fields: object) -> Graph:
    x, _, y = chain()
    graph = Graph(y)
    change(x, **fields)
    return graph


def swapped() -> Graph:
    _, h, y = chain()
    return Graph.of(Graph(y).leaves, [y, h])


def twice() -> Graph:
    graph = Graph(chain()[2])
    return Graph.of(graph.leaves, [*graph.nodes, graph.nodes[-1]])


def foreign_source() -> Graph:
    _, h, y = chain()
    return Graph.of([], [h, y])


def view_beyond() -> Graph:
    x = g.input("x", [3, 4])
    v = g.view_1d(x, 4, 16)
    graph = Graph(g.silu(v))
    v.view_offs = 36
    return graph


def view_of_view() -> Graph:
    x = g.input("x", [3, 4])
    v = g.view_1d(x, 8)
    w = g.view_1d(v, 4)
    graph = Graph(g.silu(w))
    w.view_src = v
    return graph


def view_other_type() -> Graph:
    x = g.input("x", [3, 4])
    v = g.view_1d(x, 4)
    graph = Graph(g.silu(v))
    v.dtype = DTYPES["i32"]
    return graph


def two_ranges() -> Graph:
    a = g.input("a", [Sym("n", 1, 4)])
    b = g.input("b", [Sym("n", 1, 8)])
    return Graph(g.silu(a), g.silu(b))


def two_outputs() -> Graph:
    x = g.input("x", [4])
    return Graph(g.silu(x).as_output("y"), g.relu(x).as_output("y"))


def small_memory() -> Graph:
    w = g.leaf("f32", [8], "w", buffer=Buffer("weights", data=np.zeros(4, np.float32)))
    return Graph(g.silu(w))


def leaf_with_op() -> Graph:
    graph = Graph(chain()[2])
    return Graph.of([*graph.leaves, graph.nodes[0]], graph.nodes[1:])


ILLEGAL: list[tuple[str, Callable[[], Graph], str]] = [
    ("order", swapped, "reads source 0, .*comes later or never"),
    ("twice", twice, "occurs twice"),
    ("foreign", foreign_source, "comes later or never"),
    ("leaf with op", leaf_with_op, "leaf with op UNARY"),
    ("no op", lambda: node(op=OPS["NONE"], params=None, src=()), "without an op"),
    ("arity", lambda: node(src=()), "has 0 sources"),
    ("holes", lambda: node(src=(None,)), "has 0 sources"),
    ("params", lambda: node(params=EpsParams(0.1)), "parameters EpsParams"),
    ("no params", lambda: node(params=None), "parameters NoneType"),
    ("view op", lambda: node(op=OPS["VIEW"], params=None), "shares no memory"),
    ("input op", lambda: node(flags=frozenset({"input"})), "input that an op computes"),
    ("flag", lambda: node(flags=frozenset({"hot"})), r"unknown flags \['hot'\]"),
    ("negative", lambda: node(ne=(4, -3, 1, 1)), "size -3, which may be negative"),
    ("float", lambda: node(ne=(4, 3.0, 1, 1)), "size 3.0, which is not an integer"),
    ("three sizes", lambda: node(ne=(4, 3, 1)), "3 sizes"),
    ("blocks", lambda: leaf_graph(dtype=DTYPES["q4_0"]), "not whole blocks of 32"),
    ("stride", lambda: node(nb=(4, 18, 54, 54)), "stride 18"),
    ("gaps", lambda: node(nb=(4, 32, 96, 96)), "with gaps, yet owns"),
    ("offset", lambda: node(view_offs=4), "offset 4 but is no view"),
    ("huge", lambda: leaf_graph(ne=(2**60, 8, 1, 1), nb=(4, 2**62, 2**65, 2**65)), "spans"),
    ("view beyond", view_beyond, "ends at byte 52 of its base .* 48"),
    ("view of view", view_of_view, "which is itself a view"),
    ("view type", view_other_type, "as another type"),
    ("symbols", two_ranges, "symbol n is declared twice"),
    ("outputs", two_outputs, "two graph outputs are called 'y'"),
    ("input name", lambda: leaf_graph(name=""), "input without a name"),
    ("memory", small_memory, "needs 32 bytes, its memory has 16"),
]


@pytest.mark.parametrize(("make", "match"), [pytest.param(b, m, id=n) for n, b, m in ILLEGAL])
def test_illegal(make: Callable[[], Graph], match: str) -> None:
    with pytest.raises(GraphError, match=match):
        check_graph(make())


def test_a_copied_op_row_is_not_in_the_table() -> None:
    from dataclasses import replace

    graph = node(op=replace(OPS["SCALE"]), params=ScaleParams(1.0))
    with pytest.raises(GraphError, match="not in the table"):
        check_graph(graph)
