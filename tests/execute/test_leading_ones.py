"""Shapes of results: leading ones that were given stay, as in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from weft import graph as g
from weft.graph.format import format_graph
from weft.graph.text import parse_graph

torch = pytest.importorskip("torch")

RANDOM = np.random.default_rng(7)


def numbers(*shape: int) -> NDArray[np.float32]:
    return np.asarray(RANDOM.standard_normal(shape), np.float32)


def session_of(f: Callable[..., weft.Tensor], *shapes: tuple[int, ...]) -> weft.Session:
    inputs = [weft.input(f"x{i}", shape) for i, shape in enumerate(shapes)]
    return weft.Session(weft.compile(weft.Graph(f(*inputs).as_output("y"))))


@pytest.mark.parametrize(
    ("f", "shapes"),
    [
        (lambda x: x + 1, [(1, 32)]),
        (lambda x: 2 * x, [(1, 1, 8)]),
        (lambda x: -x, [()]),
        (lambda x: 1 - x, [(1,)]),
        (lambda x, y: x + y, [(32,), (1, 32)]),
        (lambda x, y: x - y, [(1, 32), (32,)]),
        (lambda x, y: x * y, [(1, 1), ()]),
        (lambda x, y: x / y, [(2, 1, 4), (1, 1, 1, 4)]),
        (lambda x, y: x @ y, [(1, 32), (32, 8)]),
        (lambda x, y: x @ y, [(32,), (32, 8)]),
        (lambda x, y: x @ y, [(4, 32), (32,)]),
        (lambda x, y: x @ y, [(1, 32), (32,)]),
        (lambda x, y: x @ y, [(1, 4, 32), (32, 8)]),
        (lambda x, y: x @ y, [(1, 1, 32), (1, 32, 8)]),
        (lambda x, y: x @ y, [(4, 32), (32, 1)]),
        (lambda x, y: x @ y, [(5, 1), (1, 7)]),
        (lambda x, y: x @ y, [(5, 1), (1, 1)]),
        (lambda x: x.T, [(1, 32)]),
        (lambda x: x.T, [(32, 1)]),
    ],
)
def test_operators_give_the_shapes_of_pytorch(
    f: Callable[..., Any], shapes: list[tuple[int, ...]]
) -> None:
    arrays = [numbers(*shape) for shape in shapes]
    session = session_of(f, *shapes)
    result = session.run({f"x{i}": array for i, array in enumerate(arrays)})["y"]
    wanted = f(*map(torch.from_numpy, arrays))
    assert result.shape == tuple(wanted.shape)
    np.testing.assert_allclose(result, wanted.numpy(), rtol=1e-4, atol=1e-4)
    said = ", ".join(map(str, wanted.shape))
    assert f"-> y f32 ({said});" in repr(session)


@pytest.mark.parametrize(
    ("f", "shape", "wanted"),
    [
        (lambda x: g.soft_max(x), (1, 8), (1, 8)),
        (lambda x: g.relu(x), (1, 1, 8), (1, 1, 8)),
        (lambda x: g.sum_rows(x), (1, 8), (1, 1)),
        (lambda x: g.sum(x), (1, 8), (1,)),
        (lambda x: g.argmax(x), (1, 8), (1,)),
        (lambda x: g.reshape(x, 8, 1), (8,), (1, 8)),
        (lambda x: g.reshape(x, 8), (1, 8), (8,)),
        (lambda x: g.cont(x), (1, 1, 8), (1, 1, 8)),
        (lambda x: g.view(x, (8, 1, 1)), (8,), (1, 1, 8)),
        (lambda x: g.reshape_like(x, weft.input("o", (1, 8))), (8,), (1, 8)),
        (lambda x: g.mul_mat(weft.constant(numbers(3, 8)), x), (1, 8), (1, 3)),
        (lambda x: g.mul_mat(weft.constant(numbers(3, 8)), x), (8,), (3,)),
    ],
)
def test_ops_keep_the_dimensions_of_the_source_with_the_most(
    f: Callable[..., Any], shape: tuple[int, ...], wanted: tuple[int, ...]
) -> None:
    x = weft.input("x", shape)
    assert f(x).shape == wanted
    session = weft.Session(weft.compile(weft.Graph(f(x).as_output("y"))))
    result = session.run({"x": numbers(*shape)} | _others(session))["y"]
    assert result.shape == wanted


def _others(session: weft.Session) -> dict[str, NDArray[np.float32]]:
    return {name: numbers(1, 8) for name in session.program.inputs if name != "x"}


@pytest.mark.parametrize(("shape", "wanted"), [((1,), (1, 4)), ((1, 1), (1, 1, 4)), ((), (4,))])
def test_rows_that_are_looked_up(shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    table = numbers(5, 4)
    ids = weft.input("ids", shape, "i32")
    y = g.get_rows(weft.constant(table), ids).as_output("y")
    session = weft.Session(weft.compile(weft.Graph(y)))
    assert session.run({"ids": np.full(shape, 2, np.int32)})["y"].shape == wanted


def test_states_and_inputs_keep_theirs() -> None:
    total = weft.state("total", (1, 4))
    x = weft.input("x", (1, 4))
    y = (total + x).as_output("y")
    session = weft.Session(weft.compile(weft.Graph(y, g.cpy(y, total))))
    assert session.run({"x": np.ones(4, np.float32)})["y"].shape == (1, 4)  # leading ones are free
    assert session.state("total").read().shape == (1, 4)
    assert "x f32 (1, 4)" in repr(session.program)
    with pytest.raises(weft.ProgramError, match=r"wants \(1, 4\) of f32"):
        session.run({"x": np.ones((2, 4), np.float32)})


def test_a_graph_as_text_keeps_them() -> None:
    graph = weft.Graph((weft.input("x", (1, 4)) * 2).as_output("y"))
    again = parse_graph(format_graph(graph))
    assert again.outputs["y"].shape == (1, 4) and again.inputs["x"].shape == (1, 4)


def test_symbolic_sizes_of_one_stay_as_before() -> None:
    n = weft.Sym("n", 1, 8)
    y = (weft.input("x", (1, n, 4)) + 1).as_output("y")
    session = weft.Session(weft.compile(weft.Graph(y)))
    for rows in (1, 3):
        assert session.run({"x": numbers(1, rows, 4)})["y"].shape == (1, rows, 4)


def test_modules_of_pytorch_say_their_shapes() -> None:
    module = weft.from_torch(torch.nn.Linear(4, 3).eval(), torch.zeros(1, 4))
    assert "(1, 4)" in repr(module) and "(1, 3)" in repr(module)
    assert module(torch.zeros(1, 4)).shape == (1, 3)
