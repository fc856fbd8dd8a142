"""The order of nodes and leaves equals the reference's, on every recorded scheduler graph."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from weft import graph as g
from weft.dtype import find_dtype
from weft.errors import GraphError
from weft.graph import Graph, Tensor
from weft.graph.op import find_op

CASES = Path(__file__).parents[3] / "shared/vectors/sched/cases.jsonl.gz"


def recorded_graphs() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """(case id, graph, expectation) of single-graph and multi-step cases."""
    with gzip.open(CASES, "rt", encoding="utf-8") as lines:
        for line in lines:
            case = json.loads(line)
            if "steps" in case:
                for graph in case["graphs"]:
                    yield f"{case['id']}/{graph.get('name')}", graph, graph
            else:
                yield case["id"], case, case["expect"]


def bare_tensors(records: list[dict[str, Any]]) -> list[Tensor]:
    """The recorded tensors as they are, without parameters (which these cases do not have)."""
    tensors: list[Tensor] = []
    for r in records:
        t = Tensor(
            find_dtype(r["type"]),
            tuple(r["ne"]),
            nb=tuple(r["nb"]),
            name=r["name"],
            op=find_op(r["op"]),
            flags=frozenset(r.get("flags", ())),
            view_offs=r.get("view_offs", 0),
        )
        tensors.append(t)
    for r, t in zip(records, tensors, strict=True):
        t.src = tuple(None if s is None else tensors[s] for s in r.get("src", ()))
        if "view_src" in r:
            t.view_src = tensors[r["view_src"]]
    return tensors


@pytest.mark.skipif(not CASES.is_file(), reason="no golden scheduler vectors beside the repository")
def test_order_and_names_of_recorded_graphs() -> None:
    n = 0
    for name, record, want in recorded_graphs():
        tensors = bare_tensors(record["tensors"])
        unnamed = {i for i, t in enumerate(tensors) if not t.name}
        graph = Graph()
        for output in record["outputs"]:
            graph.expand(tensors[output])
        place = {t: i for i, t in enumerate(tensors)}
        assert [place[t] for t in graph.nodes] == want["nodes"], name
        assert [place[t] for t in graph.leaves] == want["leafs"], name
        auto = {str(i): tensors[i].name for i in sorted(unnamed) if tensors[i].name}
        assert auto == want.get("auto_names", {}), name
        n += 1
    assert n > 0


def test_deep_graphs_do_not_recurse() -> None:
    x = g.input("x", [4])
    y = x
    for _ in range(20_000):
        y = g.silu(y)
    assert len(Graph(y).nodes) == 20_000


def test_a_cast_is_its_own_source() -> None:
    y = g.cast(g.input("x", [4]), "f16")
    assert y.src[1] is y
    assert Graph(y).nodes == [y]


def test_a_name_used_twice_is_refused() -> None:
    graph = Graph(g.add(g.input("x", [4]), g.input("x", [4])))
    with pytest.raises(GraphError, match="two graph inputs are called 'x'"):
        _ = graph.inputs


def test_shared_sources_are_visited_once() -> None:
    x = g.input("x", [8, 4])
    h = g.relu(x)
    graph = Graph(g.add(g.silu(h), g.mul(h, h)))
    assert [t.op.name for t in graph.nodes] == ["UNARY", "UNARY", "MUL", "ADD"]
    assert graph.leaves == [x]
