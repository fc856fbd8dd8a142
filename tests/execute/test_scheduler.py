"""The scheduler's verbs: planning, running, pinning, callbacks, experts, many devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from tests.execute.stub_devices import Device, Type, cpu
from weft import graph as g
from weft.execute import Scheduler
from weft.graph.tensor import Buffer

RNG = np.random.default_rng(0)
W = RNG.standard_normal((4, 16, 16)).astype(np.float32) / 4


def _chain(rows: Any = 4) -> weft.Graph:
    """x -> p0 -> p1 -> p2 -> p3, products with constant matrices."""
    h = weft.input("x", (rows, 16))
    for i, w in enumerate(W):
        h = g.mul_mat(weft.constant(w, f"w{i}"), h).named(f"p{i}")
    return weft.Graph(h.as_output())


def _by_name(graph: weft.Graph) -> dict[str, weft.Tensor]:
    return {t.name: t for t in graph.tensors}


def _want(x: NDArray[np.float32], upto: int = 4) -> NDArray[np.float32]:
    for w in W[:upto]:
        x = x @ w.T
    return x


def _x(rows: int = 4) -> NDArray[np.float32]:
    return RNG.standard_normal((rows, 16)).astype(np.float32)


# -- planning and running


def test_pins_decide_and_reset_forgets_them() -> None:
    graph, gpu = _chain(), Device("gpu")
    p1 = _by_name(graph)["p1"]
    scheduler = Scheduler([gpu, cpu()])
    scheduler.set_tensor_backend(p1, "gpu")
    scheduler.alloc(graph)
    assert scheduler.tensor_backend(p1) is gpu
    assert scheduler.schedule.cause_of[p1].code == "usr"
    with pytest.raises(weft.ScheduleError, match=r"call reset\(\) before pinning"):
        scheduler.set_tensor_backend(p1, 0)
    scheduler.reset()
    scheduler.alloc(graph)
    assert scheduler.tensor_backend(p1) is scheduler.backends[1]
    assert scheduler.n_splits == 1
    scheduler.reset()
    with pytest.raises(weft.ScheduleError, match="no backend 'tpu'; there are gpu, host"):
        scheduler.set_tensor_backend(p1, "tpu")


@pytest.mark.parametrize("memory", ["best", "ggml"])
def test_reserve_is_enough_for_smaller_graphs(memory: Any) -> None:
    gpu = Device("gpu")
    scheduler = Scheduler([gpu, cpu()], memory=memory)
    worst = _chain(weft.Sym("n", 1, 64))
    scheduler.set_tensor_backend(_by_name(worst)["p2"], 0)
    size = scheduler.reserve_size(worst)  # forgets the pin, as the reference does
    assert size[0] == 0 and [scheduler.buffer_size(b) for b in (0, 1)] == [0, 0]
    scheduler.set_tensor_backend(_by_name(worst)["p2"], 0)
    scheduler.reserve(worst)
    reserved = [scheduler.buffer_size(b) for b in ("gpu", "host")]
    assert min(reserved) > 0
    for rows in (64, 3, 17):
        graph = _chain(rows)
        scheduler.reset()
        scheduler.set_tensor_backend(_by_name(graph)["p2"], 0)
        x = _x(rows)
        assert scheduler.compute(graph, {"x": x})
        np.testing.assert_allclose(scheduler.get("p3"), _want(x), rtol=1e-4, atol=1e-5)
    # the very first allocation sees other devices than the empty state, as in the reference
    assert scheduler.reallocs <= (memory == "ggml")
    assert [scheduler.buffer_size(b) for b in (gpu, 1)] == reserved


def test_reserve_size_equals_what_reserve_takes() -> None:
    for memory in ("best", "ggml"):
        scheduler = Scheduler([Device("gpu"), cpu()], memory=memory)  # type: ignore[arg-type]
        graph = _chain(8)
        sizes = scheduler.reserve_size(graph)
        scheduler.reserve(graph)
        assert sizes == [scheduler.buffer_size(0), scheduler.buffer_size(1)]
        # memory that reserve_size gave up comes back when it is needed
        scheduler.reserve_size(_chain(64))
        x = _x(64)
        scheduler.reset()
        big = _chain(64)
        scheduler.compute(big, {"x": x})
        np.testing.assert_allclose(scheduler.get("p3"), _want(x), rtol=1e-4, atol=1e-5)


def test_worst_case_first_and_last() -> None:
    """A prompt's graph, one token's, and the prompt's again, as llama.cpp reserves them.

    Without the last, the reference's records are the small graph's, and the first prompt plans
    again, although the buffers have room. The best planner keeps no records."""

    def prepared(memory: Any, *rows: int) -> Scheduler:
        scheduler = Scheduler([cpu()], memory=memory)
        for n in rows:
            scheduler.reserve(_chain(n))
        scheduler.reset()
        scheduler.alloc(_chain(32))
        return scheduler

    careful, hasty = prepared("ggml", 32, 1, 32), prepared("ggml", 32, 1)
    assert (careful.reserves, careful.reallocs) == (3, 0)
    assert (hasty.reserves, hasty.reallocs) == (3, 1)
    assert careful.buffer_size(0) == hasty.buffer_size(0) > 0
    assert prepared("best", 32, 1).reallocs == 0


def test_graphs_take_turns() -> None:
    scheduler = Scheduler([cpu()])
    first, second = _chain(2), _chain(3)
    scheduler.compute(first, {"x": _x(2)})
    with pytest.raises(weft.ScheduleError, match="another graph is allocated"):
        scheduler.compute(second, {"x": _x(3)})
    with pytest.raises(weft.ScheduleError, match=r"call reset\(\) before the next one"):
        scheduler.alloc(second)
    scheduler.reset()
    with pytest.raises(weft.ScheduleError, match="no graph is allocated"):
        scheduler.get("p3")
    x = _x(3)
    scheduler.compute(second, {"x": x})
    np.testing.assert_allclose(scheduler.get("p3"), _want(x), rtol=1e-4, atol=1e-5)


def test_one_graph_runs_at_every_size_without_planning_again() -> None:
    scheduler = Scheduler([Device("gpu"), cpu()])
    graph = _chain(weft.Sym("n", 1, 32))
    scheduler.set_tensor_backend(_by_name(graph)["p1"], 0)
    for rows in (32, 1, 7, 31):
        x = _x(rows)
        scheduler.compute(graph, {"x": x})
        np.testing.assert_allclose(scheduler.get("p3"), _want(x), rtol=1e-4, atol=1e-5)
    assert scheduler.reserves == 1
    # p0 to the device, p1 back, and the weight of p1, four times
    assert scheduler.copies == 4 * 3
    assert scheduler.copied_bytes == 4 * W[1].nbytes + 2 * 64 * (32 + 1 + 7 + 31)


def test_inputs_by_set_and_wrong_ones() -> None:
    scheduler = Scheduler([cpu()])
    a, b = weft.input("a", (weft.Sym("n", 1, 8), 4)), weft.input("b", (weft.Sym("n", 1, 8), 4))
    graph = weft.Graph(g.add(a, b).as_output("c"))
    scheduler.alloc(graph)
    ones = np.ones((2, 4), np.float32)
    scheduler.set("a", ones)
    scheduler.set(b, 2 * ones)
    assert scheduler.compute(graph)
    np.testing.assert_array_equal(scheduler.outputs()["c"], 3 * ones)
    with pytest.raises(weft.ProgramError, match=r"no input 'z'; the graph has \['a', 'b'\]"):
        scheduler.compute(graph, {"z": ones})
    with pytest.raises(weft.ProgramError, match=r"'b' has shape \(3, 4\), wants \(2, 4\)"):
        scheduler.compute(graph, {"a": ones, "b": np.ones((3, 4), np.float32)})
    with pytest.raises(weft.ProgramError, match="element type float64"):
        scheduler.set("a", np.ones((2, 4)))
    with pytest.raises(weft.ProgramError, match=r"symbol n is 9; .*1\.\.8"):
        scheduler.set("a", np.ones((9, 4), np.float32))
    # nothing of that was written, and nothing needs a reset
    assert scheduler.compute(graph, {"a": ones, "b": ones})
    np.testing.assert_array_equal(scheduler.get("c"), 2 * ones)


def test_every_tensor_can_be_read() -> None:
    scheduler = Scheduler([cpu()])
    x = weft.input("x", (2, 4))
    doubled = g.scale(x, 2.0).named("doubled")
    graph = weft.Graph(g.cont(g.transpose(doubled)).as_output("y"))
    data = np.arange(8, dtype=np.float32).reshape(2, 4)
    scheduler.compute(graph, {"x": data})
    np.testing.assert_array_equal(scheduler.get(doubled), 2 * data)
    np.testing.assert_array_equal(scheduler.get(graph.nodes[1]), 2 * data.T)  # the view
    with pytest.raises(weft.ProgramError, match=r"no output 'doubled'; the graph has \['y'\]"):
        scheduler.get("doubled")
    with pytest.raises(weft.ProgramError, match="has no memory in the graph"):
        scheduler.get(weft.input("other", (1,)))


def test_devices_that_cannot_be() -> None:
    with pytest.raises(weft.ScheduleError, match="listed twice: host, host"):
        Scheduler([cpu(), cpu()])
    with pytest.raises(weft.ScheduleError, match="n_copies is 0"):
        Scheduler([cpu()], 0)
    with pytest.raises(weft.ScheduleError, match="last device must be of kind CPU"):
        Scheduler([Device("gpu")]).alloc(_chain())


def test_devices_that_share_memory_need_no_copies() -> None:
    """Two devices over one memory: writes of one are ordered before reads of the other."""
    shared = Type("shared", is_host=True)
    fast = Device("fast", "ACCEL", shared, takes=lambda node: node.name in ("p0", "p2"))
    host = Device("host", "CPU", shared)
    fast.seconds = host.seconds = 0.002
    graph = _chain(weft.Sym("n", 1, 8))
    xs = [_x(5) for _ in range(6)]
    with Scheduler([fast, host], n_copies=2) as scheduler:
        runs = []
        for x in xs:
            scheduler.reset()
            runs.append(scheduler.compute_async(graph, {"x": x}))
        for run, x in zip(runs, xs, strict=True):
            np.testing.assert_allclose(run.outputs["p3"], _want(x), rtol=1e-4, atol=1e-5)
        assert scheduler.n_splits == 4
        assert scheduler.copies == 0
        assert scheduler.buffer_size(fast) > 0 and scheduler.buffer_size(host) == 0
    assert all(len(d.threads) == 1 for d in (fast, host)) and fast.threads != host.threads


def test_copies_rotate() -> None:
    scheduler = Scheduler([Device("gpu"), cpu()], n_copies=3)
    graph = _chain()
    seen = []
    for _ in range(5):
        scheduler.reset()
        scheduler.compute_async(graph, {"x": _x()})
        seen.append(scheduler.cur_copy)
    assert seen == [0, 1, 2, 0, 1]
    scheduler.reset()
    scheduler.synchronize()
    scheduler.compute(graph, {"x": _x()})
    assert scheduler.cur_copy == 0
    scheduler.close()


def test_inputs_may_change_as_soon_as_a_run_is_started() -> None:
    gpu = Device("gpu", seconds=0.01)
    graph = _chain()
    with Scheduler([gpu, cpu()]) as scheduler:
        scheduler.set_tensor_backend(_by_name(graph)["p0"], 0)
        x = _x()
        want = _want(x)
        first = scheduler.compute_async(graph, {"x": x})
        x[:] = 0
        second = scheduler.compute_async(graph, {"x": x})
        np.testing.assert_allclose(first.outputs["p3"], want, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(second.outputs["p3"], 0)
        assert first.is_done() and second.wait()


def test_weights_that_a_graph_writes() -> None:
    """Readers before and after wait, although weights pass for constant elsewhere."""
    host = Type("host", is_host=True)
    slow = Device("slow", "ACCEL", host, takes=lambda n: n.op.name == "SET_ROWS", seconds=0.02)
    last = Device("last", "CPU", host, takes=lambda n: n.op.name != "SET_ROWS", seconds=0.005)
    table = np.zeros((4, 8), np.float32)
    leaf = weft.constant(table, "table")
    rows = weft.input("rows", (1, 8))
    written = g.set_rows(leaf, rows, weft.constant(np.array([2], np.int64), "where"))
    write = weft.Graph(written.as_output("written"))
    ids = weft.constant(np.array([2], np.int32), "ids")
    read = weft.Graph(g.get_rows(leaf, ids).as_output("row"))
    with Scheduler([slow, last]) as scheduler:
        seen = []
        for i in range(1, 4):
            scheduler.reset()
            seen.append(scheduler.compute_async(read))
            scheduler.reset()
            scheduler.compute_async(write, {"rows": np.full((1, 8), i, np.float32)})
        scheduler.reset()
        seen.append(scheduler.compute_async(read))
        assert [float(run.outputs["row"].max()) for run in seen] == [0, 1, 2, 3]


# -- callbacks


@pytest.mark.parametrize("how", ["compute", "compute_async"])
def test_eval_callback_sees_what_it_asks_for(how: str) -> None:
    graph = _chain()
    named = _by_name(graph)
    scheduler = Scheduler([Device("gpu"), cpu()])
    scheduler.set_tensor_backend(named["p1"], 0)
    calls: list[tuple[str, bool]] = []
    seen: dict[str, NDArray[Any]] = {}

    def callback(node: weft.Tensor, ask: bool) -> bool:
        calls.append((node.name, ask))
        if ask:
            return node.name in ("p1", "p2")
        seen[node.name] = scheduler.get(node)
        return True

    scheduler.set_eval_callback(callback)
    x = _x()
    run = getattr(scheduler, how)(graph, {"x": x})
    assert run if how == "compute" else run.wait()
    # p2 and p3 are one split: p3 is asked about once p2 was looked at
    assert calls == [("p0", True), ("p1", True), ("p1", False), ("p2", True), ("p2", False),
                     ("p3", True)]  # fmt: skip
    np.testing.assert_allclose(seen["p1"], _want(x, 2), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(seen["p2"], _want(x, 3), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(scheduler.get("p3"), _want(x), rtol=1e-4, atol=1e-5)
    scheduler.set_eval_callback(None)
    calls.clear()
    scheduler.compute(graph, {"x": x})
    assert not calls


def test_eval_callback_sees_nodes_that_would_be_fused() -> None:
    """A norm with its row and its bias is one node, but not where a callback may ask for it."""
    row = weft.constant(RNG.standard_normal(16).astype(np.float32))
    normed = g.rms_norm(weft.input("x", (4, 16)), 1e-5).named("normed")
    scaled = g.mul(normed, row).named("scaled")
    graph = weft.Graph(g.add(scaled, row).as_output("y"))
    scheduler = Scheduler(["cpu"])
    seen: list[str] = []

    def callback(node: weft.Tensor, ask: bool) -> bool:
        if not ask:
            seen.append(node.name)
        return True

    x = _x()
    scheduler.compute(graph, {"x": x})
    fused = scheduler.get("y")
    assert len(scheduler.schedule.splits[0].nodes) == 1
    scheduler.set_eval_callback(callback)
    scheduler.reset()
    scheduler.compute(graph, {"x": x})
    assert seen == ["normed", "scaled", "y"]
    np.testing.assert_allclose(scheduler.get("y"), fused, rtol=1e-5, atol=1e-6)
    scheduler.set_eval_callback(None)
    scheduler.reset()
    scheduler.compute(graph, {"x": x})
    assert len(scheduler.schedule.splits[0].nodes) == 1


def test_eval_callback_can_cancel() -> None:
    graph = _chain()
    scheduler = Scheduler([cpu()])
    asked = []

    def stop_at_p1(node: weft.Tensor, ask: bool) -> bool:
        asked.append(node.name)
        return ask and node.name == "p1"

    scheduler.set_eval_callback(stop_at_p1)
    assert scheduler.compute(graph, {"x": _x()}) is False
    assert asked == ["p0", "p1", "p1"]
    scheduler.set_eval_callback(None)
    assert scheduler.compute(graph, {"x": _x()}) is True


def test_abort_callback() -> None:
    x = weft.input("x", (8,))
    h = x
    for _ in range(100):
        h = g.scale(h, 1.0)
    graph = weft.Graph(h.as_output("y"))
    scheduler = Scheduler([cpu()])
    calls = []

    def abort() -> bool:
        calls.append(1)
        return len(calls) > 3

    scheduler.set_abort_callback(abort)
    data = np.ones(8, np.float32)
    assert scheduler.compute(graph, {"x": data}) is False
    assert len(calls) == 4
    run = scheduler.compute_async(graph, {"x": data})
    assert run.wait() is False and run.stopped and not run.outputs
    scheduler.set_abort_callback(lambda: False)
    assert scheduler.compute(graph, {"x": data}) is True
    np.testing.assert_array_equal(scheduler.get("y"), data)


def test_a_callback_that_raises_is_heard() -> None:
    scheduler = Scheduler([cpu()])

    def broken(node: weft.Tensor, ask: bool) -> bool:
        raise LookupError("mine")

    scheduler.set_eval_callback(broken)
    with pytest.raises(LookupError, match="mine"):
        scheduler.compute(_chain(), {"x": _x()})
    scheduler.set_eval_callback(None)
    scheduler.reset()
    assert scheduler.compute(_chain(), {"x": _x()})


# -- mixtures of experts


def _experts(n_expert: int, tokens: Any, used: int, usage: Any = "weights") -> weft.Graph:
    data = np.random.default_rng(7).standard_normal((n_expert, 8, 16)).astype(np.float32)
    experts = weft.constant(data, "experts")
    assert experts.buffer is not None
    experts.buffer = Buffer(usage, data=experts.buffer.data)
    x = weft.input("x", (tokens, 1, 16))
    ids = weft.input("ids", (tokens, used), "i32")
    y = g.mul_mat_id(experts, g.scale(x, 1.0), g.cont(ids)).as_output("y")
    return weft.Graph(y)


@pytest.mark.parametrize("n_copies", [1, 2])
def test_only_the_experts_used_are_copied(n_copies: int) -> None:
    """A host weight of a mixture, offloaded to a device."""
    graph = _experts(32, weft.Sym("n", 1, 4), 2)
    data = graph.leaves[[t.name for t in graph.leaves].index("experts")].buffer.data
    rng = np.random.default_rng(1)
    gpu = Device("gpu", offloads=lambda node: node.op.name == "MUL_MAT_ID")
    with Scheduler([gpu, cpu()], n_copies) as scheduler:
        for tokens in (4, 1, 3):
            x = rng.standard_normal((tokens, 1, 16)).astype(np.float32)
            ids = rng.integers(0, 32, (tokens, 2)).astype(np.int32)
            before = scheduler.copied_bytes, scheduler.moved.experts
            scheduler.reset()
            run = scheduler.compute_async(graph, {"x": x, "ids": ids})
            want = np.einsum("tum,tuom->tuo", np.repeat(x, 2, 1), data[ids])
            np.testing.assert_allclose(run.outputs["y"], want, rtol=1e-4, atol=1e-5)
            n_used = len(np.unique(ids))
            assert scheduler.moved.experts - before[1] == n_used
            rest = x.nbytes + ids.nbytes
            assert scheduler.copied_bytes - before[0] == n_used * data[0].nbytes + rest
        assert scheduler.schedule.cause_of[graph.outputs["y"]].code == "1.off"


def test_sessions_copy_experts_the_same_way() -> None:
    graph = _experts(16, 2, 2)
    gpu = Device("gpu", offloads=lambda node: node.op.name == "MUL_MAT_ID")
    session = weft.Session(weft.compile(graph, [gpu, cpu()]))
    x = np.ones((2, 1, 16), np.float32)
    ids = np.array([[3, 4], [4, 15]], np.int32)
    got = session.run({"x": x, "ids": ids})["y"]
    assert session.moved.experts == 3
    data = graph.leaves[[t.name for t in graph.leaves].index("experts")].buffer.data
    np.testing.assert_allclose(got, data[ids].sum(-1), rtol=1e-4, atol=1e-5)


def test_whole_weight_where_something_else_reads_it() -> None:
    data = np.random.default_rng(7).standard_normal((4, 8, 16)).astype(np.float32)
    experts = weft.constant(data, "experts")
    x, ids = weft.input("x", (2, 1, 16)), weft.input("ids", (2, 1), "i32")
    y = g.mul_mat_id(experts, x, ids).as_output("y")
    total = g.sum_rows(experts).as_output("total")
    gpu = Device("gpu")
    scheduler = Scheduler([gpu, cpu()])
    for t in (y, total):
        scheduler.set_tensor_backend(t, 0)
    graph = weft.Graph(y, total)
    scheduler.compute(
        graph, {"x": np.ones((2, 1, 16), np.float32), "ids": np.array([[1], [1]], np.int32)}
    )
    assert scheduler.moved.experts == 0
    np.testing.assert_allclose(scheduler.get("total")[..., 0], data.sum(-1), rtol=1e-4, atol=1e-5)


def test_whole_weight_where_the_ids_come_later() -> None:
    """The device computes the ids itself, in the same split."""
    data = np.random.default_rng(7).standard_normal((8, 8, 16)).astype(np.float32)
    gpu = Device("gpu")
    scores = np.array([[0, 3, 2, 1, 0, 0, 0, 0], [9, 1, 0, 8, 0, 0, 0, 0]], np.float32)
    memory = gpu.buffer_type.allocate(scores.nbytes)
    memory.write(0, scores.reshape(-1).view(np.uint8))
    on_gpu = weft.constant(scores, "scores")
    on_gpu.buffer = Buffer("any", gpu.buffer_type, memory)
    ids = g.top_k(on_gpu, 2)
    y = g.mul_mat_id(weft.constant(data, "experts"), weft.input("x", (2, 1, 16)), ids)
    graph = weft.Graph(y.as_output("y"))
    scheduler = Scheduler([gpu, cpu()])
    for node in graph.nodes:
        scheduler.set_tensor_backend(node, 0)
    scheduler.compute(graph, {"x": np.ones((2, 1, 16), np.float32)})
    assert scheduler.n_splits == 1 and scheduler.moved.experts == 0
    want = data[np.argsort(-scores)[:, :2]].sum(-1)
    np.testing.assert_allclose(np.sort(scheduler.get("y"), 1), np.sort(want, 1), rtol=1e-4)


# -- no fixed sizes


def test_a_thousand_split_inputs_and_sixty_four_devices() -> None:
    devices = [Device(f"gpu{i}") for i in range(63)]
    inputs = [weft.input(f"x{i}", (4,)) for i in range(1000)]
    total = inputs[0]
    nodes = []
    for x in inputs[1:]:
        total = g.add(total, x)
        nodes.append(total)
    graph = weft.Graph(total.as_output("sum"))
    scheduler = Scheduler([*devices, cpu()])
    for node in nodes:
        scheduler.set_tensor_backend(node, 62)
    scheduler.compute(graph, {x.name: np.full(4, 1, np.float32) for x in inputs})
    np.testing.assert_array_equal(scheduler.get("sum"), 1000)
    assert scheduler.copies == 1000 == len(scheduler.schedule.splits[0].inputs)


@pytest.mark.parametrize("n_copies", [1, 2])
def test_a_ring_of_sixty_four_devices(n_copies: int) -> None:
    devices = [Device(f"gpu{i}") for i in range(63)]
    h = weft.input("x", (4,))
    nodes = []
    for _ in range(128):
        h = g.scale(h, 1.0, 1.0)
        nodes.append(h)
    graph = weft.Graph(h.as_output("y"))
    with Scheduler([*devices, cpu()], n_copies) as scheduler:
        for i, node in enumerate(nodes):
            scheduler.set_tensor_backend(node, i % 64)
        run = scheduler.compute_async(graph, {"x": np.zeros(4, np.float32)})
        np.testing.assert_array_equal(run.outputs["y"], 128)
        assert scheduler.n_splits == 128
