"""Sessions: NumPy in and out, symbols from shapes, clear errors, every device list."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import weft
from tests.execute.stub_devices import Device, cpu
from weft import graph as g
from weft import quants
from weft.backends.memory import HostMemory
from weft.backends.reference.memory import ReferenceMemory
from weft.dtype import find_dtype
from weft.execute import ArenaPool
from weft.graph.tensor import Buffer

DEVICES = [["cpu"], ["reference"], ["reference", "cpu"]]


def _mlp(n: weft.Sym, weights: tuple[np.ndarray, np.ndarray]) -> weft.Graph:
    x = weft.input("x", (n, 32))
    up = g.mul_mat(weft.constant(weights[0], "up"), x)
    down = g.mul_mat(weft.constant(weights[1], "down"), g.silu(up))
    return weft.Graph(g.add(down, x).as_output("y"))


@pytest.fixture
def weights() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    up = rng.standard_normal((48, 32)).astype(np.float32)
    down = rng.standard_normal((32, 48)).astype(np.float32)
    return up, down


@pytest.mark.parametrize("devices", DEVICES, ids=",".join)
def test_by_hand_graph(devices: list[str], weights: tuple[np.ndarray, np.ndarray]) -> None:
    session = weft.Session(weft.compile(_mlp(weft.Sym("n", 1, 16), weights), devices))
    rng = np.random.default_rng(1)
    for rows in (1, 7, 16, 2):  # sizes go up and down over the same plan
        x = rng.standard_normal((rows, 32)).astype(np.float32)
        h = x @ weights[0].T
        want = (h / (1 + np.exp(-h))) @ weights[1].T + x
        got = session.run({"x": x})["y"]
        assert got.shape == (rows, 32)
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


def test_assigned_nodes_cross_devices(weights: tuple[np.ndarray, np.ndarray]) -> None:
    graph = _mlp(weft.Sym("n", 1, 4), weights)
    silu = next(n for n in graph.nodes if n.op.name == "UNARY")
    program = weft.compile(graph, ["reference", "cpu"], assign={silu: 0})
    assert [s.device for s in program.splits] == ["cpu", "reference", "cpu"]
    session = weft.Session(program)
    x = np.ones((3, 32), np.float32)
    want = weft.Session(weft.compile(graph, ["cpu"])).run({"x": x})["y"]
    np.testing.assert_allclose(session.run({"x": x})["y"], want, rtol=1e-5, atol=1e-5)
    # the activations there and back again: 3 rows of 48 floats each way
    assert session.copied_bytes == 2 * 3 * 48 * 4


def test_errors_name_the_input(weights: tuple[np.ndarray, np.ndarray]) -> None:
    session = weft.Session(weft.compile(_mlp(weft.Sym("n", 1, 4), weights)))
    x = np.ones((3, 32), np.float32)
    with pytest.raises(weft.ProgramError, match=r"missing \['x'\]"):
        session.run({})
    with pytest.raises(weft.ProgramError, match=r"unknown \['z'\]"):
        session.run({"x": x, "z": x})
    with pytest.raises(weft.ProgramError, match=r"'x' has shape \(3, 31\), wants \(3, 32\)"):
        session.run({"x": x[:, :31]})
    with pytest.raises(weft.ProgramError, match="'x' has element type float64"):
        session.run({"x": x.astype(np.float64)})
    with pytest.raises(weft.ProgramError, match=r"symbol n is 5; .*1\.\.4"):
        session.run({"x": np.ones((5, 32), np.float32)})
    # and the session still works
    assert session.run({"x": x})["y"].shape == (3, 32)


def test_fast_path_views(weights: tuple[np.ndarray, np.ndarray]) -> None:
    session = weft.Session(weft.compile(_mlp(weft.Sym("n", 1, 4), weights)))
    x = np.random.default_rng(2).standard_normal((2, 32)).astype(np.float32)
    want = session.run({"x": x})["y"]
    session.input_view("x")[:64] = x.reshape(-1)
    session.upload("x")
    session.execute({"n": 2})
    np.testing.assert_array_equal(session.output_view("y")[:64].reshape(2, 32), want)


def test_outputs_in_block_types() -> None:
    x = weft.input("x", (2, 64))
    graph = weft.Graph(g.cast(x, "q8_0").as_output("q"))
    data = np.random.default_rng(3).standard_normal((2, 64)).astype(np.float32)
    outs = [weft.Session(weft.compile(graph, d)).run({"x": data})["q"] for d in (["cpu"],
            ["reference"])]  # fmt: skip
    assert outs[0].dtype == np.uint8 and outs[0].shape == (2, 68)
    np.testing.assert_array_equal(outs[0], outs[1])


def test_a_view_that_begins_elsewhere_with_every_size() -> None:
    """The last row of a symbolic input: its offset depends on the symbol."""
    n = weft.Sym("n", 1, 8)
    x = weft.input("x", (n, 4))
    rows = g.scale(x, 2.0)
    last = g.view_2d(rows, 4, 1, rows.nb[1], 16 * (n.size - 1)).as_output("last")
    session = weft.Session(weft.compile(weft.Graph(last), [cpu()]))
    for count in (8, 1, 5):
        data = np.arange(4 * count, dtype=np.float32).reshape(count, 4)
        np.testing.assert_array_equal(session.run({"x": data})["last"].reshape(4), 2 * data[-1])
    with pytest.raises(weft.ProgramError, match=r"'last' is a view that begins at byte .*output"):
        session.output_view("last")


def test_views_cross_devices_with_their_strides() -> None:
    x = weft.input("x", (weft.Sym("n", 1, 6), 8))
    doubled = g.scale(x, 2.0)
    half = g.view_2d(doubled, 4, x.ne[1], doubled.nb[1], 16)
    y = g.cont(g.transpose(half)).as_output("y")
    program = weft.compile(weft.Graph(y), [Device("gpu"), cpu()], assign={doubled: 1, y: 0})
    session = weft.Session(program)
    for count in (6, 1, 3):
        data = np.random.default_rng(count).standard_normal((count, 8)).astype(np.float32)
        got = session.run({"x": data})["y"].reshape(4, count)
        np.testing.assert_array_equal(got, 2 * data[:, 4:].T)
    # the rows that a view spans, from its first to its last element
    assert session.copied_bytes == sum(32 * (count - 1) + 16 for count in (6, 1, 3))


def test_no_rows_at_all() -> None:
    x = weft.input("x", (weft.Sym("n", 0, 4), 8))
    y = g.scale(x, 2.0).as_output("y")
    for devices in ([cpu()], [Device("gpu"), cpu()]):
        program = weft.compile(weft.Graph(y), devices, assign={y: devices[0]})
        session = weft.Session(program)
        for count in (0, 4, 0):
            assert session.run({"x": np.ones((count, 8), np.float32)})["y"].shape == (count, 8)


def test_weights_with_a_tail_cross_devices() -> None:
    """The scale of a ternary tensor lies behind its blocks."""
    weights = np.random.default_rng(0).choice([-0.5, 0.0, 0.5], (4, 128)).astype(np.float32)
    leaf = weft.Tensor(
        find_dtype("i2_s"),
        (128, 4, 1, 1),
        name="w",
        buffer=Buffer("weights", data=quants.encode_i2_s(weights.reshape(-1))),
    )
    y = g.mul_mat(leaf, weft.input("x", (3, 128))).as_output("y")
    after = g.scale(y, 1.0).as_output("after")
    gpu = Device("gpu")
    session = weft.Session(
        weft.compile(weft.Graph(after), [gpu, cpu()], assign={y: gpu, after: gpu})
    )
    x = np.random.default_rng(1).standard_normal((3, 128)).astype(np.float32)
    np.testing.assert_allclose(session.run({"x": x})["y"], x @ weights.T, rtol=1e-4, atol=1e-4)
    assert session.copied_bytes == quants.i2_s_bytes(512) + x.nbytes


def test_sent_weights_are_kept_as_long_as_they_are_used() -> None:
    """Two programs over one pool send a constant once; it is forgotten with the constant."""
    pool, gpu = ArenaPool(), Device("gpu", "CPU")
    leaf = weft.constant(np.ones((4, 8), np.float32), "w")
    for rows in (1, 2):
        y = g.mul_mat(leaf, weft.input("x", (rows, 8))).as_output("y")
        session = weft.Session(weft.compile(weft.Graph(y), [gpu]), pool)
        assert session.run({"x": np.ones((rows, 8), np.float32)})["y"].sum() == 32 * rows
        assert len(pool._sent) == 1
    del leaf, y, session
    gc.collect()
    assert not pool._sent


def test_direct_copies_are_used_where_a_memory_offers_them() -> None:
    gpu = Device("gpu")
    taken: list[int] = []

    class Direct(ReferenceMemory):
        def copy_from(self, offset: int, source: Any, source_offset: int, nbytes: int) -> bool:
            if nbytes > 100:
                return False
            self.write(offset, source.read(source_offset, nbytes))
            taken.append(nbytes)
            return True

    gpu.buffer_type.allocate = lambda n: Direct(HostMemory.zeros(n))  # type: ignore[method-assign]
    x, y = weft.input("x", (3, 8)), weft.input("y", (40,))
    doubled, tripled = g.scale(x, 2.0).as_output("a"), g.scale(y, 3.0).as_output("b")
    graph = weft.Graph(doubled, tripled)
    session = weft.Session(weft.compile(graph, [gpu, cpu()], assign={doubled: gpu, tripled: gpu}))
    out = session.run({"x": np.ones((3, 8), np.float32), "y": np.ones(40, np.float32)})
    assert out["a"].sum() == 48 and out["b"].sum() == 120
    assert taken == [96] and session.copied_bytes == 96 + 160


def test_missing_symbols_are_told() -> None:
    y = g.scale(weft.input("x", (weft.Sym("n", 1, 4), 4)), 2.0).as_output("y")
    session = weft.Session(weft.compile(weft.Graph(y), [cpu()]))
    with pytest.raises(weft.ProgramError, match="symbol n"):
        session.execute({})
    with pytest.raises(weft.ProgramError, match=r"symbol n is 7; .*1\.\.4"):
        session.execute({"n": 7})
