"""The words of a plan."""

from __future__ import annotations

import json

import pytest

from tests.schedule.planning_graphs import chain, cpu, gpu, node, value, view, weight
from weft.allocate import allocate
from weft.errors import FormatError, ScheduleError
from weft.graph.graph import Graph
from weft.schedule import schedule
from weft.schedule.diff import diff
from weft.schedule.explain import CAUSES, cause_text, dot, mermaid, why


def test_the_table() -> None:
    g, c = gpu(refused=["SQR"]), cpu()
    text = schedule(chain("?GC", {"G": g, "C": c}), [g, c]).explain()
    assert text.splitlines() == [
        "devices: gpu (GPU), cpu (CPU)",
        "",
        "split 0: cpu, nodes 0..1",
        "      0  n0  SQR      cpu  3.best  most of its sources can be read there",
        "         gpu refused: no kernel for SQR",
        "",
        "split 1: gpu, nodes 1..2",
        "  copies n0 from cpu (1,024 B)",
        "      1  n1  MUL_MAT  gpu  1.wgt0  weight w1 lives in gpu memory",
        "",
        "split 2: cpu, nodes 2..3",
        "  copies n1 from gpu (1,024 B)",
        "      2  n2  MUL_MAT  cpu  1.wgt0  weight w2 lives in cpu memory",
        "",
        "total: 3 splits, 3 nodes, 2 copies, 2,048 B copied per run",
    ]


def test_json_is_plain_data() -> None:
    g, c = gpu(), cpu()
    made = schedule(chain("GC", {"G": g, "C": c}), [g, c])
    data = json.loads(json.dumps(made.to_json()))
    assert data["totals"] == {"splits": 2, "nodes": 2, "copies": 2, "copied_bytes": 2048}
    assert data["splits"][1]["inputs"] == [{"name": "n0", "from": "gpu", "bytes": 1024}]
    assert data["splits"][1]["nodes"][0]["why"] == "weight w1 lives in cpu memory"


def test_causes_name_what_decided() -> None:
    g, c = gpu(offload_from=1), cpu()
    cache = weight("cache", g)
    v = view("v", cache)
    off = node("MUL_MAT", "off", weight("w", c), value("x"), shape=(64, 4))
    back = view("back", off)
    made = schedule(Graph(v, back), [g, c])
    assert cause_text(made, v) == "cache lives in gpu memory"
    assert cause_text(made, off) == "asked for by the device; weight w lives in cpu memory"
    assert cause_text(made, back) == "the tensor it views, off, is there"


def test_every_cause_has_words() -> None:
    g, c = gpu(), cpu()
    made = schedule(chain("?G?", {"G": g}), [g, c], n_copies=2)
    for cause in made.cause_of.values():
        assert cause.rstrip("0123456789") in CAUSES or cause in CAUSES, cause


def test_why_tells_everything_about_one_node() -> None:
    g, c = gpu(refused=["SQR"]), cpu()
    made = schedule(chain("G?G", {"G": g}), [g, c])
    assert why(made, "n1").splitlines() == [
        "n1: SQR f32[64, 4] on cpu",
        "  because (3.best) most of its sources can be read there",
        "  gpu refused: no kernel for SQR",
        "  runs in split 1 (cpu)",
        "  copied to gpu before split 2 (1,024 B)",
    ]
    with pytest.raises(ScheduleError, match=r"no tensor called 'n11'; did you mean n1"):
        why(made, "n11")


def test_the_graph_of_splits() -> None:
    g, c = gpu(), cpu()
    made = schedule(chain("GC", {"G": g, "C": c}), [g, c])
    assert mermaid(made).splitlines() == [
        "flowchart TD",
        '  s0["split 0: gpu, 1 nodes"]',
        '  s1["split 1: cpu, 1 nodes"]',
        '  d1["inputs and weights of cpu"]',
        '  d1 -->|"x, 1,024 B"| s0',
        '  s0 -->|"n0, 1,024 B"| s1',
    ]
    assert dot(made).startswith("digraph") and 's0 -> s1 [label="n0, 1,024 B"];' in dot(made)


def test_diff_of_two_plans() -> None:
    g, c = gpu(), cpu()
    graph = chain("G?", {"G": g})
    a = schedule(graph, [g, c]).to_json()
    b = schedule(graph, [g, c], assign={graph.nodes[1]: c}).to_json()
    assert diff(a, a) == ""
    assert diff(a, b).splitlines() == [
        "n1: gpu -> cpu (assigned by the user)",
        "splits: 1 -> 2",
        "copies: 1 -> 2",
        "copied bytes: 1,024 -> 2,048",
    ]
    assert "+ n1 (SQR) on gpu" in diff(schedule(chain("G", {"G": g}), [g, c]).to_json(), a)


@pytest.mark.parametrize("bad", [{}, {"format": "weft-plan-1"}, []])
def test_diff_of_something_else(bad: object) -> None:
    good = schedule(chain("?", {}), [cpu()]).to_json()
    with pytest.raises(FormatError):
        diff(good, bad)  # type: ignore[arg-type]


def test_memory_in_words() -> None:
    found = allocate(schedule(chain("??", {}), [cpu()]))
    words = "cpu: 1,024 B in 1 chunks, 0.0% above the 1,024 B in use at the peak (size)"
    assert found.explain() == words
    assert json.loads(json.dumps(found.to_json()))["total"] == 1024
