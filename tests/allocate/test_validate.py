"""The checker finds every way in which a plan can be wrong, and names the tensors."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.profiles import examples
from tests.schedule.planning_graphs import cpu, gpu, node, random_plans, value, view
from weft.allocate import Allocation, Arena, Placement, allocate, validate
from weft.errors import AllocationError, WeftError
from weft.graph.graph import Graph
from weft.graph.tensor import Tensor
from weft.schedule import Schedule, schedule


def moved(plan: Allocation, tensor: Tensor, **change: int) -> Allocation:
    """The plan with one tensor elsewhere."""
    return replace(plan, place={**plan.place, tensor: replace(plan.place[tensor], **change)})


@pytest.fixture
def planned() -> tuple[Schedule, Allocation]:
    x = value("x")
    y = node("CONT", "y", x)
    z = node("CONT", "z", y)
    scheduled = schedule(Graph(node("ADD", "sum", z, y).as_output()), [cpu()])
    return scheduled, allocate(scheduled)


def named(scheduled: Schedule, name: str) -> Tensor:
    return next(t for t in (*scheduled.plan_nodes, *scheduled.plan_leaves) if t.name == name)


def test_a_good_plan(planned: tuple[Schedule, Allocation]) -> None:
    validate(*planned)


def test_overlap_names_both(planned: tuple[Schedule, Allocation]) -> None:
    scheduled, plan = planned
    z, y = named(scheduled, "z"), named(scheduled, "y")
    bad = moved(plan, z, offset=plan.place[y].offset)
    with pytest.raises(
        AllocationError, match=r"z f32 \(4, 64\) and y f32 \(4, 64\) are both needed"
    ):
        validate(scheduled, bad)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"offset": 16}, "not a multiple of the alignment"),
        ({"offset": 1 << 20}, "outside the chunks"),
        ({"offset": -32}, "not a multiple|is at offset"),
        ({"chunk": 3}, "outside the chunks"),
        ({"arena": 5}, "does not exist"),
        ({"size": 8}, "needs 1024 bytes, the plan gives 8"),
    ],
)
def test_bad_places(
    planned: tuple[Schedule, Allocation], change: dict[str, int], message: str
) -> None:
    scheduled, plan = planned
    with pytest.raises(AllocationError, match=message):
        validate(scheduled, moved(plan, named(scheduled, "y"), **change))


def test_a_missing_place(planned: tuple[Schedule, Allocation]) -> None:
    scheduled, plan = planned
    rest = {t: p for t, p in plan.place.items() if t.name != "y"}
    with pytest.raises(AllocationError, match=r"y .* has no place"):
        validate(scheduled, replace(plan, place=rest))


def by_hand(scheduled: Schedule, offsets: dict[str, int], size: int = 1 << 16) -> Allocation:
    """A plan with these offsets in one chunk per backend."""
    tensors = dict.fromkeys((*scheduled.plan_leaves, *scheduled.plan_nodes))
    return Allocation(
        (Arena(scheduled.backends[-1].buffer_type, (size,), 0),),
        {t: Placement(0, 0, offsets[t.name], 1024) for t in tensors if t.name in offsets},
        (0,) * len(scheduled.backends),
    )


def test_in_place_only_where_it_is_allowed() -> None:
    x = value("x")
    y = node("SQR", "y", x)
    good = schedule(Graph(node("CONT", "z", y)), [cpu()])
    validate(good, by_hand(good, {"x": 0, "y": 0, "z": 1024}))
    later = schedule(Graph(y, node("CONT", "z", x)), [cpu()])
    with pytest.raises(AllocationError, match=r"y .* and x .* both needed"):
        validate(later, by_hand(later, {"x": 0, "y": 0, "z": 1024}))
    cannot = schedule(Graph(node("CONT", "y", x)), [cpu()])
    with pytest.raises(AllocationError, match=r"y .* and x "):
        validate(cannot, by_hand(cannot, {"x": 0, "y": 0}))
    twice = schedule(Graph(node("ADD", "y", x, x)), [cpu()])
    with pytest.raises(AllocationError, match=r"y .* and x "):
        validate(twice, by_hand(twice, {"x": 0, "y": 0}))


def test_a_view_read_later_counts() -> None:
    x = node("CONT", "x", value("in"))
    y = node("SQR", "y", x)
    z = node("ADD", "z", y, view("v", x))
    scheduled = schedule(Graph(z), [cpu()])
    with pytest.raises(AllocationError, match=r"y .* and x "):
        validate(scheduled, by_hand(scheduled, {"in": 2048, "x": 0, "y": 0, "z": 1024}))


def test_inputs_are_written_before_the_run() -> None:
    """An input that is read late must not share memory with an early result."""
    a, b = value("a"), value("b")
    y = node("CONT", "y", a)
    z = node("ADD", "z", y, b)
    scheduled = schedule(Graph(z), [cpu()])
    with pytest.raises(AllocationError, match=r"y .* and b "):
        validate(scheduled, by_hand(scheduled, {"a": 0, "b": 1024, "y": 1024, "z": 2048}))


def test_a_copy_and_its_source_are_apart() -> None:
    g, c = gpu(), cpu()
    x = value("x")
    y = node("SQR", "y", x)
    scheduled = schedule(Graph(y), [g, c], assign={y: g})
    copy = scheduled.splits[0].copies[0][1]
    half = by_hand(scheduled, {"x": 0, "y": 4096, copy.name: 512})
    with pytest.raises(AllocationError, match=r"gpu#x#0 .* and x "):
        validate(scheduled, half)


@settings(max_examples=examples(2))
@given(random_plans(), st.data())
def test_injected_overlaps_are_found(drawn: tuple[object, ...], data: st.DataObject) -> None:
    """Two values put on each other although both are live: an output and anything after it."""
    graph, devices, assign, n_copies = drawn
    try:
        scheduled = schedule(graph, devices, assign=assign, n_copies=n_copies)  # type: ignore[arg-type]
        plan = allocate(scheduled)
    except WeftError:
        return
    outputs = [t for t in plan.place if t.is_output and plan.place[t].size]
    assume(outputs)
    kept = data.draw(st.sampled_from(outputs))
    at = plan.place[kept]
    others = [
        t
        for t, p in plan.place.items()
        if t is not kept and t.is_output and p.size and p.arena == at.arena
    ]
    assume(others)
    victim = data.draw(st.sampled_from(others))
    with pytest.raises(AllocationError):
        validate(scheduled, moved(plan, victim, chunk=at.chunk, offset=at.offset))
