"""A placement step by step: the assignments of each sweep, the questions and their answers."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given

from tests.schedule.planning_graphs import (
    Stub,
    chain,
    cpu,
    gpu,
    node,
    random_plans,
    value,
    view,
    weight,
)
from tests.schedule.test_cost import profile
from weft.backends.null import NullBufferType
from weft.errors import ScheduleError, UnsupportedOpError
from weft.graph.graph import Graph
from weft.graph.node import leaf
from weft.graph.tensor import Tensor
from weft.schedule import CostOptions, Schedule, schedule
from weft.schedule.passes import Passes, Question, passes_of


def rows(passes: Passes) -> dict[tuple[str, str], str]:
    """The letters of the nodes after each step: `G` is a gpu, `C` the cpu, `?` no device."""
    nodes = passes.schedule.graph.nodes
    return {
        (step.number, step.sweep): "".join(where.get(n, "?")[0].upper() for n in nodes)
        for step, where in passes.devices_after()
    }


def story(passes: Passes, tensor: Tensor) -> list[tuple[str, str | None, str, str, str | None]]:
    """(step, device before, device, cause, overwritten cause) of each change of a tensor."""
    return [
        (f"{s.number} {s.sweep}", c.was, c.now, c.cause.code, c.over and c.over.code)
        for s in passes.steps
        for c in s.changes
        if c.tensor is tensor
    ]


def asked(passes: Passes, tensor: Tensor, number: str) -> list[Question]:
    return [
        q for s in passes.steps if s.number == number for q in s.questions if q.tensor is tensor
    ]


def test_the_assignment_after_each_sweep() -> None:
    """The table of the published walk: ? ? G ? C ? G ?, down, up."""
    g, c = gpu(), cpu()
    passes = passes_of(schedule(chain("??G?C?G?", {"G": g, "C": c}), [g, c]))
    assert rows(passes) == {
        ("1", "leaves"): "????????",
        ("1", "nodes"): "??G?C?G?",
        ("2", "down"): "??GGC?GG",
        ("2", "up"): "GGGGCGGG",
        ("2", "rest down"): "GGGGCGGG",
        ("2", "rest up"): "GGGGCGGG",
        ("3", "nodes"): "GGGGCGGG",
        ("4", "nodes"): "GGGGCGGG",
        ("5", "splits"): "GGGGCGGG",
    }
    assert [(s.device, s.start, s.end) for s in passes.splits] == [
        ("gpu", 0, 4),
        ("cpu", 4, 5),
        ("gpu", 5, 8),
    ]
    assert [[t.name for t in s.inputs] for s in passes.splits] == [["x"], ["n3"], ["n4"]]
    assert [(c.of.name, c.device, c.copy.name) for c in passes.copies] == [
        ("x", "gpu", "gpu#x#0"),
        ("n3", "cpu", "cpu#n3#0"),
        ("n4", "gpu", "gpu#n4#0"),
    ]


def test_causes_that_were_overwritten() -> None:
    host = NullBufferType("HOST_MEMORY")
    blas = Stub("BLAS", "ACCEL", ops=["MUL_MAT"], memory=host)
    c = Stub("CPU", "CPU", memory=host)
    w = weight("w", c, (4, 4))
    x = node("SQR", "x", value("in", (4, 4)))
    y = node("MUL_MAT", "y", w, x, shape=(4, 4))
    passes = passes_of(schedule(Graph(node("SQR", "z", y)), [blas, c], assign={x: c}))
    assert story(passes, x) == [("0 user", None, "CPU", "usr", None)]
    assert story(passes, w) == [("1 leaves", None, "BLAS", "1.dst", None)]
    last = asked(passes, x, "3")[-1]
    assert (last.device, last.question, last.answer, last.reason) == (
        *("BLAS", "runs SQR", False), "no kernel for SQR",
    )  # fmt: skip
    y_only = passes_of(schedule(Graph(y), [blas, c], assign={y: c}))
    assert story(y_only, y) == [
        ("0 user", None, "CPU", "usr", None),
        ("3 nodes", "CPU", "BLAS", "3.upg", "usr"),
    ]
    (change,) = [c for s in y_only.to_dict()["steps"] for c in s["changes"] if c["over"]]
    assert change["meaning"] == "a higher device uses the same memory and runs it"


def test_each_question_has_its_answer_and_reason() -> None:
    g, c = gpu(offload_from=32), cpu()
    graph = chain("C", {"C": c})
    mul = graph.nodes[0]
    questions = asked(passes_of(schedule(graph, [g, c])), mul, "1")
    assert [(q.device, q.question, q.answer) for q in questions] == [
        ("gpu", "reads memory of type cpu", False),
        ("cpu", "reads memory of type cpu", True),
        ("cpu", "runs MUL_MAT", True),
        ("gpu", "runs MUL_MAT", True),
        ("gpu", "wants MUL_MAT for this batch, with a weight in host memory", False),
    ]
    assert questions[0].reason == "its own memory is of type gpu"
    assert questions[0].about is mul.src[0] and not questions[1].reason
    eager = gpu(offload_from=4)
    wanted = passes_of(schedule(graph, [eager, c]))
    assert asked(wanted, mul, "1")[-1].answer
    assert story(wanted, mul) == [("1 nodes", None, "gpu", "1.off", None)]
    left = passes_of(schedule(graph, [eager, c], op_offload=False))
    assert story(left, mul) == [("1 nodes", None, "cpu", "1.wgt0", None)]


def test_questions_of_pass_5_are_about_the_node_that_reads() -> None:
    g, c = gpu(), cpu()
    graph = chain("GC", {"G": g, "C": c})
    (question,) = asked(passes_of(schedule(graph, [g, c])), graph.nodes[1], "5")
    assert question.about is graph.nodes[0] and question.device == "cpu" and not question.answer


def test_why_a_split_begins() -> None:
    g, c = gpu(offload_from=1), cpu()
    passes = passes_of(schedule(chain("CC?", {"C": c}), [g, c]))
    assert [s.why for s in passes.splits] == [
        "it begins the graph",
        "n1 needs a copied weight, and the split before has copies already",
    ]
    g = gpu()
    passes = passes_of(schedule(chain("GC", {"G": g, "C": c}), [g, c]))
    assert passes.splits[1].why == "n1 is on cpu"


def test_views_and_loose_leaves() -> None:
    g, c = gpu(), cpu()
    loose = leaf("f32", (64, 4), "loose")
    x = node("ADD", "x", node("MUL_MAT", "m", weight("w", g), value("in"), shape=(64, 4)), loose)
    v = view("v", x, "RESHAPE")
    passes = passes_of(schedule(Graph(node("SQR", "y", v)), [g, c]))
    assert story(passes, v) == [("4 nodes", None, "gpu", "4.vsrc", None)]
    assert story(passes, loose) == [("4 nodes", None, "gpu", "4.cur", None)]


def test_the_data() -> None:
    g, c = gpu(), cpu()
    graph = chain("G?", {"G": g})
    data = json.loads(json.dumps(passes_of(schedule(graph, [g, c])).to_dict()))
    assert data["format"] == "weft-passes-1" and data["devices"] == ["gpu", "cpu"]
    names = [t["name"] for t in data["tensors"]]
    assert names == [t.name for t in graph.tensors]
    w, x, n0, n1 = (data["tensors"][names.index(name)] for name in ("w0", "x", "n0", "n1"))
    assert w["leaf"] and w["weight"] and w["memory"] == "gpu" and x["input"] and not x["weight"]
    assert n0["sources"] == [w["id"], x["id"]] and n1["sources"] == [n0["id"]] and n1["node"] == 1
    assert data["splits"] == [
        {
            "device": "gpu", "start": 0, "end": 2, "why": "it begins the graph",
            "inputs": [x["id"]], "nodes": [n0["id"], n1["id"]],
        }
    ]  # fmt: skip
    assert data["copies"] == [
        {"name": "gpu#x#0", "of": x["id"], "device": "gpu", "number": 0, "bytes": 1024}
    ]
    assert data["rewired"] == [{"node": n0["id"], "source": 1, "copy": 0}]
    first = data["steps"][1]["changes"][0]
    assert first == {
        "tensor": n0["id"], "was": None, "now": "gpu", "cause": "1.wgt0",
        "meaning": "a weight is there: source 0 of the op", "over": None,
    }  # fmt: skip
    question = data["steps"][1]["questions"][0]
    assert question["tensor"] == n0["id"] and question["about"] == w["id"]


def test_candidates_of_the_cost_policy() -> None:
    """The rules give the gpu a node that it asks for; the search finds that copying takes longer
    than computing on the cpu."""
    g, c = gpu(offload_from=1), cpu()
    graph = chain("C?", {"C": c})
    first = graph.nodes[0]
    placed = schedule(graph, [g, c], "cost", cost=CostOptions(profile([g, c])))
    passes = passes_of(placed)
    rules, found = passes.candidates
    assert (rules.how, rules.taken, rules.nodes) == (
        *("the reference's rules", False), {"gpu": 2, "cpu": 0},
    )  # fmt: skip
    assert (found.how, found.taken, found.exact) == ("a walk along the nodes", True, True)
    assert placed.predicted is not None and placed.predicted.total == found.seconds < rules.seconds
    assert found.nodes == {"gpu": 0, "cpu": 2} and found.prediction == placed.predicted
    assert story(passes, first) == [
        ("1 nodes", None, "gpu", "1.off", None),
        ("cost search", "gpu", "cpu", "cost", "1.off"),
    ]
    step = next(s for s in passes.steps if s.number == "cost")
    assert step.title.startswith("The search takes a walk along the nodes: ")
    assert "copies" in step.title and step.title.endswith(").")
    data = json.loads(json.dumps(passes.to_dict()))["candidates"]
    assert [one["taken"] for one in data] == [False, True]
    assert data[0]["prediction"]["copies"] > data[1]["prediction"]["copies"]


def test_the_rules_stay_where_nothing_is_faster() -> None:
    g, c = gpu(), cpu()
    placed = schedule(chain("G", {"G": g}), [g, c], "cost", cost=CostOptions(profile([g, c])))
    passes = passes_of(placed)
    assert [one.taken for one in passes.candidates] == [True, False]
    step = next(s for s in passes.steps if s.number == "cost")
    assert not step.changes and "no placement that is faster" in step.title


def test_a_plan_step_by_step() -> None:
    g, c = gpu(), cpu()
    graph = chain("G?", {"G": g})
    first, second = graph.nodes
    passes = passes_of(schedule(graph, [g, c], "plan", assign={first: g, second: c}))
    assert story(passes, second) == [("plan nodes", None, "cpu", "plan", None)]
    assert rows(passes)["plan", "leaves"] == "??"


def test_memory_that_moved_since_is_said() -> None:
    g, c = gpu(), cpu()
    graph = chain("G", {"G": g})
    placed = schedule(graph, [g, c])
    weight_of = graph.nodes[0].src[0]
    assert weight_of is not None and weight_of.buffer is not None
    weight_of.buffer.type = c.buffer_type
    with pytest.raises(ScheduleError, match="w0 would be elsewhere"):
        passes_of(placed)


@given(random_plans())
def test_the_steps_end_in_the_schedule(
    drawn: tuple[Graph, list[Stub], dict[Tensor, int], int],
) -> None:
    graph, devices, assign, n_copies = drawn
    try:
        placed = schedule(graph, devices, assign=assign, n_copies=n_copies)
    except (ScheduleError, UnsupportedOpError):
        return
    passes = passes_of(placed)
    names = [d.name for d in devices]
    *_, (_, where) = passes.devices_after()
    known = {t: b for t, b in placed.backend_of.items() if b >= 0 and t in graph}
    assert where == {t: names[b] for t, b in known.items()}
    causes = {c.tensor: c.cause for step in passes.steps for c in step.changes}
    assert causes == {t: placed.cause_of[t] for t in where}
    assert plain(passes, placed)
    json.dumps(passes.to_dict())


def plain(passes: Passes, placed: Schedule) -> bool:
    """Whether splits and rewired sources are those of the schedule."""
    splits = [(s.start, s.end, s.inputs) for s in passes.splits]
    assert splits == [(s.start, s.end, tuple(s.inputs)) for s in placed.splits]
    rewired = {key: copy.name for key, copy in placed.rewired.items()}
    assert {key: copy.name for key, copy in passes.rewired.items()} == rewired
    return len(passes.copies) == len([c for (t, _, _), c in placed.copies.items() if c is not t])


def test_the_steps_in_words() -> None:
    g, c = gpu(), cpu()
    passes = passes_of(schedule(chain("??G?C?G?", {"G": g, "C": c}), [g, c]))
    lines = passes.text().splitlines()
    assert lines[0] == "A letter is a node, in order: G gpu, C cpu; ? has no device yet."
    table = [line.strip() for line in lines if re.fullmatch(r"  [?GC]{8}", line)]
    assert table == ["????????", "??G?C?G?", "??GGC?GG", "GGGGCGGG"]
    assert "  gpu 2.sup (a neighbour is there, and the device runs it): n3, n7" in lines
    assert "  asked gpu: runs SQR? 2 yes" in lines
    assert "  split 1: cpu, node 4: n4 is on cpu; copies n3" in lines
    assert "  cpu#n3#0 is read instead of n3 by n4" in lines
    assert lines.count("  nothing changes") == 4
    narrow = passes.text(60).splitlines()
    assert max(map(len, narrow)) <= 60 and " ".join(" ".join(narrow).split()) == " ".join(
        passes.text().split()
    )


def test_equal_layers_are_one_line() -> None:
    """Twelve layers of nine nodes, of which the last five have weights on the gpu."""
    g, c = gpu(), cpu()
    graph = chain("".join(f"????????{'GC'[i < 7]}" for i in range(12)), {"G": g, "C": c})
    passes = passes_of(schedule(graph, [g, c]))
    rows = [line for line in passes.text().splitlines() if re.match(r"  +\d+  [?GC]+", line)]
    assert "      0  ????????C  7 times, to node 62" in rows
    assert "     63  ????????G  5 times, to node 107" in rows
    assert "  gpu 2.sup (a neighbour is there, and the device runs it): n72..106 (32)" in (
        passes.text().splitlines()
    )
    whole = passes.text(fold=False)
    assert " times" not in whole and "n105, n106" in whole and "(32)" not in whole


def test_the_story_of_a_tensor() -> None:
    g, c = gpu(), cpu()
    passes = passes_of(schedule(chain("??G?C?G?", {"G": g, "C": c}), [g, c]))
    assert passes.text(node="n4").splitlines() == [
        "n4: MUL_MAT f32[64, 4], reads w4 and n3",
        "  pass 1, nodes",
        "    gpu reads memory of type cpu, where w4 is? no, its own memory is of type gpu",
        "    cpu reads memory of type cpu, where w4 is? yes",
        "    cpu runs MUL_MAT? yes",
        "    gpu runs MUL_MAT? yes",
        "    gpu wants MUL_MAT for this batch, with a weight in host memory? no, it leaves the op "
        "to the device that has the weight",
        "    -> cpu 1.wgt0 (a weight is there: source 0 of the op)",
        "  pass 5",
        "    cpu reads memory of type gpu, where n3 is? no, its own memory is of type cpu",
        "    for n5: gpu reads memory of type cpu, where n4 is? no, its own memory is of type gpu",
        "    in split 1: cpu, node 4: n4 is on cpu; copies n3",
        "    copied to gpu before split 2",
        "    n4 reads cpu#n3#0 instead of n3 (source 1)",
        "    n5 reads gpu#n4#0 instead of n4 (source 0)",
    ]
    assert [line for line in passes.text(node="w?").splitlines() if line[0:1] == "w"] == [
        f"{w}: leaf f32[64, 64], a weight in memory of type {device}"
        for w, device in (("w6", "gpu"), ("w4", "cpu"), ("w2", "gpu"))
    ]
    with pytest.raises(ScheduleError, match="matches 'n44'; did you mean n4"):
        passes.text(node="n44")


def test_letters_differ() -> None:
    host = NullBufferType("RAM")
    devices = [gpu("cuda"), gpu("gaudi"), Stub("blas", "ACCEL", memory=host), cpu(memory=host)]
    passes = passes_of(schedule(chain("?", {}), devices))
    assert passes.letters == {"cuda": "G", "gaudi": "A", "blas": "B", "cpu": "C"}
    many = passes_of(schedule(chain("?", {}), [*(gpu(f"d{i}") for i in range(99)), cpu()]))
    letters = list(many.letters.values())
    assert letters.count("*") > 30 and len(set(letters)) == 100 - letters.count("*") + 1
