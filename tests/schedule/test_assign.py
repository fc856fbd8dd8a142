"""Passes 1 to 4: what decides where a node runs."""

from __future__ import annotations

import pytest

from tests.schedule.planning_graphs import chain, cpu, gpu, node, value, view, weight
from weft.errors import ScheduleError, UnsupportedOpError
from weft.graph.graph import Graph
from weft.graph.node import leaf
from weft.graph.tensor import Buffer, Tensor
from weft.schedule import Schedule, schedule
from weft.schedule.assign import sweep
from weft.schedule.devices import Devices


def placed(scheduled: Schedule) -> list[str]:
    """`device cause` of every node."""
    return [
        f"{scheduled.backends[scheduled.backend_of[n]].name} {scheduled.cause_of[n].code}"
        for n in scheduled.graph.nodes
    ]


def letters(graph: Graph, where: dict[Tensor, int]) -> str:
    """The row of the documents: G for the GPU, C for the CPU, ? for unassigned."""
    return "".join("?GC"[where.get(n, -1) + 1] for n in graph.nodes)


def test_sweeps_of_pass_2() -> None:
    """A node takes the device of its neighbour; the CPU is not passed on in the first two."""
    g, c = gpu(), cpu()
    graph = chain("??G?C?G?", {"G": g, "C": c})
    devices = Devices([g, c])
    where = {n: int(n.src[0].name == "w4") for n in graph.nodes if n.op.name == "MUL_MAT"}
    assert letters(graph, where) == "??G?C?G?"
    sweep(graph.nodes, devices, where, {}, devices.last)
    assert letters(graph, where) == "??GGC?GG"
    sweep(reversed(graph.nodes), devices, where, {}, devices.last)
    assert letters(graph, where) == "GGGGCGGG"


def test_the_whole_example() -> None:
    g, c = gpu(), cpu()
    scheduled = schedule(chain("??G?C?G?", {"G": g, "C": c}), [g, c])
    assert letters(scheduled.graph, scheduled.backend_of) == "GGGGCGGG"
    causes = [scheduled.cause_of[n].code for n in scheduled.graph.nodes]
    assert causes == ["2.sup", "2.sup", "1.wgt0", "2.sup", "1.wgt0", "2.sup", "1.wgt0", "2.sup"]


def test_backward_example() -> None:
    """The first document's example: both unassigned ends join the GPU nodes."""
    g, c = gpu(), cpu()
    scheduled = schedule(chain("??G?G", {"G": g}), [g, c])
    assert letters(scheduled.graph, scheduled.backend_of) == "GGGGG"


def test_refused_nodes_stay_for_the_cpu() -> None:
    g, c = gpu(refused=["SQR"]), cpu()
    scheduled = schedule(chain("?G?G", {"G": g}), [g, c])
    # no CPU node to grow from: pass 3 places them; two such nodes have one readable source each
    assert placed(scheduled) == ["cpu 3.best", "gpu 1.wgt0", "cpu 3.best", "gpu 1.wgt0"]
    assert scheduled.refusals[(scheduled.graph.nodes[0], 0)] == "no kernel for SQR"


def test_memory_and_inputs_decide_first() -> None:
    g, c = gpu(), cpu()
    cache = leaf("f32", (64, 4), "cache", buffer=Buffer("any", g.buffer_type))
    x = value("x")
    scheduled = schedule(Graph(node("ADD", "sum", view("v", cache), x)), [g, c])
    assert scheduled.cause_of[cache].code == "1.dst" and scheduled.backend_of[cache] == 0
    assert scheduled.cause_of[x].code == "1.inp" and scheduled.backend_of[x] == 1
    # one readable source on either: the higher device wins
    assert placed(scheduled) == ["gpu 1.dst", "gpu 3.best"]


def test_offload_of_host_weights_for_big_batches() -> None:
    g, c = gpu(offload_from=32), cpu()
    small = node("MUL_MAT", "small", weight("w", c), value("x", (64, 4)), shape=(64, 4))
    big = node("MUL_MAT", "big", weight("w", c), value("x", (64, 40)), shape=(64, 40))
    assert placed(schedule(Graph(small), [g, c])) == ["cpu 1.wgt0"]
    assert placed(schedule(Graph(big), [g, c])) == ["gpu 1.off"]
    assert placed(schedule(Graph(big), [g, c], op_offload=False)) == ["cpu 1.wgt0"]


def test_rope_frequencies_do_not_decide() -> None:
    g, c = gpu(), cpu()
    x = node("MUL_MAT", "x", weight("w", g), value("in"), shape=(64, 4))
    rope = node("ROPE", "rope", x, value("pos", (4,)), weight("freqs", c, (32,)))
    assert placed(schedule(Graph(rope), [g, c])) == ["gpu 1.wgt0", "gpu 2.sup"]


def test_upgrade_on_an_equal_buffer_type() -> None:
    c = cpu()
    blas = gpu("blas", ops=["MUL_MAT"], memory=c.buffer_type)
    x = node("SQR", "x", value("in"))
    y = node("MUL_MAT", "y", x, x, shape=(4, 4))
    scheduled = schedule(Graph(node("SQR", "z", y)), [blas, c], assign={x: c})
    assert placed(scheduled) == ["cpu usr", "blas 3.upg", "cpu 2.sup"]


def test_views_follow_their_base() -> None:
    g, c = gpu(), cpu()
    x = node("MUL_MAT", "x", weight("w", g), value("in"), shape=(64, 4))
    v = view("v", x, "RESHAPE")
    scheduled = schedule(Graph(node("SQR", "y", v)), [g, c])
    assert scheduled.cause_of[v].code == "4.vsrc" and scheduled.backend_of[v] == 0


def test_user_assignments_hold() -> None:
    g, c = gpu(), cpu()
    graph = chain("GGG", {"G": g})
    middle = graph.nodes[1]
    for target in (c, 1):
        scheduled = schedule(graph, [g, c], assign={middle: target})
        assert placed(scheduled) == ["gpu 1.wgt0", "cpu usr", "gpu 1.wgt0"]


def test_nothing_runs_the_node() -> None:
    g, c = gpu(ops=[]), cpu(refused=["SQR"])
    with pytest.raises(UnsupportedOpError, match=r"SQR n0 f32 \(4, 64\): gpu: no kernel.*cpu: no"):
        schedule(chain("?", {}), [g, c])


def test_memory_that_no_device_can_use() -> None:
    g, c = gpu(refused=["NONE"]), cpu()
    with pytest.raises(ScheduleError, match=r"w0 .*memory of type gpu"):
        schedule(chain("G", {"G": g}), [g, c])


@pytest.mark.parametrize(
    ("devices", "message"),
    [([], "no devices"), ([gpu()], "last device must be of kind CPU")],
)
def test_bad_device_lists(devices: list[object], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        schedule(chain("?", {}), devices)  # type: ignore[arg-type]


def test_assignment_to_a_stranger() -> None:
    graph = chain("?", {})
    for target in (gpu("other"), 7, -1):
        with pytest.raises(ScheduleError, match="not one of cpu"):
            schedule(graph, [cpu()], assign={graph.nodes[0]: target})


def test_unknown_policy_and_copies() -> None:
    graph = chain("?", {})
    with pytest.raises(ScheduleError, match="policy is 'fast'; it must be 'ggml'"):
        schedule(graph, [cpu()], "fast")  # type: ignore[arg-type]
    with pytest.raises(ScheduleError, match="copy 2 of 2"):
        schedule(graph, [cpu()], n_copies=2, cur_copy=2)
