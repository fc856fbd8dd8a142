"""What a scheduler does not do again: counted, for graphs that come back and graphs built anew."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from tests.execute.stub_devices import Device, Faulty, cpu
from weft import graph as g
from weft.execute import Scheduler
from weft.graph.tensor import Buffer

RNG = np.random.default_rng(3)
W = RNG.standard_normal((4, 16, 16)).astype(np.float32) / 4
MEMORY = pytest.mark.parametrize("memory", ["best", "ggml"])


def _chain(rows: Any = 4, weights: Any = W, scale: float = 1.0, name: str = "x") -> weft.Graph:
    h = weft.input(name, (rows, 16))
    for i in range(len(weights)):
        h = g.mul_mat(weft.constant(weights[i], f"w{i}"), h).named(f"p{i}")
    return weft.Graph(g.scale(h, scale).as_output("y"))


def _want(x: NDArray[np.float32], weights: Any = W) -> NDArray[np.float32]:
    for w in weights:
        x = x @ w.T
    return x


def _x(rows: int = 4) -> NDArray[np.float32]:
    return RNG.standard_normal((rows, 16)).astype(np.float32)


def _pinned(scheduler: Scheduler, graph: weft.Graph) -> weft.Graph:
    """`graph`, its second product on the first device from now on."""
    scheduler.reset()
    scheduler.set_tensor_backend({t.name: t for t in graph.tensors}["p1"], 0)
    return graph


def _run(scheduler: Scheduler, graph: weft.Graph, weights: Any = W) -> None:
    x = _x()
    scheduler.compute(graph, {"x": x})
    np.testing.assert_allclose(scheduler.get("y"), _want(x, weights), rtol=1e-4, atol=1e-5)


def _work(scheduler: Scheduler) -> tuple[int, ...]:
    c = scheduler.counters
    return c.placed, c.reserves, c.reallocs, c.lowered, c.bound


@MEMORY
def test_the_same_graph_again_costs_nothing(memory: Any) -> None:
    scheduler = Scheduler([Device("gpu"), cpu()], memory=memory)
    graph = _chain()
    _run(scheduler, _pinned(scheduler, graph))
    before = _work(scheduler)
    for _ in range(40):
        _run(scheduler, _pinned(scheduler, graph))
    assert _work(scheduler) == before and before[3:] == (1, 1)
    assert scheduler.counters.graphs == 41


@MEMORY
def test_the_same_graph_built_anew_costs_nothing(memory: Any) -> None:
    """Other objects, the same structure: pins, names, callbacks and results are the new graph's."""
    weights = [w.copy() for w in W]
    scheduler = Scheduler([Device("gpu"), cpu()], memory=memory)
    _run(scheduler, _pinned(scheduler, _chain(weights=weights)))
    before = _work(scheduler)
    for _ in range(5):
        graph = _chain(weights=weights)
        _run(scheduler, _pinned(scheduler, graph))
        named = {t.name: t for t in graph.tensors}
        gpu, host = scheduler.backends
        assert scheduler.tensor_backend(named["p1"]) is gpu
        assert scheduler.tensor_backend(named["p2"]) is host
        assert scheduler.schedule.graph is graph
        assert scheduler.schedule.cause_of[named["p1"]].code == "usr"
        assert "p1: MUL_MAT f32[16, 4] on gpu" in scheduler.schedule.why("p1")
        assert "copied to gpu" in scheduler.schedule.why("p0")
        np.testing.assert_array_equal(scheduler.get(named["y"]), scheduler.get("y"))
        with pytest.raises(weft.ScheduleError, match="another graph is allocated"):
            scheduler.compute(_chain(weights=weights), {"x": _x()})
    assert _work(scheduler) == before
    # elsewhere pinned it is another graph
    scheduler.reset()
    scheduler.compute(_chain(weights=weights), {"x": _x()})
    assert scheduler.counters.placed == before[0] + 1 and scheduler.n_splits == 1


@pytest.mark.parametrize("how", ["compute", "compute_async"])
def test_callbacks_get_the_nodes_of_the_new_graph(how: str) -> None:
    scheduler = Scheduler([cpu()])
    asked: list[weft.Tensor] = []
    seen: list[weft.Tensor] = []

    def callback(node: weft.Tensor, ask: bool) -> bool:
        (asked if ask else seen).append(node)
        if not ask:
            assert scheduler.get(node).shape == (4, 16)
        return True

    scheduler.set_eval_callback(callback)
    for _ in range(2):
        scheduler.reset()
        asked.clear()
        seen.clear()
        graph = _chain()
        getattr(scheduler, how)(graph, {"x": _x()})
        assert asked == seen == graph.nodes
    assert scheduler.counters.lowered == 1


def test_other_weights_are_bound_to_the_same_program() -> None:
    scheduler = Scheduler([Device("gpu"), cpu()])
    _run(scheduler, _pinned(scheduler, _chain()))
    before = scheduler.counters
    others = [(2 * W).astype(np.float32), (W - 1).astype(np.float32)]
    for weights in (*others, W):
        _run(scheduler, _pinned(scheduler, _chain(weights=weights)), weights)
    after = scheduler.counters
    assert (after.placed, after.reserves, after.lowered) == (before.placed, before.reserves, 1)
    assert after.bound >= 3


def test_memory_that_overlaps_is_not_taken_for_memory_that_does_not() -> None:
    """Steps are ordered by the bytes of the host that they share."""

    def build(a: NDArray[np.float32], b: NDArray[np.float32]) -> weft.Graph:
        state = weft.constant(a, "a")
        other = weft.constant(b, "b")
        assert state.buffer is not None and other.buffer is not None
        state.buffer, other.buffer = Buffer("any", data=a), Buffer("any", data=b)
        wrote = g.cpy(weft.input("x", (4,)), state)
        return weft.Graph(wrote.as_output("wrote"), g.scale(other, 2.0).as_output("y"))

    scheduler = Scheduler([cpu()])
    x = np.arange(4, dtype=np.float32)
    apart = np.zeros(4, np.float32), np.ones(4, np.float32)
    scheduler.compute(build(*apart), {"x": x})
    np.testing.assert_array_equal(scheduler.get("y"), 2)
    scheduler.reset()
    whole = np.zeros(6, np.float32)
    scheduler.compute(build(whole[:4], whole[2:]), {"x": x})
    np.testing.assert_array_equal(scheduler.get("y"), [4, 6, 0, 0])
    assert scheduler.counters.lowered == 2


@pytest.mark.parametrize(
    "other", [{"rows": 5}, {"scale": 2.0}, {"scale": -0.0}, {"name": "z"}, {"weights": W[:3]}]
)
def test_what_makes_another_graph(other: dict[str, Any]) -> None:
    scheduler = Scheduler([cpu()])
    scheduler.alloc(_chain(scale=0.0 if other.get("scale") == 0 else 1.0))
    scheduler.reset()
    scheduler.alloc(_chain(**other))
    assert scheduler.counters.placed == 2


@MEMORY
def test_reserve_places_a_graph_on_every_copy(memory: Any) -> None:
    scheduler = Scheduler([Device("gpu"), cpu()], n_copies=4, memory=memory)
    scheduler.reserve(_pinned(scheduler, _chain()))
    assert scheduler.counters.placed == 4  # none is left to be placed between two runs


@MEMORY
def test_reserve_plans_every_copy(memory: Any) -> None:
    with Scheduler([Device("gpu"), cpu()], n_copies=4, memory=memory) as scheduler:
        scheduler.reserve(_pinned(scheduler, _chain()))
        assert (scheduler.reserves, scheduler.reallocs) == (1, 0)
        runs = []
        for _ in range(9):
            x = _x()
            run = scheduler.compute_async(_pinned(scheduler, _chain()), {"x": x})
            runs.append((run, x))
        for run, x in runs:
            np.testing.assert_allclose(run.outputs["y"], _want(x), rtol=1e-4, atol=1e-5)
        after = scheduler.counters
    # the very first allocation sees other devices than the empty state, as in the reference
    extra = int(memory == "ggml" and after.reallocs == 1)
    assert (after.reserves, after.reallocs) == (1 + extra, extra)
    assert (after.placed, after.lowered) == (4, 4)


def test_smaller_graphs_take_the_places_of_the_one_reserved() -> None:
    scheduler = Scheduler([cpu()])
    scheduler.reserve(_chain(64))
    for rows in (64, 3, 17):
        scheduler.reset()
        x = _x(rows)
        scheduler.compute(_chain(rows), {"x": x})
        np.testing.assert_allclose(scheduler.get("y"), _want(x), rtol=1e-4, atol=1e-5)
    assert (scheduler.reserves, scheduler.reallocs) == (1, 0)
    assert scheduler.reserve_size(_chain(3))[0] < scheduler.buffer_size(0)


def test_every_block_stays_as_large_as_some_graph_needs_it() -> None:
    """The memory is in blocks of limited size; one graph needs two, the other a larger one."""
    device = cpu()
    device.buffer_type.max_size = 300
    scheduler = Scheduler([device])
    sizes = []
    for rows, weights in ((4, W), (8, W[:0]), (4, W), (8, W[:0])):
        scheduler.reset()
        x = _x(rows)
        scheduler.compute(_chain(rows, weights), {"x": x})
        np.testing.assert_allclose(scheduler.get("y"), _want(x, weights), rtol=1e-4, atol=1e-5)
        sizes.append(scheduler.buffer_size(0))
    assert sizes == [256 + 256, 512 + 256, 512 + 256, 512 + 256]
    assert scheduler.reallocs == 2


@MEMORY
def test_without_reuse_everything_is_done_each_time(memory: Any) -> None:
    on, off = (Scheduler([cpu()], memory=memory, reuse=reuse) for reuse in (True, False))
    graph, x = _chain(), _x()
    for scheduler in (on, off):
        for _ in range(3):
            scheduler.reset()
            scheduler.compute(graph, {"x": x})
    np.testing.assert_array_equal(on.get("y"), off.get("y"))
    assert (on.counters.placed, on.counters.lowered, on.counters.bound) == (1, 1, 1)
    assert (off.counters.placed, off.counters.lowered, off.counters.bound) == (3, 3, 3)
    if memory == "best":
        assert (on.reserves, off.reserves) == (1, 3)


def test_the_environment_switches_reuse_off() -> None:
    code = (
        "import numpy, weft; from weft.execute import Scheduler\n"
        "graph = weft.Graph(weft.graph.scale(weft.input('x', (4,)), 2.0).as_output('y'))\n"
        "s = Scheduler(['reference', 'cpu'])\n"
        "for _ in range(3): s.reset(); s.compute(graph, {'x': numpy.ones(4, 'f4')})\n"
        "print(s.counters.placed)"
    )
    for value, placed in (("0", "3"), ("1", "1")):
        env = os.environ | {"WEFT_GRAPH_REUSE": value}
        process = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True
        )
        assert process.stdout.strip() == placed, process.stderr


@MEMORY
def test_what_is_stale_is_not_held(memory: Any) -> None:
    """Graphs of growing size, each planned anew; only what may come again is kept."""
    scheduler = Scheduler([cpu()], memory=memory)
    gone = []
    for rows in range(1, 80):
        scheduler.reset()
        graph = _chain(rows)
        scheduler.compute(graph, {"x": _x(rows)})
        gone.append(weakref.ref(graph))
        del graph
    plans = scheduler._graphs._plans.values()
    held = sum(len(p.bound) for p in plans), sum(p.program is not None for p in plans)
    assert max(held) <= (32 if memory == "best" else 1)
    gc.collect()
    assert sum(ref() is not None for ref in gone) <= 34


def test_a_rebuilt_graph_after_a_failure() -> None:
    device = Faulty()
    with Scheduler([device, cpu()]) as scheduler:
        _run(scheduler, _pinned(scheduler, _chain()))
        device.fail = "run"
        with pytest.raises(weft.DeviceError):
            scheduler.compute(_pinned(scheduler, _chain()), {"x": _x()})
        device.fail = ""
        _run(scheduler, _pinned(scheduler, _chain()))


# -- why memory was planned anew


@MEMORY
def test_the_tensor_that_forced_a_reallocation_is_named(memory: Any) -> None:
    scheduler = Scheduler([cpu()], memory=memory)
    scheduler.reserve(_chain(4))
    scheduler.alloc(_chain(4))
    assert scheduler.counters.why == "" or memory == "ggml"
    scheduler.reset()
    scheduler.alloc(_chain(8))
    why = scheduler.counters.why
    assert scheduler.reallocs >= 1
    if memory == "ggml":
        assert why == "p0 f32 (8, 16) needs 512 bytes, but 256 were planned"
        scheduler.reset()
        scheduler.alloc(_chain(8, W[:2]))
        assert scheduler.counters.why.startswith("the graph has 3 nodes, 5 were planned")
        scheduler.reset()
        scheduler.alloc(_chain(8))
        assert "the first beyond them p3" in scheduler.counters.why
    else:
        assert "with its 512 bytes ends at byte" in why and "host memory, " in why


# -- the listing


def _listed(level: str) -> str:
    code = (
        "import weft, numpy as np; from weft import graph as g\n"
        "from weft.execute import Scheduler\n"
        "x = weft.input('x', (4, 16)); w = weft.constant(np.ones((8, 16), 'f4'), 'w')\n"
        "p = g.mul_mat(w, x).named('p'); y = g.scale(p, 2.0).as_output('y')\n"
        "graph = weft.Graph(y); s = Scheduler(['reference', 'cpu'])\n"
        "s.set_tensor_backend(p, 0); s.set_tensor_backend(y, 1)\n"
        "for _ in range(2): s.compute(graph, {'x': np.ones((4, 16), 'f4')})\n"
    )
    env = os.environ | {"WEFT_SCHED_DEBUG": level}
    process = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert process.returncode == 0 and not process.stdout, process.stderr
    return process.stderr


def test_the_listing_is_printed_when_a_graph_is_placed() -> None:
    assert _listed("0") == ""
    splits = _listed("1").splitlines()
    assert splits[0] == "graph of 2 ops in 2 splits on reference, cpu"
    assert splits[1].startswith("## split 0: reference, 2 inputs: [w (512 B)] [x (256 B)]")
    assert splits[2].startswith("## split 1: cpu") and "[p (128 B)]" in splits[2]
    assert not any(line.startswith("node") for line in splits)
    assert "memory planned again: reference#w#0 f32 (8, 16) with its 512 bytes" in splits[3]
    nodes = [line.split() for line in _listed("2").splitlines() if line.startswith("node")]
    assert nodes[0][:4] == ["node", "0", "MUL_MAT", "p"]
    assert " ".join(nodes[0][-8:]) == (
        "reference usr: reference#w#0 [reference 4.cpy] reference#x#0 [reference 4.cpy]"
    )
    assert " ".join(nodes[1]).startswith("node 1 SCALE y f32[8, 4] 128 B cpu")


def test_repacked_weights_are_those_of_the_graph() -> None:
    """A layout may follow from the values, so other weights are another graph."""
    w = RNG.standard_normal((2, 64, 64)).astype(np.float32) / 8

    def build(weights: Any) -> weft.Graph:
        h = weft.input("x", (4, 64))
        for i, one in enumerate(weights):
            h = g.mul_mat(weft.constant(one, f"w{i}"), h)
        return weft.Graph(h.as_output("y"))

    scheduler = Scheduler(["cpu"], repack=True, n_threads=1)
    x = RNG.standard_normal((4, 64)).astype(np.float32)
    weights, others = list(w), list(2 * w)
    for used, lowered in ((weights, 1), (weights, 1), (others, 2), (weights, 2), (others, 2)):
        scheduler.reset()
        scheduler.compute(build(used), {"x": x})
        np.testing.assert_allclose(scheduler.get("y"), _want(x, used), rtol=1e-3, atol=1e-4)
        assert scheduler.counters.lowered == lowered
