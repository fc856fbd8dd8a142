"""Backends rewrite their splits; the graph and the un-optimized schedule stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tests.schedule.planning_graphs import Stub, chain, cpu, gpu, node, value, view, weight
from weft.allocate import allocate, validate
from weft.dtype import find_dtype
from weft.errors import ScheduleError
from weft.graph.graph import Graph
from weft.graph.op import find_op
from weft.graph.tensor import Tensor
from weft.schedule import optimize_splits, schedule


class Rewriting(Stub):
    """A CPU with an optimize() of the test's choice."""

    def __init__(self, rewrite: Callable[[Sequence[Tensor]], Sequence[Tensor]]) -> None:
        super().__init__("cpu", "CPU")
        self.rewrite = rewrite

    def optimize(self, nodes: Sequence[Tensor]) -> Sequence[Tensor]:
        return self.rewrite(nodes)


def quantize_once(nodes: Sequence[Tensor]) -> list[Tensor]:
    """What the CPU backend does: one QUANTIZE for all matmuls that read the same activation."""
    quantized: dict[Tensor, Tensor] = {}
    out: list[Tensor] = []
    for n in nodes:
        if n.op.name == "MUL_MAT":
            x = n.src[1]
            assert x is not None
            if x not in quantized:
                quantized[x] = Tensor(
                    find_dtype("q8_0"), x.ne, name=f"{x.name}.q", op=find_op("QUANTIZE"), src=(x,)
                )
                out.append(quantized[x])
            n.src = (n.src[0], quantized[x])
        out.append(n)
    return out


def test_nothing_to_do_is_the_same_schedule() -> None:
    scheduled = schedule(chain("??", {}), [cpu()])
    assert optimize_splits(scheduled) is scheduled


def test_activations_are_quantized_once() -> None:
    c = Rewriting(quantize_once)
    x = value("x")
    h = node("SQR", "h", x)
    q, k = (node("MUL_MAT", n, weight(f"w{n}", c), h, shape=(64, 4)) for n in "qk")
    graph = Graph(node("ADD", "y", q, k).as_output())
    before = schedule(graph, [c])
    after = optimize_splits(before)
    assert [n.name for n in after.final_nodes] == ["h", "h.q", "q", "k", "y"]
    assert [n.name for n in before.final_nodes] == ["h", "q", "k", "y"]
    assert q.src[1] is h and after.final_of(q).src[1] is after.final_nodes[1]
    plan = allocate(after)
    validate(after, plan)
    assert plan.place[after.final_nodes[1]].size == 4 * 64 // 32 * 34


def test_rewired_sources_are_what_a_backend_sees() -> None:
    seen: list[str] = []

    def look(nodes: Sequence[Tensor]) -> Sequence[Tensor]:
        seen.extend(s.name for n in nodes for s in n.src if s is not None)
        return nodes

    g, c = gpu(), Rewriting(look)
    optimize_splits(schedule(chain("GC", {"G": g, "C": c}), [g, c]))
    assert seen == ["w1", "cpu#n0#0"]


def test_a_fused_node_disappears() -> None:
    def fuse(nodes: Sequence[Tensor]) -> list[Tensor]:
        first, second = nodes
        second.src = first.src
        return [second]

    graph = chain("??", {})
    after = optimize_splits(schedule(graph, [Rewriting(fuse)]))
    assert [n.name for n in after.plan_nodes] == ["n1"]
    assert graph.nodes[0] not in after.final
    validate(after, allocate(after))


@pytest.mark.parametrize(
    ("rewrite", "message"),
    [
        (lambda nodes: nodes[1:], "n1 .* reads n0"),
        (lambda nodes: nodes[:-1], "left out the output n1"),
        (lambda nodes: nodes[::-1], "n1 .* reads n0"),
        (lambda nodes: [*nodes, nodes[0]], "returned a node twice"),
    ],
)
def test_what_a_backend_may_not_do(
    rewrite: Callable[[Sequence[Tensor]], Sequence[Tensor]], message: str
) -> None:
    with pytest.raises(ScheduleError, match=message):
        optimize_splits(schedule(chain("??", {}), [Rewriting(rewrite)]))


def test_what_another_split_copies_must_stay() -> None:
    g = gpu()
    c = Rewriting(lambda nodes: nodes[:-1])
    with pytest.raises(ScheduleError, match=r"gpu reads n0 .* of an earlier split"):
        optimize_splits(schedule(chain("CG", {"G": g, "C": c}), [g, c]))


def test_a_view_of_another_device_may_stand_behind_its_copy() -> None:
    """A view is no work: between two nodes of the cpu it is listed in their split, which copies
    what it sees from the device that made it."""
    c, device = Rewriting(list), gpu()
    tensor = node("SQR", "made", weight("w", device, shape=(64, 4)))
    other = node("SQRT", "other", tensor)
    seen = view("seen", tensor)
    graph = Graph(node("MUL", "y", other, seen).as_output())
    pins = {n: int(n is not tensor) for n in graph.nodes if n is not seen}
    after = optimize_splits(schedule(graph, [device, c], assign=pins))
    last = after.splits[-1]
    assert after.backends[last.backend] is c
    assert "seen" in {t.name for t in last.inputs} & {n.name for n in last.nodes}
