"""Pass 5: splits, copies of what crosses, and that the graph itself is left alone."""

from __future__ import annotations

import pytest

from tests.schedule.planning_graphs import chain, cpu, gpu, node, value, view, weight
from weft.allocate import allocate
from weft.errors import ScheduleError
from weft.graph.graph import Graph
from weft.graph.node import leaf
from weft.graph.tensor import Tensor
from weft.schedule import Schedule, schedule


def rows(scheduled: Schedule) -> list[tuple[str, range, list[str]]]:
    """Device, node range and inputs of each split."""
    return [
        (scheduled.backends[s.backend].name, range(s.start, s.end), [t.name for t in s.inputs])
        for s in scheduled.splits
    ]


def names(tensors: list[Tensor]) -> list[str]:
    return [t.name for t in tensors]


def test_six_nodes_on_two_devices() -> None:
    """The first document's example: nodes 0-2 on the GPU, 3-5 on the CPU: two splits."""
    g, c = gpu(), cpu()
    scheduled = schedule(chain("GGGCCC", {"G": g, "C": c}), [g, c])
    assert rows(scheduled) == [("gpu", range(0, 3), ["x"]), ("cpu", range(3, 6), ["n2"])]


def test_four_nodes_and_the_copy_between() -> None:
    """Node1(GPU) -> Node2(GPU) -> Node3(CPU) -> Node4(CPU): split 2 needs Node2's output."""
    g, c = gpu(), cpu()
    scheduled = schedule(chain("GGCC", {"G": g, "C": c}), [g, c])
    n1, n2 = scheduled.graph.nodes[1], scheduled.graph.nodes[2]
    copy = scheduled.copies[(n1, 1, 0)]
    assert rows(scheduled) == [("gpu", range(0, 2), ["x"]), ("cpu", range(2, 4), ["n1"])]
    assert copy.name == "cpu#n1#0" and copy.op.name == "NONE" and copy.ne == n1.ne
    assert scheduled.rewired[(n2, 1)] is copy
    assert scheduled.final_of(n2).src == (n2.src[0], copy)
    assert scheduled.splits[1].copies == [(scheduled.final_of(n1), copy)]
    assert names(scheduled.plan_nodes) == [
        "x (view)", "gpu#x#0", "n0", "n1", "n1 (view)", "cpu#n1#0", "n2", "n3",
    ]  # fmt: skip


def test_the_graph_is_not_changed() -> None:
    g, c = gpu(), cpu()
    graph = chain("GCGCG", {"G": g, "C": c})
    before = [(t.name, t.src, t.view_src, t.flags, t.op, t.buffer) for t in graph.tensors]
    schedule(graph, [g, c], n_copies=4)
    assert before == [(t.name, t.src, t.view_src, t.flags, t.op, t.buffer) for t in graph.tensors]


def test_one_copy_serves_later_splits_of_the_same_device() -> None:
    g, c = gpu(), cpu()
    x = value("x")
    q = node("SQR", "q", x)
    a = node("SQR", "a", q)
    b = node("SQR", "b", a)
    d = node("ADD", "d", b, q)
    scheduled = schedule(Graph(d), [g, c], assign={q: c, a: g, b: c, d: g})
    assert rows(scheduled) == [
        ("cpu", range(0, 1), []),
        ("gpu", range(1, 2), ["q"]),
        ("cpu", range(2, 3), ["a"]),
        ("gpu", range(3, 4), ["b"]),
    ]
    assert (
        scheduled.final_of(d).src[1] is scheduled.final_of(a).src[0] is scheduled.copies[(q, 0, 0)]
    )


def test_readable_memory_needs_no_copy() -> None:
    c = cpu()
    g = gpu(reads=[c.buffer_type])
    graph = chain("???", {})
    a, b, d = graph.nodes
    scheduled = schedule(graph, [g, c], assign={a: c, b: g, d: c})
    assert rows(scheduled) == [
        ("cpu", range(0, 1), []),
        ("gpu", range(1, 2), []),
        ("cpu", range(2, 3), ["n1"]),
    ]


def test_a_foreign_weight_starts_a_split_that_reuses_memory() -> None:
    """Offloaded weights are copied; the second starts a new split, so that the first can go."""
    g, c = gpu(offload_from=1), cpu()
    scheduled = schedule(chain("CCC", {"C": c}), [g, c])
    assert rows(scheduled) == [
        ("gpu", range(0, 1), ["w0", "x"]),
        ("gpu", range(1, 2), ["w1"]),
        ("gpu", range(2, 3), ["w2"]),
    ]


def test_views_neither_start_splits_nor_are_rewired() -> None:
    g, c = gpu(), cpu()
    x = node("MUL_MAT", "x", weight("w", g), value("in"), shape=(64, 4))
    v = view("v", x)
    y = node("SQR", "y", v)
    scheduled = schedule(Graph(y), [g, c], assign={y: c})
    assert rows(scheduled) == [("gpu", range(0, 2), ["in"]), ("cpu", range(2, 3), ["v"])]
    assert scheduled.final_of(v).src == (scheduled.final_of(x),)
    assert scheduled.final_of(v).view_src is scheduled.final_of(x)


def test_several_copies_rotate() -> None:
    g, c = gpu(), cpu()
    graph = chain("G", {"G": g})
    x = graph.inputs["x"]
    for current in range(3):
        scheduled = schedule(graph, [g, c], n_copies=3, cur_copy=current)
        assert scheduled.graph_inputs == [x]
        own = [scheduled.copies[(x, 1, i)] for i in range(3)]
        assert own[current] is x and len(set(own)) == 3
        assert scheduled.final_of(graph.nodes[0]).src[1] is scheduled.copies[(x, 0, current)]
        assert scheduled.final_of(x).flags == {"input", "output"} and x.flags == {"input"}
        assert names(scheduled.plan_leaves)[3:6] == [f"gpu#x#{i}" for i in range(3)]


def test_long_names_are_cut_as_in_the_reference() -> None:
    g, c = gpu(), cpu()
    x = value("x" * 80)
    y = node("SQR", "y", x)
    scheduled = schedule(Graph(y), [g, c], assign={y: g})
    assert scheduled.copies[(x, 0, 0)].name == "gpu#" + "x" * 59


def test_a_thousand_inputs_and_64_devices() -> None:
    devices = [gpu(f"gpu{i}") for i in range(63)] + [cpu()]
    inputs = [value(f"x{i}") for i in range(1000)]
    total = inputs[0]
    for i, x in enumerate(inputs[1:]):
        total = node("ADD", f"s{i}", total, x)
    graph = Graph(total)
    scheduled = schedule(graph, devices, assign=dict.fromkeys(graph.nodes, 0))
    assert len(scheduled.splits) == 1 and len(scheduled.splits[0].inputs) == 1000
    scheduled = schedule(graph, devices, assign={n: i % 64 for i, n in enumerate(graph.nodes)})
    assert len(scheduled.splits) == 999


def test_only_views_run_where_the_split_before_ran() -> None:
    c = cpu()
    cache = weight("cache", c)
    scheduled = schedule(Graph(view("v", cache)), [gpu(), c], first_backend=1)
    assert rows(scheduled) == [("cpu", range(0, 1), [])]


def test_a_source_that_nothing_could_place() -> None:
    """A leaf that only views read gets no device: the reference aborts on it."""
    base = leaf("f32", (64, 4), "base")
    scheduled = schedule(Graph(node("SQR", "y", view("v", base)), value("x")), [gpu(), cpu()])
    with pytest.raises(ScheduleError, match=r"base f32 \(4, 64\) has no device"):
        allocate(scheduled)


def test_what_a_backend_keeps_allocated() -> None:
    class Keeper(type(cpu())):  # type: ignore[misc]
        def allocation_deps(self, nodes: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
            return [(nodes[0], nodes[-1]), (nodes[0], nodes[-1])]

    graph = chain("????", {})
    scheduled = schedule(graph, [Keeper("cpu", "CPU")])
    assert names(scheduled.plan_nodes) == ["n0", "n1", "n2", "n3", "n0 (view)"]
    assert scheduled.roles[scheduled.plan_nodes[-1]].kind == "keep"
