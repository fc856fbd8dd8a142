"""Elementwise ops and their vector functions: accuracy, special values, broadcasting, long rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from harness import Operand, refusal, result, run_op, tensor
from numpy.typing import NDArray

from tests.targets import BUT_PRODUCTS
from weft import quants
from weft.graph.ops import (
    ClampParams,
    FillParams,
    GluOp,
    GluParams,
    LeakyReluParams,
    ScaleParams,
    UnaryOp,
    UnaryParams,
)
from weft.graph.params import pack

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

INF, NAN = math.inf, math.nan

pytestmark = pytest.mark.parametrize("target", BUT_PRODUCTS)


def apply(op: str, x: F32, target: str, params: list[float] | None = None) -> F32:
    got = run_op(op, result("f32", (x.size,)), [tensor(x)], params or [], target, 2)
    return got.reshape(-1)


def unary(function: UnaryOp, x: F32, target: str) -> F32:
    return apply("UNARY", x, target, pack(UnaryParams(function)))


def ulps(got: F32, want: F64) -> float:
    """The largest distance in units of the last place of the right answer."""
    with np.errstate(over="ignore", under="ignore"):
        nearest = want.astype(np.float32)
    finite = np.isfinite(nearest)
    np.testing.assert_array_equal(got[~finite], nearest[~finite])
    step = np.spacing(np.abs(nearest[finite])).astype(np.float64)
    return float(np.max(np.abs(got[finite] - want[finite]) / step))


def arguments(low: float, high: float) -> F32:
    rng = np.random.default_rng(5)
    spread = 10.0 ** rng.uniform(-30, 2, 20_000) * rng.choice([-1, 1], 20_000)
    x = np.concatenate([rng.uniform(low, high, 40_000), rng.normal(0, 1, 40_000), spread])
    return x[(x > low) & (x < high)].astype(np.float32)


def sigmoid(x: F64) -> F64:
    return np.where(x < 0, np.exp(x) / (1 + np.exp(x)), 1 / (1 + np.exp(-x)))


# From -88 on, exp(-x) is finite in float32, as the C form of sigmoid needs it.
FUNCTIONS: list[tuple[UnaryOp, Callable[[F64], F64], float, float]] = [
    (UnaryOp.EXP, np.exp, -104, 90),
    (UnaryOp.EXPM1, np.expm1, -104, 90),
    (UnaryOp.TANH, np.tanh, -50, 50),
    (UnaryOp.SIGMOID, sigmoid, -88, 88),
    (UnaryOp.SILU, lambda x: x * sigmoid(x), -88, 88),
    (UnaryOp.SOFTPLUS, lambda x: np.log1p(np.exp(x)), -100, 20),
    (UnaryOp.ELU, lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))), -104, 90),
]


@pytest.mark.parametrize(("function", "exact", "low", "high"), FUNCTIONS)
def test_functions_are_good_to_three_ulp(
    function: UnaryOp, exact: Callable[[F64], F64], low: float, high: float, target: str
) -> None:
    x = arguments(low, high)
    with np.errstate(over="ignore", under="ignore"):
        want = exact(x.astype(np.float64))
    assert ulps(unary(function, x, target), want) <= 3


def test_log_is_good_to_one_ulp(target: str) -> None:
    rng = np.random.default_rng(6)
    x = np.concatenate([10.0 ** rng.uniform(-44, 38.4, 50_000), 1 + rng.normal(0, 0.01, 50_000)])
    x = x[x > 0].astype(np.float32)
    assert ulps(apply("LOG", x, target), np.log(x.astype(np.float64))) <= 1


def test_gelu_forms(target: str) -> None:
    x = arguments(-9.9, 9.9)
    wide = x.astype(np.float64)
    got = unary(UnaryOp.GELU_ERF, x, target)
    want = 0.5 * wide * (1 + np.vectorize(math.erf)(wide / math.sqrt(2)))
    # 1 + erf cancels on the negative side: the error is in proportion to x
    assert np.max(np.abs(got - want) / np.abs(wide)) < 2e-7
    tail = wide < -1
    exact = 0.5 * wide * np.vectorize(math.erfc)(-wide / math.sqrt(2))
    assert np.max(np.abs(got / exact - 1)[tail & (wide > -5)]) < 2e-5
    want = wide * sigmoid(2 * math.sqrt(2 / math.pi) * wide * (1 + 0.044715 * wide**2))
    got = unary(UnaryOp.GELU, x, target)
    assert np.max(np.abs(got - want) / np.abs(wide)) < 2e-7


@pytest.mark.parametrize(
    ("function", "of_inf", "of_minus_inf", "of_nan"),
    [
        (UnaryOp.EXP, INF, 0, NAN),
        (UnaryOp.EXPM1, INF, -1, NAN),
        (UnaryOp.TANH, 1, -1, NAN),
        (UnaryOp.SIGMOID, 1, 0, NAN),
        (UnaryOp.SOFTPLUS, INF, 0, NAN),
        (UnaryOp.ELU, INF, -1, NAN),
        (UnaryOp.GELU, INF, 0, NAN),
        (UnaryOp.GELU_ERF, INF, NAN, NAN),
        (UnaryOp.SILU, INF, NAN, NAN),
        (UnaryOp.HARDSWISH, INF, NAN, NAN),
        (UnaryOp.HARDSIGMOID, 1, 0, 0),
        (UnaryOp.RELU, INF, 0, 0),
        (UnaryOp.SGN, 1, -1, 0),
        (UnaryOp.STEP, 1, 0, 0),
        (UnaryOp.ABS, INF, INF, NAN),
        (UnaryOp.FLOOR, INF, -INF, NAN),
        (UnaryOp.ROUND, INF, -INF, NAN),
    ],
)
def test_special_values(
    function: UnaryOp, of_inf: float, of_minus_inf: float, of_nan: float, target: str
) -> None:
    got = unary(function, np.float32([INF, -INF, NAN]), target)
    np.testing.assert_array_equal(got, np.float32([of_inf, of_minus_inf, of_nan]))


def test_log_of_what_has_none(target: str) -> None:
    got = apply("LOG", np.float32([0, -0.0, -1, INF, NAN]), target)
    np.testing.assert_array_equal(got, np.float32([-INF, -INF, NAN, INF, NAN]))


@pytest.mark.parametrize(
    ("function", "exact"),
    [
        (UnaryOp.FLOOR, np.floor),
        (UnaryOp.CEIL, np.ceil),
        (UnaryOp.TRUNC, np.trunc),
        (UnaryOp.ROUND, lambda x: np.trunc(x.astype(np.float64) + np.copysign(0.5, x))),
    ],
)
def test_rounding_is_exact(function: UnaryOp, exact: Any, target: str) -> None:
    rng = np.random.default_rng(7)
    halves = np.arange(-20, 20) / 2
    edges = [0.49999997, -0.49999997, 8388607.5, -8388607.5, 8388609, 3e38, -3e38, 1e-45]
    x = np.concatenate([rng.normal(0, 1e3, 5000), halves, edges]).astype(np.float32)
    np.testing.assert_array_equal(unary(function, x, target), exact(x))


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_every_16_bit_number_passes_unchanged(dtype: str, target: str) -> None:
    bits = np.arange(65536, dtype=np.uint16)
    stored = bits.view(np.float16) if dtype == "f16" else bits
    got = run_op("SCALE", result(dtype, (65536,)), [tensor(stored, dtype)], [1, 0], target, 2)
    want, got = (quants.from_storage(a.reshape(-1), dtype) for a in (stored, got))
    np.testing.assert_array_equal(got, want)


def test_sixteen_bit_results_round_to_nearest_even(target: str) -> None:
    rng = np.random.default_rng(8)
    x = (10.0 ** rng.uniform(-9, 6, 5001)).astype(np.float32)
    zero = np.zeros(5001, np.float32)
    got = run_op("ADD", result("f16", (5001,)), [tensor(x), tensor(zero)], target=target)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got.reshape(-1), x.astype(np.float16))
    got = run_op("ADD", result("bf16", (5001,)), [tensor(x), tensor(zero)], target=target)
    bits = x.view(np.uint32)
    np.testing.assert_array_equal(got.reshape(-1), (bits + 0x7FFF + (bits >> 16 & 1)) >> 16)


@pytest.mark.parametrize("n_b", [1, 7, 1001, 1430, 10010])
@pytest.mark.parametrize("op", ["ADD", "SUB", "MUL", "DIV"])
def test_broadcast_along_long_rows(op: str, n_b: int, target: str) -> None:
    rng = np.random.default_rng(9)
    a = rng.normal(size=(3, 10010)).astype(np.float32)
    b = rng.uniform(1, 2, size=(1, n_b)).astype(np.float32)
    exact = {"ADD": np.add, "SUB": np.subtract, "MUL": np.multiply, "DIV": np.divide}[op]
    got = run_op(op, result("f32", (10010, 3)), [tensor(a), tensor(b)], [], target, 3)
    np.testing.assert_array_equal(got[0, 0], exact(a, np.tile(b, (1, 10010 // n_b))))


IN_PLACE: list[tuple[str, list[float]]] = [
    ("ADD", []),
    ("MUL", []),
    ("SCALE", pack(ScaleParams(3, 1))),
    ("SQR", []),
    ("CLAMP", pack(ClampParams(-0.5, 0.5))),
    ("LEAKY_RELU", pack(LeakyReluParams(0.1))),
    ("UNARY", pack(UnaryParams(UnaryOp.SILU))),
    ("GLU", pack(GluParams(GluOp.SWIGLU))),
]


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize(("op", "params"), IN_PLACE)
def test_in_place_over_either_source(op: str, params: list[float], dtype: str, target: str) -> None:
    rng = np.random.default_rng(10)
    n_src = 2 if op in ("ADD", "MUL", "GLU") else 1
    kind = np.float32 if dtype == "f32" else np.float16
    arrays = [rng.normal(size=(5, 1037)).astype(kind) for _ in range(n_src)]
    want = run_op(op, result(dtype, (1037, 5)), [tensor(a) for a in arrays], params, target)
    for i in range(n_src):
        sources = [tensor(a) for a in arrays]
        got = run_op(op, sources[i], sources, params, target, 3)
        np.testing.assert_array_equal(got, want)


def test_strided_source_and_result(target: str) -> None:
    x = np.random.default_rng(11).normal(size=(40, 30)).astype(np.float32)
    across = Operand(x.reshape(-1).view(np.uint8), "f32", (40, 30), (120, 4, 4800, 4800))
    dst = result("f32", (40, 30), (8, 320, 9600, 9600))
    got = run_op("UNARY", dst, [across], pack(UnaryParams(UnaryOp.NEG)), target)
    np.testing.assert_array_equal(got[0, 0], -x.T)


def test_fill_and_clamp_of_nan(target: str) -> None:
    x = tensor(np.full(1029, NAN, np.float32))
    got = run_op("FILL", result("f32", (1029,)), [x], pack(FillParams(2.5)), target)
    assert (got == 2.5).all()
    got = run_op("CLAMP", result("f32", (1029,)), [x], pack(ClampParams(-1, 1)), target)
    assert (got == 1).all()


def test_add_id_of_a_missing_row_is_nan(target: str) -> None:
    a, b = tensor(np.ones((1, 2, 8), np.float32)), tensor(np.ones((3, 8), np.float32))
    ids = tensor(np.int32([[2, 3]]))
    got = run_op("ADD_ID", result("f32", (8, 2, 1)), [a, b, ids], [], target)
    assert (got[0, 0, 0] == 2).all()
    assert np.isnan(got[0, 0, 1]).all()


@pytest.mark.parametrize("dtype", ["q4_0", "q8_0", "q6_K"])
def test_adding_to_blocks(dtype: str, target: str) -> None:
    rng = np.random.default_rng(12)
    a = quants.encode(rng.normal(size=(3, 2048)).astype(np.float32), dtype)
    b = rng.normal(size=(1, 2048)).astype(np.float32)
    want = (quants.decode(a, dtype, 2048) + b).astype(np.float32)
    sources = [tensor(a, dtype), tensor(b)]
    got = run_op("ADD", result("f32", (2048, 3)), sources, [], target, 2)
    np.testing.assert_allclose(got[0, 0], want, rtol=1e-6, atol=1e-6)
    blocks = run_op("ADD", sources[0], sources, [], target, 2)
    back = quants.decode(blocks[0, 0], dtype, 2048)
    assert np.mean((back - want) ** 2) / np.mean(want**2) < 0.02


F32_ROW = tensor(np.ones(8, np.float32))
I32_ROW = tensor(np.ones(8, np.int32))


@pytest.mark.parametrize(
    ("op", "dst", "src", "params", "words"),
    [
        ("ADD", result("f32", (8,)), [F32_ROW, I32_ROW], [], "second source"),
        ("ADD", result("f32", (8,)), [I32_ROW, F32_ROW], [], "first source"),
        ("ADD", result("f32", (9,)), [F32_ROW, F32_ROW], [], "shape"),
        ("SCALE", result("f32", (8,)), [F32_ROW], [], "parameters"),
        ("SQRT", result("i32", (8,)), [F32_ROW], [], "f32, f16 or bf16"),
        ("UNARY", result("f32", (8,)), [F32_ROW], [99, 0, 0, 0, 0], "function"),
        ("GLU", result("f32", (8,)), [F32_ROW], [2, 0, 0, 0], "twice as long"),
        ("GLU", result("f32", (4,)), [F32_ROW], [9, 0, 0, 0], "unknown activation"),
        ("ADD_ID", result("f32", (8,)), [F32_ROW, F32_ROW, F32_ROW], [], "i32"),
    ],
)
def test_refusals(
    op: str, dst: Operand, src: list[Operand], params: list[float], words: str, target: str
) -> None:
    assert words in str(refusal(op, dst, src, params, target))
