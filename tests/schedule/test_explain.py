"""The words of a plan."""

from __future__ import annotations

import json

import pytest

from tests.schedule.planning_graphs import chain, cpu, gpu, node, value, view, weight
from weft.allocate import allocate
from weft.errors import FormatError, ScheduleError
from weft.graph.graph import Graph
from weft.graph.node import leaf
from weft.graph.op import find_op
from weft.graph.size import Sym
from weft.graph.tensor import Tensor
from weft.schedule import schedule
from weft.schedule.cause import WEIGHT
from weft.schedule.describe import cause_text
from weft.schedule.diff import diff
from weft.schedule.draw import dot, mermaid
from weft.schedule.explain import why


def test_the_table() -> None:
    g, c = gpu(refused=["SQR"]), cpu()
    text = schedule(chain("?GC", {"G": g, "C": c}), [g, c]).explain()
    assert text.splitlines() == [
        "devices: gpu (GPU), cpu (CPU)",
        "",
        "split 0: cpu, node 0",
        "      0  n0  SQR      cpu  3.best  most of its sources can be read there",
        "         gpu refused: no kernel for SQR",
        "",
        "split 1: gpu, node 1",
        "  copies n0 from cpu (1,024 B)",
        "      1  n1  MUL_MAT  gpu  1.wgt0  weight w1 lives in gpu memory",
        "",
        "split 2: cpu, node 2",
        "  copies n1 from gpu (1,024 B)",
        "      2  n2  MUL_MAT  cpu  1.wgt0  weight w2 lives in cpu memory",
        "",
        "total: 3 splits, 3 nodes, 2 copies, 2,048 B copied per pass",
        "3 ops run",
    ]


def test_a_device_that_was_never_asked_is_asked() -> None:
    g, c = gpu(), cpu(refused=["MUL_MAT"])
    scheduled = schedule(chain("G", {"G": g}), [g, c])
    assert not scheduled.refusals
    assert "cpu refused: no kernel for MUL_MAT" in scheduled.explain()


def test_long_lines_are_broken_not_cut() -> None:
    long = "because " * 20
    g, c = gpu(refused=["SQR"]), cpu()
    scheduled = schedule(chain("G?", {"G": g}), [g, c])
    scheduled.refusals[(scheduled.graph.nodes[1], 0)] = long.strip()
    narrow = scheduled.explain(60)
    assert max(map(len, narrow.splitlines())) <= 60
    assert narrow.split() == scheduled.explain().split()


def test_bytes_of_a_symbolic_size() -> None:
    g, c = gpu(), cpu()
    x = leaf("f32", (64, Sym("n_tokens", 1, 4).size), "x", frozenset({"input"}))
    y = Tensor(x.dtype, x.ne, name="y", op=find_op("SQR"), src=(x,))
    scheduled = schedule(Graph(y), [g, c], assign={y: g})
    assert "copies x from cpu (256 to 1,024 B)" in scheduled.explain()
    assert scheduled.to_json()["totals"]["least_copied_bytes"] == 256


def test_json_is_plain_data() -> None:
    g, c = gpu(), cpu()
    scheduled = schedule(chain("GC", {"G": g, "C": c}), [g, c])
    data = json.loads(json.dumps(scheduled.to_json()))
    assert data["totals"] == {
        "splits": 2, "nodes": 2, "views": 0, "ops": 2, "copies": 2,
        "copied_bytes": 2048, "least_copied_bytes": 2048,
    }  # fmt: skip
    assert data["splits"][1]["inputs"] == [
        {"name": "n0", "from": "gpu", "bytes": 1024, "least_bytes": 1024}
    ]
    assert data["splits"][1]["nodes"][0]["why"] == "weight w1 lives in cpu memory"


def test_causes_name_what_decided() -> None:
    g, c = gpu(offload_from=1), cpu()
    cache = weight("cache", g)
    v = view("v", cache)
    off = node("MUL_MAT", "off", weight("w", c), value("x"), shape=(64, 4))
    back = view("back", off)
    scheduled = schedule(Graph(v, back), [g, c])
    assert cause_text(scheduled, v) == "cache lives in gpu memory"
    assert cause_text(scheduled, off) == "asked for by the device; weight w lives in cpu memory"
    assert cause_text(scheduled, back) == "the tensor it views, off, is there"


def test_every_cause_has_words() -> None:
    g, c = gpu(), cpu()
    scheduled = schedule(chain("?G?", {"G": g}), [g, c], n_copies=2)
    for cause in scheduled.cause_of.values():
        assert cause.code.startswith(cause.rule) and cause.meaning
    weights = [n for n in scheduled.graph.nodes if scheduled.cause_of[n].rule == WEIGHT.rule]
    assert [scheduled.cause_of[n].weight for n in weights] == [0]


def test_why_takes_the_number_of_a_node() -> None:
    scheduled = schedule(chain("CC", {"C": (c := cpu())}), [c])
    assert why(scheduled, "1") == why(scheduled, "n1")
    with pytest.raises(ScheduleError, match="may be named by its number"):
        why(scheduled, "999")


def test_why_tells_everything_about_one_node() -> None:
    g, c = gpu(refused=["SQR"]), cpu()
    scheduled = schedule(chain("G?G", {"G": g}), [g, c])
    assert why(scheduled, "n1").splitlines() == [
        "n1: SQR f32[64, 4] on cpu",
        "  because (3.best) most of its sources can be read there",
        "  gpu refused: no kernel for SQR",
        "  runs in split 1 (cpu)",
        "  copied to gpu before split 2 (1,024 B)",
    ]
    assert why(scheduled, "n0").splitlines() == [
        "n0: MUL_MAT f32[64, 4] on gpu",
        "  because (1.wgt0) weight w0 lives in gpu memory",
        "  cpu runs it, too; it would read copies of w0 (16,384 B)",
        "  runs in split 0 (gpu)",
        "  copied to cpu before split 1 (1,024 B)",
    ]
    with pytest.raises(ScheduleError, match=r"no tensor called 'n11'; did you mean n1"):
        why(scheduled, "n11")


def test_the_graph_of_splits() -> None:
    g, c = gpu(), cpu()
    scheduled = schedule(chain("GC", {"G": g, "C": c}), [g, c])
    assert mermaid(scheduled).splitlines() == [
        "flowchart TD",
        '  s0["split 0: gpu, 1 op"]',
        '  s1["split 1: cpu, 1 op"]',
        '  d1["inputs and weights of cpu"]',
        '  d1 -->|"x, 1,024 B"| s0',
        '  s0 -->|"n0, 1,024 B"| s1',
    ]
    assert dot(scheduled).startswith("digraph") and 's0 -> s1 [label="n0, 1,024 B"];' in dot(
        scheduled
    )


def test_diff_of_two_plans() -> None:
    g, c = gpu(), cpu()
    graph = chain("G?", {"G": g})
    a = schedule(graph, [g, c]).to_json()
    b = schedule(graph, [g, c], assign={graph.nodes[1]: c}).to_json()
    assert diff(a, a) == ""
    assert diff(a, b).splitlines() == [
        "n1: gpu -> cpu (assigned by the user)",
        "+ copy of n0 from gpu to cpu (1.00 KiB)",
        "moved: 1 node from gpu to cpu",
        "splits: 1 -> 2",
        "copies: 1 -> 2",
        "copied bytes: 1.00 KiB -> 2.00 KiB (+1,024 B)",
    ]
    assert "+ n1 (SQR) on gpu" in diff(schedule(chain("G", {"G": g}), [g, c]).to_json(), a)


@pytest.mark.parametrize("bad", [{}, {"format": "weft-plan-1"}, []])
def test_diff_of_something_else(bad: object) -> None:
    good = schedule(chain("?", {}), [cpu()]).to_json()
    with pytest.raises(FormatError):
        diff(good, bad)  # type: ignore[arg-type]


def test_memory_in_words() -> None:
    allocation = allocate(schedule(chain("??", {}), [cpu()]))
    words = "cpu: 1,024 B in 1 chunks, 0.0% above the 1,024 B in use at the peak (size)"
    assert allocation.explain() == words
    assert json.loads(json.dumps(allocation.to_json()))["total"] == 1024
