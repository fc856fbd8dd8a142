"""Stages: steps that clash keep their order, all others run together."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
from weft import graph as g
from weft.backends.cpu import CpuBackend
from weft.compiler.stages import Access, form_stages


def _step(write: tuple[int, int], *reads: tuple[int, int], buffer: int = 0) -> Access:
    return Access((buffer, *write), tuple((buffer, *r) for r in reads))


def _stages(*steps: Access) -> list[list[int]]:
    stages = form_stages(steps)
    return [list(stages.order[a:b]) for a, b in stages.bounds]


def test_independent_steps_share_a_stage() -> None:
    steps = [_step((100, 200), (0, 50)), _step((200, 300), (0, 50)), _step((300, 400), (0, 50))]
    assert _stages(*steps) == [[0, 1, 2]]


@pytest.mark.parametrize(
    "later",
    [
        _step((90, 95), (5, 6)),  # reads what the first writes
        _step((55, 57)),  # writes what the first reads
        _step((8, 12)),  # writes what the first writes
    ],
)
def test_steps_that_clash_keep_their_order(later: Access) -> None:
    first = _step((0, 10), (50, 60))
    assert _stages(first, later) == [[0], [1]]
    assert _stages(later, first) == [[0], [1]]
    # a third that touches neither goes with the first
    assert _stages(first, later, _step((200, 210), (220, 230))) == [[0, 2], [1]]


def test_a_step_waits_for_all_that_touched_a_part_of_its_bytes() -> None:
    steps = [_step((0, 10)), _step((40, 50), (0, 10)), _step((60, 70), (40, 50)), _step((5, 65))]
    assert _stages(*steps) == [[0], [1], [2], [3]]


def test_the_branches_of_attention_run_side_by_side() -> None:
    x = (0, 10)
    q, k, v = (10, 20), (20, 30), (30, 40)
    steps = [_step(x), _step(q, x), _step((40, 50), q), _step(k, x), _step((50, 60), k)]
    steps += [_step((100, 200), (50, 60), buffer=0), _step(v, x), _step((200, 300), v)]
    assert _stages(*steps) == [[0], [1, 3, 6], [2, 4, 7], [5]]


def test_reads_do_not_clash() -> None:
    assert _stages(_step((10, 20), (0, 10)), _step((20, 30), (5, 15 - 6))) == [[0, 1]]


def test_other_buffers_do_not_clash() -> None:
    assert _stages(_step((0, 10)), _step((0, 10), buffer=1)) == [[0, 1]]


def test_empty_ranges_touch_nothing() -> None:
    assert _stages(_step((0, 10)), _step((5, 5), (3, 3)), _step((2, 2))) == [[0, 1, 2]]


ranges = st.tuples(st.integers(0, 20), st.integers(0, 5)).map(lambda r: (r[0], r[0] + r[1]))
steps_drawn = st.lists(
    st.builds(
        lambda w, r, b: _step(w, *r, buffer=b),
        ranges,
        st.lists(ranges, max_size=2),
        st.integers(0, 1),
    ),
    max_size=30,
)


def _bytes(r: tuple[int, int, int]) -> set[tuple[int, int]]:
    return {(r[0], i) for i in range(r[1], r[2])}


def _clash(a: Access, b: Access) -> bool:
    wa, wb = _bytes(a.writes), _bytes(b.writes)
    ra = set().union(*map(_bytes, a.reads))
    rb = set().union(*map(_bytes, b.reads))
    return bool(wa & wb or wa & rb or ra & wb)


@given(steps_drawn)
def test_stages_are_as_few_as_the_longest_chain(steps: list[Access]) -> None:
    depth: list[int] = []
    for i, step in enumerate(steps):
        before = [depth[j] for j in range(i) if _clash(steps[j], step)]
        depth.append(1 + max(before, default=-1))
    wanted = [[i for i, d in enumerate(depth) if d == level] for level in sorted(set(depth))]
    assert _stages(*steps) == wanted


@given(steps_drawn, st.randoms(use_true_random=False))
def test_any_order_within_stages_gives_the_same_bytes(
    steps: list[Access], rng: random.Random
) -> None:
    def run(order: list[int]) -> dict[tuple[int, int], object]:
        memory: dict[tuple[int, int], object] = {}
        for i in order:
            seen = tuple(sorted((b, memory.get(b)) for r in steps[i].reads for b in _bytes(r)))
            for b in _bytes(steps[i].writes):
                memory[b] = hash((i, seen, b))
        return memory

    stages = _stages(*steps)
    for stage in stages:
        rng.shuffle(stage)
    assert run([i for stage in stages for i in stage]) == run(list(range(len(steps))))


def test_two_arrays_over_the_same_bytes_are_one_memory() -> None:
    """The user's memory is known by address, whatever array leads to it."""
    data = np.zeros(16, np.float32)
    x = weft.input("x", (8,))
    write = g.cpy(x, weft.constant(data[4:12], "window"))
    read = g.scale(weft.constant(data, "whole"), 2.0)
    graph = weft.Graph(write.as_output("w"), read.as_output("r"))
    program = weft.compile(graph, ["cpu"])
    assert [b - a for a, b in program.splits[0].stages] == [1, 1]
    out = weft.Session(program).run({"x": np.arange(8, dtype=np.float32)})
    np.testing.assert_array_equal(out["r"][4:12], 2 * np.arange(8))


def test_a_split_knows_the_node_of_each_step() -> None:
    program = weft.compile(_attention(), ["cpu"])
    (split,) = program.splits
    assert sorted(split.nodes) == list(range(len(split.steps)))


def _attention(n: int = 64) -> weft.Graph:
    x = weft.input("x", (8, n))
    rng = np.random.default_rng(0)

    def weight(name: str) -> weft.Tensor:
        return weft.constant(rng.standard_normal((n, n)).astype(np.float32) / n, name)

    h = g.rms_norm(x, 1e-5)
    q = g.scale(g.mul_mat(weight("q"), h), 0.5)
    k = g.scale(g.mul_mat(weight("k"), h), 0.25)
    v = g.scale(g.mul_mat(weight("v"), h), 0.125)
    return weft.Graph(g.add(g.add(q, k), v).as_output("y"))


def test_memory_reuse_does_not_put_branches_behind_one_another() -> None:
    graph = _attention()
    program = weft.compile(graph, ["cpu"])
    names = [
        sorted(program.splits[0].steps[i].op.name for i in range(a, b))
        for a, b in program.splits[0].stages
    ]
    assert names == [["RMS_NORM"], ["MUL_MAT"] * 3, ["SCALE"] * 3, ["ADD"], ["ADD"]]
    x = np.random.default_rng(1).standard_normal((8, 64)).astype(np.float32)
    want = weft.Session(weft.compile(graph, ["reference"])).run({"x": x})["y"]
    got = weft.Session(weft.compile(graph, [CpuBackend(n_threads=3)])).run({"x": x})["y"]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
