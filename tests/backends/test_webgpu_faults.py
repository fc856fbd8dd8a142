"""WebGPU devices that fail, are asked for what they lack, or are left in the middle of work."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import weft
from tests.backend_suite import _alone
from tests.backends.webgpu_device import webgpu
from weft import graph as g
from weft.backends import Backend, make_backend
from weft.backends.webgpu import builds
from weft.compiler import compile
from weft.execute import Session

N = 64


@pytest.fixture(scope="module")
def device() -> Backend:
    return webgpu()


def session_of(device: Backend, *outputs: weft.Tensor) -> Session:
    """A session with everything on the device."""
    return Session(compile(weft.Graph(*outputs), [_alone(device)]))


def doubled(device: Backend) -> Session:
    x = weft.input("x", (weft.Sym("n", 1, 8), N))
    return session_of(device, g.add(x, x).named("sum").as_output("y"))


ONES = np.ones((2, N), np.float32)


@pytest.mark.parametrize("name", ["webgpu:99", "webgpu:x", "gpu:-1", "gpu:²", "webgpu: 0"])
def test_a_number_that_there_is_not(device: Backend, name: str) -> None:
    with pytest.raises(weft.DeviceError, match=r"no device .*; this machine has webgpu:0 \("):
        make_backend(name)


def test_a_name_that_ends_in_a_colon() -> None:
    with pytest.raises(weft.DeviceError, match="ends in a colon; write 'webgpu' or 'webgpu:0'"):
        make_backend("gpu:")


@pytest.mark.parametrize("option", [
    {"n_threads": 1}, {"limits": {"speed": 9}}, {"limits": {"lanes": 3}},
    {"memory": "much"}, {"memory": -1}, {"memory": 0},
])  # fmt: skip
def test_odd_options(device: Backend, option: dict[str, Any]) -> None:
    with pytest.raises(weft.WeftError, match=r"no option|power of two|at least 1"):
        make_backend("webgpu", **option)


def test_an_index_out_of_range_is_an_error(device: Backend) -> None:
    rows = weft.input("rows", (3,), "i32")
    table = weft.constant(np.ones((5, N), np.float32), "table")
    session = session_of(device, g.get_rows(table, rows).named("picked").as_output("y"))
    for bad in (5, -1, 2**31 - 1):
        with pytest.raises(weft.DeviceError, match=rf"GET_ROWS\(.*: index {bad} is outside 0..4"):
            session.run({"rows": np.array([0, bad, 1], np.int32)})
    assert (session.run({"rows": np.array([0, 4, 1], np.int32)})["y"] == 1).all()


def test_an_integer_divided_by_zero_is_an_error(device: Backend) -> None:
    a, b = (weft.input(name, (8,), "i32") for name in "ab")
    session = session_of(device, g.binary("floor_div", a, b).as_output("y"))
    x, ones = np.arange(8, dtype=np.int32), np.ones(8, np.int32)
    with pytest.raises(weft.DeviceError, match="an integer is divided by 0"):
        session.run({"a": x, "b": np.where(x == 3, 0, ones).astype(np.int32)})
    assert (session.run({"a": x, "b": ones})["y"].ravel() == x).all()


def test_a_kernel_that_does_not_build(device: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernel, file and device are named, with the node that needs it; others still run."""
    backend = webgpu()
    monkeypatch.setattr(builds, "keep", lambda *_: None)
    monkeypatch.setattr(
        "weft.backends.webgpu.pipelines.translated", lambda *_: "fn main() { nonsense here; }"
    )
    x = weft.input("x", (2, N))
    with pytest.raises(weft.DeviceError) as caught:
        session_of(backend, g.silu(x).named("y").as_output("y")).run({"x": ONES})
    for part in ("unary.cl", backend.device.name, "split 0 on webgpu", "y"):
        assert part in str(caught.value)
    monkeypatch.undo()
    assert (doubled(backend).run({"x": ONES})["y"] == 2).all()


def test_empty_tensors_and_views(device: Backend) -> None:
    """Nothing is launched for no elements; views begin at any element."""
    n = weft.Sym("n", 0, 8)
    x = weft.input("x", (n, N))
    session = session_of(device, g.add(x, x).as_output("y"))
    for rows in (0, 3, 0):
        assert session.run({"x": np.ones((rows, N), np.float32)})["y"].shape[-2:] == (rows, N)
    a = weft.input("a", (4, N))
    odd = g.view_2d(a, 7, 3, a.nb[1], 4 * 5)
    part = session_of(device, g.sqr(odd).as_output("y"))
    data = np.arange(4 * N, dtype=np.float32).reshape(4, N)
    np.testing.assert_array_equal(part.run({"a": data})["y"].squeeze(), data[:3, 5:12] ** 2)


def test_memory_is_full(device: Backend) -> None:
    """A plan that does not fit is refused with sizes; what was begun is given back."""
    backend = webgpu(memory=1 << 16)
    x = weft.input("x", (256, N))
    with pytest.raises(weft.OutOfMemoryError, match="of 65536 bytes left"):
        session_of(backend, g.sqr(g.add(x, x)).as_output("y"))
    assert backend.memory_type.in_use == 0
    assert (doubled(backend).run({"x": ONES})["y"] == 2).all()


def test_sessions_that_end_while_work_runs(device: Backend) -> None:
    """What is enqueued outlives its session; the device goes on."""
    for _ in range(20):
        session = doubled(device)
        for executable in session.executables:
            executable.run({"n": 8})
        del session
    assert (doubled(device).run({"x": ONES})["y"] == 2).all()


def test_sessions_leave_nothing_on_the_device() -> None:
    """After 1,000 sessions there are the objects that there were after the first: buffers, bind
    groups and pipelines."""
    backend = webgpu()
    counts = pytest.importorskip("wgpu").diagnostics.object_counts
    x = weft.input("x", (weft.Sym("n", 1, 8), N))
    w = weft.constant(np.ones((N, N), np.float32), "w")
    program = compile(weft.Graph(g.soft_max(g.mul_mat(w, x)).as_output("y")), [_alone(backend)])

    def left() -> dict[str, Any]:
        gc.collect()
        return dict(counts.get_dict())

    for i in range(1001):
        session = Session(program)
        session.run({"x": np.ones((1 + i % 2, N), np.float32)})
        del session
        if i == 1:
            before = left()
    # what earlier tests left may go meanwhile
    grown = {k: v for k, v in left().items() if v["count"] > before[k]["count"]}
    assert not grown and backend.memory_type.in_use == 0
