"""The default plans: small, valid, quick."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.profiles import examples
from tests.schedule.planning_graphs import (
    Stub,
    cpu,
    gpu,
    node,
    random_plans,
    value,
    view,
    weight,
)
from weft.allocate import Allocation, GraphAllocator, allocate, validate
from weft.allocate.lifetime import Item, lifetimes, stage_spans
from weft.allocate.pack import ORDERS, Problem, pack
from weft.allocate.search import improve
from weft.errors import AllocationError, WeftError
from weft.graph.graph import Graph
from weft.graph.tensor import Tensor
from weft.schedule import schedule


def best(*outputs: Tensor) -> Allocation:
    scheduled = schedule(Graph(*outputs), [cpu()])
    allocation = allocate(scheduled)
    validate(scheduled, allocation)
    return allocation


def test_a_chain_needs_two_tensors() -> None:
    x = value("x")
    for i in range(20):
        x = node("CONT", f"n{i}", x)
    assert best(x).total == 2 * 1024


def test_in_place_needs_one() -> None:
    x = value("x")
    for i in range(20):
        x = node("SQR", f"n{i}", x)
    assert best(x).total == 1024


def test_outputs_and_unread_results_stay() -> None:
    x = value("x")
    kept = [node("CONT", f"kept{i}", x) for i in range(3)]
    kept[0].as_output()
    last = node("CONT", "last", node("CONT", "h", x))
    allocation = best(*kept, last)
    assert len({allocation.place[t].offset for t in kept}) == 3


def test_an_output_view_keeps_its_base() -> None:
    x = node("CONT", "x", value("in"))
    v = view("v", x).as_output()
    y = node("CONT", "z", node("CONT", "y", node("CONT", "w", value("other"))))
    allocation = best(v, y)
    others = [p for t, p in allocation.place.items() if t.name in ("w", "y", "z")]
    assert all(p.offset != allocation.place[x].offset for p in others)


def test_an_output_is_not_overwritten() -> None:
    x = node("CONT", "x", value("in")).as_output()
    allocation = best(node("SQR", "y", x), node("SQR", "z", view("v", x)))
    places = {t.name: p.offset for t, p in allocation.place.items()}
    assert len({places[name] for name in "xyz"}) == 3


def test_copies_begin_where_their_source_is_read() -> None:
    """So a copy never lies over a part of what it is made from."""
    c = cpu()
    g = gpu()
    x, w = node("CONT", "x", value("in")), node("CONT", "w", value("other"))
    y = node("ADD", "y", x, w)
    scheduled = schedule(Graph(node("MUL", "z", y, x)), [g, c], assign={x: c, w: c, y: g})
    life = lifetimes(scheduled)
    made = [pair for split in scheduled.splits for pair in split.copies]
    assert {source.name for source, _ in made} >= {"x", "w"}
    for _, copy in made:
        before = scheduled.plan_nodes.index(copy) - 1
        assert scheduled.roles[scheduled.plan_nodes[before]].kind == "dep"
        assert life.spans[copy][0] == before


def test_a_copy_stays_where_its_source_is() -> None:
    """The device that reads a result already has it in its memory, where nothing else reads it."""
    c = cpu()
    g = gpu(reads=[c.buffer_type])
    x = node("CONT", "x", value("in"))
    y = node("SQR", "y", x)
    z = node("CONT", "z", y)
    scheduled = schedule(Graph(z), [g, c], assign={x: c, y: g, z: c})
    copies = [pair for split in scheduled.splits for pair in split.copies]
    (copy,) = (copy for source, copy in copies if source.name == "y")
    (item,) = [i for items in lifetimes(scheduled).items for i in items if copy in i.tensors]
    assert [t.name for t in item.tensors] == ["x", "y", copy.name]


class _Stages(Stub):
    """A device that runs independent nodes at the same time."""

    runs_stages = True


def test_nodes_of_a_stage_are_independent() -> None:
    c = _Stages("cpu", "CPU")
    x, other = value("x"), value("other")
    a, b = node("CONT", "a", x), node("CONT", "b", x)
    over = node("CPY", "over", other, x)  # `a` and `b` read what it overwrites
    over.view_src = x
    again = node("CPY", "again", b, x)
    again.view_src = x
    last = node("ADD", "last", a, view("v", again))
    scheduled = schedule(Graph(a, b, over, again, last), [c])
    spans = stage_spans(scheduled)
    assert spans is not None
    stages: dict[tuple[int, int], set[str]] = {}
    for tensor, span in zip(scheduled.plan_nodes, spans, strict=True):
        if tensor.op.name in ("CONT", "CPY", "ADD"):
            stages.setdefault(span, set()).add(tensor.name)
    assert list(stages.values()) == [{"a", "b"}, {"over"}, {"again"}, {"last"}]
    assert stage_spans(schedule(Graph(a, b), [cpu()])) is None


@given(random_plans())
def test_stages_of_random_plans(drawn: tuple[object, ...]) -> None:
    graph, devices, assign, n_copies = drawn
    for device in devices[::2]:  # type: ignore[index]
        device.runs_stages = True
    try:
        scheduled = schedule(graph, devices, assign=assign, n_copies=n_copies)  # type: ignore[arg-type]
    except WeftError:
        return
    spans = stage_spans(scheduled)
    assert spans is not None
    for i, (first, last) in enumerate(spans):
        assert first <= i <= last and spans[first] == spans[last] == (first, last)
        node, own = scheduled.plan_nodes[i], scheduled.plan_node_backends[i]
        if node.op.is_view:
            continue
        target, sources = _bases(node), {t for s in node.src if s for t in _bases(s)}
        for j in range(first, i):
            earlier = scheduled.plan_nodes[j]
            if earlier.op.is_view:
                continue
            assert scheduled.plan_node_backends[j] == own and scheduled.backends[own].runs_stages
            written = _bases(earlier)
            assert not written & (target | sources)
            assert not target & {t for s in earlier.src if s for t in _bases(s)}


def _bases(tensor: Tensor) -> set[Tensor]:
    return {tensor if tensor.view_src is None else tensor.view_src}


@pytest.mark.parametrize(("n_last", "apart"), [(1, False), (1000, True)])
def test_nodes_are_kept_apart_where_that_takes_hardly_more(n_last: int, apart: bool) -> None:
    """Two branches, of which the second may take over what the first no longer needs; it need not
    where a later node takes much more memory anyway."""
    x, ends = value("x"), []
    for i in range(2):
        wide = node("MUL_MAT", f"wide{i}", x, x, shape=(64, 100))
        ends.append(node("MUL_MAT", f"end{i}", wide, x, shape=(1, 1)))
    graph = Graph(node("MUL_MAT", "last", *ends, shape=(64, n_last)))
    plain = allocate(schedule(graph, [cpu()]))
    scheduled = schedule(graph, [_Stages("cpu", "CPU")])
    allocation = allocate(scheduled)
    validate(scheduled, allocation)
    assert plain.total <= allocation.total <= plain.total + plain.total // 64
    places = {t.name: p.offset for t, p in allocation.place.items()}
    assert abs(places["wide0"] - places["wide1"]) >= 64 * 100 * 4 * apart
    assert apart or allocation.total < 2 * 64 * 100 * 4


def test_zero_sized_tensors() -> None:
    assert best(node("CONT", "y", value("x", (0, 4)))).total == 0


def test_a_result_may_stay_in_memory_of_another_device() -> None:
    """The reference does the same, here only where every reader can use that memory."""
    c = cpu()
    g = gpu(reads=[c.buffer_type])
    x = node("CONT", "x", value("in"))
    y = node("SQR", "y", x)
    z = node("CONT", "z", y)
    for reader in (g, c):
        scheduled = schedule(Graph(z), [g, c], assign={x: c, y: g, z: reader})
        allocation = allocate(scheduled)
        validate(scheduled, allocation)
        assert (
            allocation.arenas[allocation.place[scheduled.final_of(y)].arena].buffer_type
            is c.buffer_type
        )


@pytest.mark.parametrize("max_size", [None, 3000, 1024, 100])
def test_chunks_are_not_larger_than_allowed(max_size: int | None) -> None:
    c = cpu(max_size=max_size)
    xs = [node("CONT", f"n{i}", value(f"x{i}", (64, 1 + i % 3))) for i in range(9)]
    total = xs[0]
    scheduled = schedule(Graph(*xs, total), [c])
    allocation = allocate(scheduled)
    validate(scheduled, allocation)
    largest = max(p.size for p in allocation.place.values())
    if max_size is not None:
        assert all(chunk <= max(max_size, largest) for chunk in allocation.arenas[0].chunks)


@settings(max_examples=examples(3))
@given(random_plans())
def test_random_plans(drawn: tuple[object, ...]) -> None:
    """Whatever is asked, the answer is a valid plan or an error that says what is wrong."""
    graph, devices, assign, n_copies = drawn
    try:
        scheduled = schedule(graph, devices, assign=assign, n_copies=n_copies)  # type: ignore[arg-type]
        allocation = allocate(scheduled)
    except WeftError as error:
        assert str(error)
        return
    scheduled.explain()
    validate(scheduled, allocation)
    assert all(a.size >= a.lower_bound for a in allocation.arenas)
    allocator = GraphAllocator([b.buffer_type for b in scheduled.backends])
    allocator.reserve(scheduled)
    assert allocator.alloc(scheduled) is False
    like = allocate(scheduled, "ggml")
    try:
        validate(scheduled, like)
    except AllocationError:
        return  # the reference's plan is wrong here: nothing to compare with
    assert allocation.total <= like.total


@settings(max_examples=examples(2))
@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 8), st.integers(0, 64)), max_size=40),
    st.sampled_from([None, 1, 40, 200]),
)
def test_packings_never_overlap(rows: list[tuple[int, int, int]], limit: int | None) -> None:
    items = [Item(0, start, start + length, size) for start, length, size in rows]
    sparse, dense = Problem(items, limit), Problem(items, limit)
    dense.neighbours = dense.packer = None
    counts = [pack(p, p.order(name)) for p in (sparse, dense) for name in ORDERS]
    counts.append(improve(sparse, 0, 20_000)[0])
    for packing in counts:
        for i, a in enumerate(items):
            top = packing.offsets[i] + a.size
            assert top <= packing.chunks[packing.chunk_of[i]]
            for j, b in enumerate(items[:i]):
                apart = a.end < b.start or b.end < a.start
                apart = apart or packing.chunk_of[i] != packing.chunk_of[j]
                apart = apart or packing.offsets[j] >= top
                assert apart or packing.offsets[j] + b.size <= packing.offsets[i]
        if limit is not None:
            largest = max((i.size for i in items), default=0)
            assert all(chunk <= max(limit, largest) for chunk in packing.chunks)


def test_five_thousand_nodes() -> None:
    rnd = random.Random(0)
    tensors = [value(f"x{i}", (rnd.choice([64, 1000]), 1 + i % 8)) for i in range(20)]
    for i in range(6500):
        src = rnd.choices(tensors[-100:], k=2)
        shape = (rnd.choice([64, 128, 1000, 5000]), rnd.randrange(1, 9))
        tensors.append(node("MUL_MAT", f"n{i}", *src, shape=shape))
    graph = Graph(*tensors[-5:])
    assert len(graph.nodes) > 5000
    scheduled = schedule(graph, [cpu()])
    allocation = allocate(scheduled)
    assert allocation.total <= allocate(scheduled, "ggml").total


def test_plans_do_not_depend_on_the_run() -> None:
    rnd = random.Random(1)
    tensors = [value("x")]
    for i in range(200):
        shape = (rnd.choice([64, 100, 300]), rnd.randrange(1, 9))
        tensors.append(node("MUL_MAT", f"n{i}", *rnd.choices(tensors[-8:], k=2), shape=shape))
    scheduled = schedule(Graph(*tensors[-3:]), [cpu()])
    assert allocate(scheduled).place == allocate(scheduled).place


def test_unknown_policy() -> None:
    with pytest.raises(AllocationError, match="memory is 'small'; it must be 'best' or 'ggml'"):
        allocate(schedule(Graph(node("SQR", "y", value("x"))), [cpu()]), "small")  # type: ignore[arg-type]


def test_weights_need_no_memory() -> None:
    c = cpu()
    y = node("MUL_MAT", "y", weight("w", c), value("x"), shape=(64, 4))
    scheduled = schedule(Graph(y), [c])
    assert {t.name for t in allocate(scheduled).place} == {"x", "y"}
