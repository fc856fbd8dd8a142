"""MAP, BINARY and REDUCE on every target: accuracy in units of the last place, special values, and
results that do not depend on the number of threads."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from harness import result, run_op, tensor
from numpy.typing import NDArray

from tests.targets import BUT_PRODUCTS
from weft.graph.ops import (
    ArgReduceParams,
    BinaryOp,
    BinaryParams,
    MapOp,
    MapParams,
    ReduceOp,
    ReduceParams,
    ScatterParams,
)
from weft.graph.params import pack

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

pytestmark = pytest.mark.parametrize("target", BUT_PRODUCTS)

SPECIAL = np.float32(
    [
        *(0, -0.0, 1, -1, 0.5, -0.5, 2, -2, 3, -3, 1e-40, -1e-40, 88, 1e5, -1e5, 3e38, -3e38),
        *(16777216, -16777217, math.inf, -math.inf, math.nan),
    ]
)


def ulps(got: F32, want: F64, least: float = 0.0) -> float:
    """The largest distance in units of the last place of the right answer, of `least` at least."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        nearest = want.astype(np.float32)
    finite = np.isfinite(nearest)
    np.testing.assert_array_equal(got[~finite], nearest[~finite])
    step = np.spacing(np.maximum(np.abs(nearest[finite]), np.float32(least))).astype(np.float64)
    return float(np.max(np.abs(got[finite] - want[finite]) / step))


def mapped(op: MapOp, x: F32, target: str, *parameters: float) -> F32:
    record = pack(MapParams(op, *parameters))
    return run_op("MAP", result("f32", (x.size,)), [tensor(x)], record, target, 2).reshape(-1)


def paired(op: BinaryOp, a: F32, b: F32, target: str) -> F32:
    record = pack(BinaryParams(op))
    dst = result("f32", (a.size,))
    return run_op("BINARY", dst, [tensor(a), tensor(b)], record, target, 2).reshape(-1)


def arguments(low: float, high: float) -> F32:
    rng = np.random.default_rng(5)
    spread = 10.0 ** rng.uniform(-30, 4, 20_000) * rng.choice([-1, 1], 20_000)
    x = np.concatenate([rng.uniform(low, high, 40_000), rng.normal(0, 1, 40_000), spread])
    return x[(x > low) & (x < high)].astype(np.float32)


MAPS: list[tuple[MapOp, Callable[[F64], F64], float, float]] = [
    (MapOp.EXP2, np.exp2, -160, 140),
    (MapOp.LOG2, np.log2, 0, 1e4),
    (MapOp.LOG10, np.log10, 0, 1e4),
    (MapOp.LOG1P, np.log1p, -0.999, 1e4),
    (MapOp.TAN, np.tan, -1e3, 1e3),
    (MapOp.ASIN, np.arcsin, -1, 1),
    (MapOp.ACOS, np.arccos, -1, 1),
    (MapOp.ATAN, np.arctan, -1e4, 1e4),
    (MapOp.SINH, np.sinh, -90, 90),
    (MapOp.COSH, np.cosh, -90, 90),
    (MapOp.ASINH, np.arcsinh, -1e4, 1e4),
    (MapOp.ACOSH, np.arccosh, 1, 1e4),
    (MapOp.ATANH, np.arctanh, -1, 1),
    (MapOp.ROUND_EVEN, np.rint, -1e4, 1e4),
]


@pytest.mark.parametrize(("op", "exact", "low", "high"), MAPS)
def test_maps_are_good_to_four_ulp(
    op: MapOp, exact: Callable[[F64], F64], low: float, high: float, target: str
) -> None:
    x = arguments(low, high)
    with np.errstate(all="ignore"):
        want = exact(x.astype(np.float64))
    assert ulps(mapped(op, x, target), want) <= 4


@pytest.mark.parametrize(("op", "exact", "low", "high"), MAPS)
def test_maps_of_special_values(
    op: MapOp, exact: Callable[[F64], F64], low: float, high: float, target: str
) -> None:
    got = mapped(op, SPECIAL, target)
    with np.errstate(all="ignore"):
        want = exact(SPECIAL.astype(np.float64))
    assert ulps(got, want) <= 4
    zero = want == 0
    np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(want[zero]))


@pytest.mark.parametrize(("op", "exact"), [("SIN", np.sin), ("COS", np.cos)])
def test_sines_of_any_angle(op: str, exact: Callable[[F64], F64], target: str) -> None:
    rng = np.random.default_rng(6)
    turns = (np.arange(1, 60_000) * (math.pi / 2)).astype(np.float32)  # next to the zeros
    huge = 10.0 ** rng.uniform(4, 38, 20_000)
    x = np.concatenate([arguments(-1e4, 1e4), turns, -turns, huge.astype(np.float32), SPECIAL])
    with np.errstate(all="ignore"):
        want = exact(x.astype(np.float64))
    got = run_op(op, result("f32", (x.size,)), [tensor(x)], [], target, 2).reshape(-1)
    # beside a zero the error is of the angle's last place that the reduction keeps
    assert ulps(got, want, least=1e-4) <= 3
    assert ulps(got[np.abs(x) < 100], want[np.abs(x) < 100]) <= 3


def test_powers(target: str) -> None:
    rng = np.random.default_rng(7)
    a = np.concatenate([10.0 ** rng.uniform(-44, 38, 40_000), 1 + rng.normal(0, 1e-3, 40_000)])
    b = np.concatenate([rng.normal(0, 3, 40_000), rng.normal(0, 1e4, 40_000)])
    whole = rng.integers(-20, 20, 20_000)
    a = np.concatenate([a, rng.normal(0, 3, 20_000)]).astype(np.float32)
    b = np.concatenate([b, whole]).astype(np.float32)
    with np.errstate(all="ignore"):
        want = np.power(a.astype(np.float64), b.astype(np.float64))
    assert ulps(paired(BinaryOp.POW, a, b, target), want) <= 1


@pytest.mark.parametrize(("op", "exact"), [(BinaryOp.POW, np.power), (BinaryOp.ATAN2, np.arctan2)])
def test_pairs_of_special_values(op: BinaryOp, exact: Any, target: str) -> None:
    a, b = (m.reshape(-1) for m in np.meshgrid(SPECIAL, SPECIAL))
    with np.errstate(all="ignore"):
        want = exact(a.astype(np.float64), b.astype(np.float64))
        nearest = want.astype(np.float32)
    got = paired(op, a, b, target)
    assert ulps(got, want) <= 2
    zero = nearest == 0
    np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(nearest[zero]))


def test_arcs_of_pairs(target: str) -> None:
    rng = np.random.default_rng(8)
    a, b = (10.0 ** rng.uniform(-9, 9, 50_000) * rng.choice([-1, 1], 50_000) for _ in range(2))
    a, b = a.astype(np.float32), b.astype(np.float32)
    want = np.arctan2(a.astype(np.float64), b.astype(np.float64))
    assert ulps(paired(BinaryOp.ATAN2, a, b, target), want) <= 4


@pytest.mark.parametrize("shape", [(1, 300_000), (3, 70_000), (40, 5_000)])
@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.MEAN, ReduceOp.PROD, ReduceOp.MAX])
def test_reductions_are_the_same_with_any_threads(
    op: ReduceOp, shape: tuple[int, int], target: str
) -> None:
    x = np.random.default_rng(9).uniform(0.99, 1.01, shape).astype(np.float32)
    record = pack(ReduceParams(op, 1))
    outs = [
        run_op("REDUCE", result("f32", (1, shape[0])), [tensor(x)], record, target, n).tobytes()
        for n in (1, 2, 3, 5)
    ]
    assert len(set(outs)) == 1
    exact = {"SUM": np.sum, "MEAN": np.mean, "PROD": np.prod, "MAX": np.max}[op.name]
    want = exact(x.astype(np.float64), axis=1)
    np.testing.assert_allclose(np.frombuffer(outs[0], np.float32), want, rtol=1e-4)


def test_added_lines_are_the_same_with_any_threads(target: str) -> None:
    rng = np.random.default_rng(10)
    x, source = (rng.normal(size=n).astype(np.float32) for n in (20_000, 50_000))
    at = rng.integers(-20_000, 20_000, 50_000)
    record = pack(ScatterParams(0, 1))
    want = x.copy()
    np.add.at(want, at, source)
    for n in (1, 2, 3, 5):
        sources = [tensor(x), tensor(at), tensor(source)]
        got = run_op("SCATTER", result("f32", (20_000,)), sources, record, target, n)
        np.testing.assert_array_equal(got.reshape(-1), want)


@pytest.mark.parametrize("rows", [(30, 1001), (1, 90_001)])
def test_the_first_of_equals_is_found(rows: tuple[int, int], target: str) -> None:
    rng = np.random.default_rng(11)
    x = rng.integers(-50, 50, rows).astype(np.float32)
    for largest, exact in ((True, np.argmax), (False, np.argmin)):
        record = pack(ArgReduceParams(largest, -1))
        for n in (1, 3):
            got = run_op("ARG_REDUCE", result("i64", (1,)), [tensor(x)], record, target, n)
            assert got.item() == exact(x)
