"""The reference's graph allocator: blocks, in-place reuse, and what fits an earlier plan."""

from __future__ import annotations

import pytest

from tests.schedule.planning_graphs import cpu, gpu, node, value, view, weight
from weft.allocate import GraphAllocator, allocate
from weft.allocate.blocks import BlockAllocator
from weft.backends.null import NullBufferType
from weft.errors import AllocationError
from weft.graph.graph import Graph
from weft.graph.tensor import Tensor
from weft.schedule import PlannerState, Schedule, schedule


def test_blocks_are_reused_best_fit() -> None:
    blocks = BlockAllocator(32, None)
    a, b, c, d = (blocks.alloc(n) for n in (64, 32, 128, 32))
    assert [a, b, c, d] == [(0, 0), (0, 64), (0, 96), (0, 224)]
    blocks.free(*a, 64)
    blocks.free(*c, 128)
    assert blocks.alloc(50) == (0, 0)  # the smaller hole
    assert blocks.alloc(100) == (0, 96)
    assert blocks.chunks[0].max_size == 256


def test_of_equal_holes_the_later_one() -> None:
    blocks = BlockAllocator(1, None)
    places = [blocks.alloc(10) for _ in range(5)]
    blocks.free(*places[0], 10)
    blocks.free(*places[2], 10)
    assert blocks.alloc(10) == (0, 20)


def test_freed_neighbours_merge() -> None:
    blocks = BlockAllocator(1, None)
    places = [blocks.alloc(10) for _ in range(4)]
    for i in (0, 2, 1):
        blocks.free(*places[i], 10)
    assert blocks.chunks[0].offsets == [0, 40] and blocks.chunks[0].sizes[0] == 30


def test_chunks() -> None:
    blocks = BlockAllocator(1, 100)
    assert [blocks.alloc(n) for n in (60, 60, 40, 300)] == [(0, 0), (1, 0), (0, 60), (2, 0)]
    # many more than the reference's 16: the last one takes everything
    assert {blocks.alloc(100)[0] for _ in range(40)} == set(range(3, 16))


def plan(*outputs: Tensor) -> dict[str, tuple[int, int]]:
    """name -> (offset, size) on one CPU."""
    allocation = allocate(schedule(Graph(*outputs), [cpu()]), "ggml")
    return {t.name: (p.offset, p.size) for t, p in allocation.place.items()}


def test_in_place_takes_the_first_source_that_may_go() -> None:
    x = node("CONT", "x", value("in"))
    y = node("SQR", "y", x)
    places = plan(node("MUL_MAT", "z", y, y, shape=(4, 4)))
    assert places["x"] == places["y"]


@pytest.mark.parametrize(
    "why", ["read twice", "output", "read later", "view read later", "other shape", "cannot"]
)
def test_not_in_place(why: str) -> None:
    x = node("CONT", "x", value("in"))
    outputs: list[Tensor] = []
    if why == "read twice":
        y = node("ADD", "y", x, x)
    elif why == "other shape":
        y = node("SQR", "y", x, shape=(64, 2))
    elif why == "cannot":
        y = node("CONT", "y", x)
    else:
        y = node("SQR", "y", x)
    if why == "output":
        x.as_output()
    if why == "read later":
        outputs = [node("MUL_MAT", "later", x, x, shape=(4, 4))]
    if why == "view read later":
        y = node("MUL_MAT", "later", view("v", x), y, shape=(4, 4))
    places = plan(y, *outputs)
    assert places["x"] != places["y"]


def test_views_hold_their_base() -> None:
    x = node("CONT", "x", value("in"))
    v = view("v", x)
    a = node("CONT", "a", v)
    places = plan(node("ADD", "y", node("CONT", "b", a), v))
    ranges = [places[n] for n in ("x", "a", "b")]
    assert len({offset for offset, _ in ranges}) == 3


def test_memory_that_is_too_small_to_take_over() -> None:
    class Growing(NullBufferType):
        def alloc_size(self, tensor: Tensor) -> int:
            return tensor.max_bytes + (100 if tensor.op.name == "SQR" else 0)

    c = cpu(memory=Growing("growing"))
    scheduled = schedule(Graph(node("SQR", "y", node("CONT", "x", value("in")))), [c])
    with pytest.raises(AllocationError, match=r"y f32.* needs 1124 .* 1024 bytes of its source x"):
        allocate(scheduled, "ggml")
    assert allocate(scheduled).total > 0


def batch(n: int, g: object, c: object) -> Schedule:
    """A layer on the GPU and one on the CPU, for `n` tokens."""
    x = value("x", (64, n))
    h = node("MUL_MAT", "h", weight("w0", g), x, shape=(64, n))  # type: ignore[arg-type]
    h = node("MUL_MAT", "i", weight("w1", c), h, shape=(64, n))  # type: ignore[arg-type]
    return schedule(Graph(node("ADD", "y", h, h)), [g, c])  # type: ignore[list-item]


def test_worst_case_first_and_last() -> None:
    """Reserve pp, tg, pp: afterwards every batch up to the largest fits without a new plan."""
    g, c = gpu(), cpu()
    allocator = GraphAllocator([g.buffer_type, c.buffer_type])
    for n in (512, 1, 512):
        allocator.reserve(batch(n, g, c))
    sizes = allocator.sizes
    assert (allocator.reserves, allocator.reallocs) == (3, 0)
    for n in (7, 1, 512, 33):
        assert allocator.alloc(batch(n, g, c)) is False
    assert (allocator.reserves, allocator.reallocs) == (3, 0)
    assert allocator.sizes == sizes
    assert allocator.alloc(batch(513, g, c)) is True


def test_the_last_reserve_skipped() -> None:
    """Reserve pp, tg: the records are those of one token, so a larger batch plans again, though
    the buffers are large enough already."""
    g, c = gpu(), cpu()
    allocator = GraphAllocator([g.buffer_type, c.buffer_type])
    for n in (512, 1):
        allocator.reserve(batch(n, g, c))
    buffers = dict(allocator.buffer_allocs)
    assert allocator.alloc(batch(1, g, c)) is False
    assert allocator.alloc(batch(7, g, c)) is True
    assert allocator.alloc(batch(7, g, c)) is False
    assert allocator.alloc(batch(8, g, c)) is True
    assert (allocator.reserves, allocator.reallocs) == (4, 2)
    assert allocator.buffer_allocs == buffers


def test_measure_gives_buffers_up() -> None:
    g, c = gpu(), cpu()
    allocator = GraphAllocator([g.buffer_type, c.buffer_type])
    allocator.reserve(batch(8, g, c))
    assert allocator.measure(batch(4, g, c)) == [4096 // 2, 4096 // 2]
    assert None not in allocator.buffers
    assert allocator.measure(batch(16, g, c)) == [8192, 8192]
    assert allocator.buffers == [None, None] and allocator.sizes == [0, 0]


def test_backends_that_share_memory_share_a_buffer() -> None:
    c = cpu()
    blas = gpu("blas", memory=c.buffer_type)
    allocator = GraphAllocator([blas.buffer_type, c.buffer_type])
    allocator.reserve(batch(8, blas, c))
    assert allocator.buffers[0] is allocator.buffers[1]
    assert allocator.sizes[0] > 0 and allocator.sizes[1] == 0


def test_other_graphs_do_not_fit() -> None:
    g, c = gpu(), cpu()
    allocator = GraphAllocator([g.buffer_type, c.buffer_type])
    allocator.reserve(batch(8, g, c))
    assert allocator.needs_realloc(schedule(Graph(node("SQR", "y", value("x"))), [g, c]))


def test_the_state_between_calls() -> None:
    state = PlannerState(3)
    assert [state.begin() for _ in range(5)] == [0, 1, 2, 0, 1]
    state.is_allocated = True
    state.synchronize()
    assert state.next_copy == 2
    state.reset()
    state.synchronize()
    assert state.begin() == 0


def test_moved_nodes_make_a_plan_useless() -> None:
    g, c = gpu(), cpu()
    x = value("x")
    graph = Graph(node("SQR", "y", node("SQR", "h", x)))
    here = schedule(graph, [g, c])
    there = schedule(graph, [g, c], assign=dict.fromkeys(graph.nodes, 0))
    state = PlannerState()
    changed = []
    for made in (here, here, there, there):
        state.record(made)
        changed.append(state.backends_changed(made))
    # the first differs from backend 0, which stands for "nothing yet"
    assert changed == [True, False, True, False]
