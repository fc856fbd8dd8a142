"""`+ - * / @` of tensors mean what they mean in PyTorch, which NumPy shares but for types."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from weft import graph as g
from weft.errors import ArgumentError, GraphError

RNG = np.random.default_rng(3)
ARITHMETIC = [operator.add, operator.sub, operator.mul, operator.truediv]


def run(result: weft.Tensor, device: str = "reference", **inputs: Any) -> Any:
    session = weft.Session(weft.compile(weft.Graph(result.as_output("y")), [device]))
    return session.run(inputs)["y"]


def values(*shape: int) -> Any:
    return RNG.uniform(0.5, 2, shape).astype(np.float32)


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("op", ARITHMETIC)
@pytest.mark.parametrize(
    ("a", "b"),
    [((3, 4), (3, 4)), ((3, 4), (4,)), ((4,), (3, 4)), ((3, 1), (1, 4)), ((2, 3, 4), (3, 1))],
)  # fmt: skip
def test_arithmetic_broadcasts_on_both_sides(
    op: Callable[[Any, Any], Any], a: tuple[int, ...], b: tuple[int, ...], device: str
) -> None:
    x, y = values(*a), values(*b)
    got = run(op(weft.input("a", a), weft.input("b", b)), device, a=x, b=y)
    np.testing.assert_allclose(got, op(x, y), rtol=1e-6)


@pytest.mark.parametrize("op", ARITHMETIC)
def test_numbers_on_either_side(op: Callable[[Any, Any], Any]) -> None:
    x = values(3, 4)
    np.testing.assert_allclose(run(op(weft.input("a", (3, 4)), 3), a=x), op(x, 3), rtol=1e-6)
    np.testing.assert_allclose(run(op(2.5, weft.input("a", (3, 4))), a=x), op(2.5, x), rtol=1e-6)
    np.testing.assert_allclose(run(-weft.input("a", (3, 4)), a=x), -x)


def test_symbolic_sizes() -> None:
    n = weft.Sym("n", 1, 8)
    a, b = weft.input("a", (n, 4)), weft.input("b", (n, 1))
    x, y = values(5, 4), values(5, 1)
    np.testing.assert_allclose(run((a + b) * a - 1, a=x, b=y), (x + y) * x - 1, rtol=1e-6)


def test_tiles_of_ggml_are_no_broadcast() -> None:
    with pytest.raises(GraphError, match="sizes differ in dimension 0"):
        weft.input("a", (3, 4)) + weft.input("b", (2,))


def test_types_must_agree() -> None:
    a = weft.input("a", (4,))
    with pytest.raises(GraphError, match="must have one type; use convert"):
        a + weft.input("b", (4,), "f16")
    for other in (np.ones(4, np.float32), "b", None):
        with pytest.raises(ArgumentError, match=r"wrap arrays in weft\.constant\(\)"):
            a + other  # type: ignore[operator]
        with pytest.raises(ArgumentError, match=r"wrap arrays in weft\.constant\(\)"):
            other @ a


def test_integers() -> None:
    x = np.array([[1, -2], [3, 4]], np.int32)
    a = weft.input("a", (2, 2), "i32")
    np.testing.assert_array_equal(run(a * 3 + a, a=x), x * 4)
    with pytest.raises(ArgumentError, match=r"0\.5 does not fit i32"):
        a * 0.5


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize(
    ("a", "b"),
    [((3, 4), (4, 5)), ((1, 4), (4, 5)), ((4,), (4, 5)), ((3, 4), (4,)), ((2, 3, 4), (4, 5)),
     ((3, 4), (2, 4, 5)), ((2, 3, 4), (2, 4, 5)), ((2, 1, 3, 4), (1, 3, 4, 5)), ((3, 1), (1, 5))],
)  # fmt: skip
def test_matrix_products(a: tuple[int, ...], b: tuple[int, ...], device: str) -> None:
    x, y = values(*a), values(*b)
    product = weft.input("a", a) @ weft.input("b", b)
    want = x @ y
    got = run(product, device, a=x, b=y)
    np.testing.assert_allclose(got, want.reshape(got.shape), rtol=1e-5)
    assert got.size == want.size


def test_a_transposed_weight_is_used_in_place() -> None:
    w = values(5, 4)
    product = weft.input("a", (3, 4)) @ weft.constant(w, "w").T
    graph = weft.Graph(product)
    assert [node.op.name for node in graph.nodes if not node.op.is_view] == ["MUL_MAT"]
    x = values(3, 4)
    np.testing.assert_allclose(run(product, a=x), x @ w.T, rtol=1e-6)


def test_products_that_do_not_fit() -> None:
    with pytest.raises(GraphError, match="the last size of a must be the last but one of b"):
        weft.input("a", (3, 4)) @ weft.input("b", (3, 5))
    with pytest.raises(GraphError, match="sizes differ in dimension 2"):
        weft.input("a", (2, 3, 4)) @ weft.input("b", (3, 4, 5))


def test_constants_of_doubles() -> None:
    x = weft.input("x", (2, 4))
    with pytest.raises(GraphError, match=r"w must be f32.*\.astype\('float32'\) \(w f64"):
        g.mul_mat(weft.constant(np.ones((3, 4)), "w"), x)
    assert weft.constant([[1.0, 2.0]]).dtype.name == "f32", "Python's floats are no choice of f64"
    assert weft.constant([1, 2]).dtype.name == "i64"
