"""Threads while sessions run: counts that change, sessions side by side, stops."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from weft import graph as g
from weft.backends.cpu import CpuBackend
from weft.errors import AbortedError, ProgramError

WIDTH = 64


def _small(layers: int = 3) -> weft.Graph:
    rows = weft.Sym("rows", 1, 16)
    x = weft.input("x", (rows, WIDTH))
    rng = np.random.default_rng(0)
    y = x
    for i in range(layers):
        w = rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / WIDTH
        a = g.mul_mat(weft.constant(w, f"w{i}"), g.rms_norm(y, 1e-5))
        y = g.add(g.scale(a, 2.0), y)
    return weft.Graph(y.as_output("y"))


def _inputs(rows: int, seed: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).standard_normal((rows, WIDTH)).astype(np.float32)}


def test_thread_counts_change_ten_thousand_times() -> None:
    session = weft.Session(weft.compile(_small(1), [CpuBackend(n_threads=4)]))
    inputs = _inputs(16, 1)
    want = {rows: session.run({"x": inputs["x"][:rows]})["y"] for rows in range(1, 17)}
    view, flat = session.input_view("x"), inputs["x"].reshape(-1)
    rng = random.Random(1)
    for i in range(10_000):
        rows = rng.randint(1, 16)
        session.use_threads(rng.randint(1, 4))
        view[: rows * WIDTH] = flat[: rows * WIDTH]
        session.execute({"rows": rows})
        if i % 50 == 0:
            got = session.output("y", {"rows": rows})
            np.testing.assert_allclose(got, want[rows], rtol=1e-5, atol=1e-6)


def test_more_threads_than_there_are_is_all_of_them() -> None:
    session = weft.Session(weft.compile(_small(), [CpuBackend(n_threads=2)]))
    want = session.run(_inputs(16, 2))["y"]
    for n in (0, 1, 2, 100):
        session.use_threads(n)
        np.testing.assert_allclose(session.run(_inputs(16, 2))["y"], want, rtol=1e-5, atol=1e-6)


def _side_by_side(make: Callable[[], CpuBackend]) -> None:
    """Two sessions in two threads, each right all the time."""
    reference = weft.Session(weft.compile(_small(), ["reference"]))
    inputs = [_inputs(rows, rows) for rows in (3, 16)]
    wants = [reference.run(i)["y"] for i in inputs]
    faults: list[Exception] = []

    def run(number: int, backend: CpuBackend) -> None:
        try:
            session = weft.Session(weft.compile(_small(), [backend]))
            for _ in range(50):
                got = session.run(inputs[number])["y"]
                np.testing.assert_allclose(got, wants[number], rtol=1e-3, atol=1e-4)
        except Exception as error:
            faults.append(error)

    threads = [threading.Thread(target=run, args=(i, make())) for i in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(timeout=120)
        assert not t.is_alive()
    assert not faults


def test_two_sessions_share_a_device() -> None:
    backend = CpuBackend(n_threads=2)
    _side_by_side(lambda: backend)


def test_two_devices_with_more_threads_than_cores() -> None:
    many = 2 * weft._native.usable_processors() + 1
    _side_by_side(lambda: CpuBackend(n_threads=many))


# ---- stops -------------------------------------------------------------------------------------


def _long() -> weft.Graph:
    """Minutes of matmuls at the largest size."""
    n = 1024
    rows = weft.Sym("rows", 1, 1 << 11)
    x = weft.input("x", (rows, n))
    w = weft.constant(np.eye(n, dtype=np.float32), "w")
    for _ in range(400):
        x = g.mul_mat(w, x)
    return weft.Graph(x.as_output("y"))


@pytest.fixture(scope="module")
def long_program() -> weft.Program:
    return weft.compile(_long(), [CpuBackend(n_threads=2)])


def test_a_run_is_stopped_from_another_thread(long_program: weft.Program) -> None:
    session = weft.Session(long_program)
    timer = threading.Timer(0.1, session.abort)
    timer.start()
    with pytest.raises(AbortedError):
        session.execute({"rows": 1 << 11})
    timer.join()
    x = np.random.default_rng(0).standard_normal((2, 1024)).astype(np.float32)
    np.testing.assert_allclose(session.run({"x": x})["y"], x, rtol=1e-5)


def test_a_stop_between_runs(long_program: weft.Program) -> None:
    session = weft.Session(long_program)
    session.abort()
    with pytest.raises(AbortedError):
        session.execute({"rows": 1})
    session.execute({"rows": 1})
    session.abort()
    session.clear_abort()
    session.execute({"rows": 1})
    session.abort()
    x = np.ones((1, 1024), np.float32)
    np.testing.assert_allclose(session.run({"x": x})["y"], x)


def test_a_wrong_value_is_no_stop(long_program: weft.Program) -> None:
    with pytest.raises(ProgramError):
        weft.Session(long_program).execute({"rows": 0})


def test_a_stop_between_splits() -> None:
    """Where devices cannot stop, the next split does not start."""
    x = weft.input("x", (4,))
    y = g.scale(x, 2.0)
    graph = weft.Graph(g.scale(y, 3.0).as_output("z"))
    cpu = CpuBackend(n_threads=1)
    reference: Any = weft.compile(graph, ["reference"]).devices[0]
    program = weft.compile(graph, [reference, cpu], assign={y: reference, graph.outputs["z"]: cpu})
    session = weft.Session(program)
    session.abort()
    with pytest.raises(AbortedError):
        session.execute({})
    out = session.run({"x": np.ones(4, np.float32)})["z"]
    np.testing.assert_array_equal(out, np.full(4, 6, np.float32))
