"""Sessions: NumPy in and out, symbols from shapes, clear errors, every device list."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from weft import graph as g

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
