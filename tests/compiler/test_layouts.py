"""Which weights are repacked, and that results stay the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.backends.panels import PanelCpu
from weft import _native, quants
from weft import graph as G
from weft.backends import make_backend
from weft.compiler import compile, plan_graph, repacked
from weft.dtype import DTYPES
from weft.execute import Session
from weft.graph import Graph, Tensor
from weft.graph.tensor import Buffer, Usage

RANDOM = np.random.default_rng(0)


def weight(
    rows: int = 64, n: int = 32, experts: int = 1, usage: Usage = "weights", name: str = "w"
) -> Tensor:
    data = RANDOM.standard_normal((experts, rows, n)).astype(np.float32)
    return Tensor(DTYPES["f32"], (n, rows, experts, 1), name=name, buffer=Buffer(usage, data=data))


def chosen(*graphs: Graph, devices: Any = None) -> list[str]:
    """Names of the weights that are repacked in plans of these graphs."""
    backends = devices or [PanelCpu()]
    plans = repacked([plan_graph(graph, backends) for graph in graphs])
    assert all(plan.layouts == plans[0].layouts for plan in plans)
    assert {t.name for t in plans[0].layouts.values()} <= {"CPU_R32"}
    return [leaf.name for leaf in plans[0].layouts]


def x(n: int = 32, tokens: int = 3) -> Tensor:
    return G.input("x", (tokens, n), "f32")


def out(t: Tensor) -> Graph:
    return Graph(t.as_output("y"))


def test_weights_of_products() -> None:
    assert chosen(out(G.mul_mat(weight(), x()))) == ["w"]


def test_what_stays_as_rows() -> None:
    assert chosen(out(G.mul_mat(weight(rows=31), x()))) == []
    assert chosen(out(G.mul_mat(weight(rows=48), x()))) == ["w"]  # but for the last 16
    assert chosen(out(G.mul_mat(weight(usage="any"), x()))) == []
    assert chosen(out(G.add(weight(rows=32), x(tokens=32)))) == []
    w = weight()
    assert chosen(out(G.mul_mat(w, w))) == []


def test_tables_that_are_read_by_row_too() -> None:
    w = weight()
    ids = G.input("ids", (3,), "i32")
    assert chosen(out(G.mul_mat(w, G.get_rows(w, ids)))) == []


def test_a_table_that_is_multiplied_with() -> None:
    """The output of a model whose embedding it shares; an embedding alone stays in the file."""
    cpu = make_backend("cpu")
    values = RANDOM.standard_normal((77, 64)).astype(np.float32)
    data = np.array(quants.encode(values, DTYPES["q8_0"])).reshape(-1)
    w = Tensor(DTYPES["q8_0"], (64, 77, 1, 1), name="w", buffer=Buffer("weights", data=data))
    ids = G.input("ids", (3,), "i32")
    tied, embedding = out(G.mul_mat(w, G.get_rows(w, ids))), out(G.get_rows(w, ids))
    if DTYPES["q8_0"].id in _native.interleaved_types(cpu.target):
        assert chosen(tied, devices=[cpu]) == ["w"]
    assert chosen(embedding, devices=[cpu]) == []
    rows = {"ids": np.int32([0, 70, 33])}
    got, want = (
        Session(compile(tied, [cpu], repack=repack)).run(rows)["y"] for repack in (True, False)
    )
    np.testing.assert_array_equal(got, want)


def test_one_use_among_several_plans_decides() -> None:
    w = weight()
    ids = G.input("ids", (3,), "i32")
    product, rows = out(G.mul_mat(w, x())), out(G.get_rows(w, ids))
    assert chosen(product, product) == ["w"]
    assert chosen(product, rows) == []
    assert chosen(rows, product) == []


def test_parts_of_a_matrix_stay() -> None:
    w = weight()
    half = G.view_2d(w, 32, 32, w.nb[1], 0)
    tokens = x()
    assert chosen(out(G.mul_mat(half, tokens))) == []
    whole, part = G.mul_mat(w, tokens), G.mul_mat(half, tokens)
    assert chosen(Graph(whole.as_output("whole"), part.as_output("part"))) == []
    assert chosen(Graph(whole.as_output("whole"))) == ["w"]


def test_two_leaves_over_the_same_bytes() -> None:
    w = weight()
    assert w.buffer is not None
    table = Tensor(w.dtype, w.ne, name="table", buffer=Buffer("weights", data=w.buffer.data))
    ids = G.input("ids", (3,), "i32")
    assert chosen(out(G.mul_mat(w, G.get_rows(table, ids)))) == []


def test_part_of_an_array_stays() -> None:
    w = weight()
    assert w.buffer is not None
    for offset in (0, 128):
        part = Tensor(
            w.dtype, (32, 32, 1, 1), name="w",
            buffer=Buffer("weights", data=w.buffer.data, offset=offset),
        )  # fmt: skip
        assert chosen(out(G.mul_mat(part, x()))) == []


def test_weights_of_two_devices_stay() -> None:
    assert chosen(out(G.mul_mat(weight(), x())), devices=[make_backend("reference")]) == []
    w, tokens = weight(), x()
    a, b = G.mul_mat(w, tokens), G.mul_mat(w, tokens)
    graph = Graph(a.as_output("a"), b.as_output("b"))
    pair = [PanelCpu(name="first"), PanelCpu(name="second")]
    for on, expected in (((0, 0), ["w"]), ((0, 1), []), ((1, 1), ["w"])):
        plan = plan_graph(graph, pair, policy="plan", assign={a: on[0], b: on[1]})
        assert [leaf.name for leaf in repacked([plan])[0].layouts] == expected
    # nor does it help that each of two plans has its own device
    plans = [plan_graph(graph, pair, policy="plan", assign={a: n, b: n}) for n in (0, 1)]
    assert repacked(plans)[0].layouts == {}


def expert_graph() -> Graph:
    w = weight(rows=64, experts=4)
    ids = G.input("ids", (3, 2), "i32")
    tokens = G.input("x", (3, 1, 32), "f32")
    return out(G.mul_mat_id(w, tokens, ids))


def test_experts() -> None:
    assert chosen(expert_graph()) == ["w"]


def run(graph: Graph, inputs: dict[str, NDArray[Any]], repack: bool) -> NDArray[Any]:
    program = compile(graph, [PanelCpu()], repack=repack)
    layouts = [t.layout for t in program.tensors]
    assert ("interleaved" in layouts) == repack
    return Session(program).run(inputs)["y"]


def test_the_same_results() -> None:
    inputs = {"x": RANDOM.standard_normal((3, 32)).astype(np.float32)}
    graph = out(G.mul_mat(weight(), x()))
    np.testing.assert_array_equal(run(graph, inputs, True), run(graph, inputs, False))
    graph = expert_graph()
    inputs = {
        "x": RANDOM.standard_normal((3, 1, 32)).astype(np.float32),
        "ids": np.array([[0, 3], [2, 1], [3, 0]], np.int32),
    }
    np.testing.assert_array_equal(run(graph, inputs, True), run(graph, inputs, False))


def test_not_unless_asked() -> None:
    program = compile(out(G.mul_mat(weight(), x())), [PanelCpu()])
    assert {t.layout for t in program.tensors} == {"rows"}


def test_plans_say_what_is_repacked() -> None:
    plan = repacked([plan_graph(out(G.mul_mat(weight(), x())), [PanelCpu()])])[0]
    assert plan.to_json()["repacked"] == {"w": "CPU_R32"}


@pytest.mark.parametrize("n", [0, 7])
def test_a_repacked_weight_reads_back_as_rows(n: int) -> None:
    w = weight()
    assert w.buffer is not None
    program = compile(out(G.mul_mat(w, x())), [PanelCpu()], repack=True)
    session = Session(program)
    buffer = next(i for i, b in enumerate(program.buffers) if b.matrix is not None)
    data = w.buffer.data.reshape(-1).view(np.uint8)
    np.testing.assert_array_equal(session.read_buffer(buffer, n, 500), data[n : n + 500])
