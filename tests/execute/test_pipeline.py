"""Runs of one program that overlap: the same results, order where bytes are shared, and an end."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from tests.execute.stub_devices import Device, Faulty, cpu
from tests.waiting import eventually
from weft import graph as g
from weft.compiler import lower_plan, plan_graph
from weft.execute import ArenaPool, Pipeline, Profile, Session
from weft.graph.tensor import Buffer

RNG = np.random.default_rng(0)
W = RNG.standard_normal((4, 16, 16)).astype(np.float32) / 4


def graph_of() -> weft.Graph:
    """x -> p0 -> p1 -> p2 -> p3, products with constant matrices, the last called y."""
    h = weft.input("x", (weft.Sym("n", 1, 4), 16))
    for i, w in enumerate(W):
        h = g.mul_mat(weft.constant(w, f"w{i}"), h).named(f"p{i}")
    return weft.Graph(h.as_output("y"))


def want(x: NDArray[np.float32]) -> NDArray[np.float32]:
    for w in W:
        x = x @ w.T
    return x


def pipeline(devices: list[Any], where: list[int], copies: int) -> Pipeline:
    graph = graph_of()
    at = dict(zip(("p0", "p1", "p2", "y"), where, strict=True))
    plan = plan_graph(graph, devices, policy="plan", assign={n: at[n.name] for n in graph.nodes})
    program = lower_plan(plan)
    pool = ArenaPool()
    pools = [pool, *(pool.beside() for _ in range(copies - 1))]
    return Pipeline(plan.schedule, [Session(program, p) for p in pools])


def run_all(driver: Pipeline, xs: list[NDArray[np.float32]]) -> list[NDArray[np.float32]]:
    """Each x through the pipeline; its results in order."""
    under_way: list[tuple[int, Any]] = []
    results = []

    def result() -> None:
        copy, run = under_way.pop(0)
        driver.wait(run)
        results.append(driver.sessions[copy].output("y", run.values))

    for number, x in enumerate(xs):
        copy = number % driver.n_copies
        if len(under_way) == driver.n_copies:
            result()
        session = driver.sessions[copy]
        session.input_view("x")[: x.size] = x.reshape(-1)
        session.upload("x")
        under_way.append((copy, driver.start(copy, {"n": len(x)})))
    while under_way:
        result()
    driver.finish()
    return results


def some(n: int) -> list[NDArray[np.float32]]:
    return [RNG.standard_normal((1 + i % 4, 16)).astype(np.float32) for i in range(n)]


@pytest.mark.parametrize("copies", [1, 2, 3])
@pytest.mark.parametrize(
    "where", [[0, 0, 1, 1], [1, 1, 0, 0], [1, 0, 0, 1], [0, 1, 0, 1], [1, 1, 1, 1]]
)
def test_results_are_those_of_single_runs(where: list[int], copies: int) -> None:
    driver = pipeline([Device("gpu", seconds=0.001), cpu()], where, copies)
    for xs in (some(7), some(1), some(2)):
        for x, y in zip(xs, run_all(driver, xs), strict=True):
            np.testing.assert_allclose(y, want(x), rtol=1e-4, atol=1e-5)


def test_devices_work_at_the_same_time() -> None:
    """A later run's first half is handed out before the last half of one before it: the two wait
    for each other."""
    for where in ([1, 1, 0, 0], [1, 0, 0, 1]):
        gpu, host = Device("gpu"), cpu()

        def first_on_the_gpu(gpu: Device = gpu, host: Device = host) -> None:
            if gpu.begun == 1:
                eventually(lambda: host.begun == 2)

        def second_on_the_host(gpu: Device = gpu, host: Device = host) -> None:
            if host.begun == 2:
                eventually(lambda: gpu.begun)

        gpu.during, host.during = first_on_the_gpu, second_on_the_host
        profile = Profile()
        driver = pipeline([gpu, host], where, 2)
        with driver.profile(profile):
            run_all(driver, some(6))
        assert profile.runs == 6 and profile.overlap > 0
        assert profile.outside == pytest.approx(
            profile.seconds + profile.overlap - sum(line.seconds for line in profile.lines)
        )
        alone = Profile()
        session = driver.sessions[0]
        with session.profile(alone):
            for x in some(3):
                session.run({"x": x})
        assert alone.runs == 3 and alone.overlap == 0


def test_a_failure_ends_all_runs_and_the_next_ones_work() -> None:
    gpu = Faulty("gpu")
    driver = pipeline([gpu, cpu()], [1, 1, 0, 0], 2)
    gpu.fail, gpu.after = "run", 2
    with pytest.raises(weft.DeviceError, match=r"split 1 on gpu .*run failed"):
        run_all(driver, some(6))
    driver.reset()
    gpu.fail = ""
    xs = some(3)
    for x, y in zip(xs, run_all(driver, xs), strict=True):
        np.testing.assert_allclose(y, want(x), rtol=1e-4, atol=1e-5)


def test_abort_from_another_thread() -> None:
    gpu, third, aborted = Device("gpu"), threading.Event(), threading.Event()
    driver = pipeline([gpu, cpu()], [1, 1, 0, 0], 2)

    def in_the_third_run() -> None:
        if gpu.begun == 3:
            third.set()
            assert aborted.wait(120)

    def abort() -> None:
        assert third.wait(120)
        driver.abort()
        aborted.set()

    gpu.during = in_the_third_run
    thread = threading.Thread(target=abort)
    thread.start()
    with pytest.raises(weft.AbortedError):
        run_all(driver, some(50))
    thread.join()
    assert gpu.begun < 10  # of 100: what was handed out may still run
    gpu.during = None
    driver.reset()
    xs = some(2)
    for x, y in zip(xs, run_all(driver, xs), strict=True):
        np.testing.assert_allclose(y, want(x), rtol=1e-4, atol=1e-5)


def test_a_cache_that_runs_share_keeps_its_order() -> None:
    """Each run reads what the one before wrote, on either device."""
    for device in (0, 1):
        gpu, host = Device("gpu", seconds=0.002), cpu()
        kinds = [gpu.buffer_type, host.buffer_type]
        memory = kinds[device].allocate(4 * 16)
        leaf = weft.Tensor(weft.find_dtype("f32"), (16, 1, 1, 1), name="state")
        leaf.buffer = Buffer("any", kinds[device], memory)
        x = weft.input("x", (1, 16))
        near, far = (0, 1) if device == 0 else (1, 0)
        first = g.scale(x, 1.0).named("first")
        total = g.add(leaf, first).named("total")
        stored = g.cpy(total, leaf).named("stored")
        graph = weft.Graph(g.scale(stored, 2.0).named("y").as_output("y"))
        at = {"first": far, "total": near, "stored": near, "y": far}
        plan = plan_graph(
            graph, [gpu, host], policy="plan",
            assign={n: at[n.name] for n in graph.nodes if n.name in at},
        )  # fmt: skip
        pool = ArenaPool()
        program = lower_plan(plan)
        driver = Pipeline(plan.schedule, [Session(program, p) for p in (pool, pool.beside())])
        xs = [RNG.standard_normal((1, 16)).astype(np.float32) for _ in range(9)]
        sums = np.cumsum(xs, axis=0) * 2
        under_way: list[tuple[int, Any]] = []
        got = []
        for number, value in enumerate(xs):
            if len(under_way) == 2:
                copy, run = under_way.pop(0)
                driver.wait(run)
                got.append(driver.sessions[copy].output("y", {}))
            session = driver.sessions[number % 2]
            session.input_view("x")[:] = value.reshape(-1)
            session.upload("x")
            under_way.append((number % 2, driver.start(number % 2, {})))
        for copy, run in under_way:
            driver.wait(run)
            got.append(driver.sessions[copy].output("y", {}))
        driver.finish()
        for y, expected in zip(got, sums, strict=True):
            np.testing.assert_allclose(y.reshape(-1), expected.reshape(-1), rtol=1e-5, atol=1e-6)
        assert driver.n_lasting < len(program.splits)
