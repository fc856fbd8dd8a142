"""Norms, reductions, sorting, masks, padding: what the golden cases leave open."""

from __future__ import annotations

import numpy as np
import pytest
from golden import nmse
from harness import Operand, refusal, result, run_op, tensor

from tests.targets import BUT_PRODUCTS
from weft.graph.ops import (
    ArgsortParams,
    DiagMaskParams,
    EpsParams,
    GroupNormParams,
    PadParams,
    PadReflectParams,
    RollParams,
    ScaleMode,
    SortOrder,
    TopKParams,
    UpscaleParams,
)
from weft.graph.params import pack

pytestmark = pytest.mark.parametrize("target", BUT_PRODUCTS)


@pytest.mark.parametrize("n", [1, 3, 17, 1000, 1024, 5003])
@pytest.mark.parametrize("op", ["NORM", "RMS_NORM", "L2_NORM"])
def test_norms_of_rows_far_from_zero(op: str, n: int, target: str) -> None:
    x = (np.random.default_rng(1).normal(size=(3, n)) + 5).astype(np.float32)
    a = tensor(x)
    fresh = run_op(op, result("f32", (n, 3)), [a], pack(EpsParams(1e-5)), target, 2)
    again = run_op(op, a, [a], pack(EpsParams(1e-5)), target, 2)
    np.testing.assert_array_equal(fresh, again)
    y = x.astype(np.float64)
    if op == "NORM":
        y = y - y.mean(-1, keepdims=True)
    square = (y * y).mean(-1, keepdims=True)
    scale = np.sqrt(square * n) if op == "L2_NORM" else np.sqrt(square + 1e-5)
    # the mean is rounded to float32 once: 5 * 6e-8 against a deviation of 1
    assert nmse(fresh[0, 0], y / scale) < 1e-12


def test_norm_of_equal_elements_is_zero(target: str) -> None:
    x = np.full((2, 37), 1e4, np.float32)
    got = run_op("NORM", result("f32", (37, 2)), [tensor(x)], pack(EpsParams(0)), target)
    assert not np.isinf(got).any()
    got = run_op("NORM", result("f32", (37, 2)), [tensor(x)], pack(EpsParams(1e-5)), target)
    assert (got == 0).all()


def test_group_norm_of_an_uneven_last_group(target: str) -> None:
    x = np.random.default_rng(2).normal(size=(2, 5, 3, 40)).astype(np.float32)
    dst = result("f32", (40, 3, 5, 2))
    got = run_op("GROUP_NORM", dst, [tensor(x)], pack(GroupNormParams(2, 1e-6)), target, 2)
    want = np.empty(x.shape)
    for part in (slice(0, 3), slice(3, 5)):
        y = x[:, part].astype(np.float64)
        y = y - y.mean((1, 2, 3), keepdims=True)
        want[:, part] = y / np.sqrt((y * y).mean((1, 2, 3), keepdims=True) + 1e-6)
    assert nmse(got, want) < 1e-13


@pytest.mark.parametrize("n", [1, 2, 48, 49, 700, 70_000])
@pytest.mark.parametrize("order", SortOrder)
def test_sorting_is_stable_and_puts_nan_last(order: SortOrder, n: int, target: str) -> None:
    rng = np.random.default_rng(3)
    x = rng.integers(-50, 50, size=(3, n)).astype(np.float32)
    x[rng.random(x.shape) < 0.1] = np.nan
    x[rng.random(x.shape) < 0.1] = -0.0
    x[rng.random(x.shape) < 0.05] = np.inf
    dst = result("i32", (n, 3))
    got = run_op("ARGSORT", dst, [tensor(x)], pack(ArgsortParams(order)), target, 2)
    key = x if order is SortOrder.ASC else -x
    np.testing.assert_array_equal(got[0, 0], np.argsort(key, axis=-1, kind="stable"))


@pytest.mark.parametrize(("n", "k"), [(1, 1), (10, 10), (1000, 1), (1000, 40), (5000, 4999)])
def test_top_k(n: int, k: int, target: str) -> None:
    rng = np.random.default_rng(4)
    x = rng.integers(-99, 99, size=(2, n)).astype(np.float32)
    x[:, n // 2 :: 7] = np.nan
    got = run_op("TOP_K", result("i32", (k, 2)), [tensor(x)], pack(TopKParams(k)), target, 2)
    np.testing.assert_array_equal(got[0, 0], np.argsort(-x, axis=-1, kind="stable")[:, :k])


def test_argmax_takes_the_last_of_equals(target: str) -> None:
    x = np.float32([[1, 5, 5, 2], [-np.inf] * 4, [np.nan, 3, 1, np.nan], [0, -0.0, 0, -1]])
    got = run_op("ARGMAX", result("i32", (4,)), [tensor(x)], [], target)
    np.testing.assert_array_equal(got.reshape(-1), [2, 3, 1, 2])


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_sums_of_many(dtype: str, target: str) -> None:
    x = np.random.default_rng(5).normal(size=(3, 50_001)).astype(np.float32)
    x = x.astype(np.float16) if dtype == "f16" else x
    wide = x.astype(np.float64)
    rows = run_op("SUM_ROWS", result("f32", (1, 3)), [tensor(x)], [], target, 2)
    np.testing.assert_allclose(rows.reshape(-1), wide.sum(-1), rtol=1e-6, atol=1e-3)
    mean = run_op("MEAN", result("f32", (1, 3)), [tensor(x)], [], target, 2)
    np.testing.assert_allclose(mean.reshape(-1), wide.mean(-1), rtol=1e-6, atol=1e-7)
    total = run_op("SUM", result("f32", (1,)), [tensor(x)], [], target, 3)
    np.testing.assert_allclose(total.reshape(-1), wide.sum(), rtol=1e-6, atol=1e-3)
    single = tensor(x.astype(np.float32))
    running = run_op("CUMSUM", result("f32", (50_001, 3)), [single], [], target, 2)
    np.testing.assert_allclose(running[0, 0], wide.cumsum(-1), rtol=1e-6, atol=1e-4)


def test_diag_mask_in_place(target: str) -> None:
    a = tensor(np.ones((4, 6), np.float32))
    got = run_op("DIAG_MASK_INF", a, [a], pack(DiagMaskParams(1)), target)[0, 0]
    visible = np.tril(np.ones((4, 6), bool), 1)
    np.testing.assert_array_equal(got, np.where(visible, 1, -np.inf))


@pytest.mark.parametrize("dtype", ["f32", "f16", "i8", "i64"])
def test_moving_elements_of_any_type(dtype: str, target: str) -> None:
    kind = {"f32": np.float32, "f16": np.float16, "i8": np.int8, "i64": np.int64}[dtype]
    x = np.random.default_rng(6).integers(-99, 99, size=(2, 3, 4, 5)).astype(kind)
    a = tensor(x)
    left, right = (2, 0, 1, 0), (1, 3, 0, 1)
    widths = list(zip(left[::-1], right[::-1], strict=True))
    padded = (8, 7, 4, 3)
    got = run_op("PAD", result(dtype, padded), [a], pack(PadParams(left, right)), target, 2)
    np.testing.assert_array_equal(got, np.pad(x, widths))
    params = pack(PadParams(left, right, circular=True))
    got = run_op("PAD", result(dtype, padded), [a], params, target, 2)
    np.testing.assert_array_equal(got, np.pad(x, widths, mode="wrap"))
    got = run_op(
        "PAD_REFLECT_1D", result(dtype, (12, 4, 3, 2)), [a], pack(PadReflectParams(3, 4)), target
    )
    np.testing.assert_array_equal(got, np.pad(x, [(0, 0)] * 3 + [(3, 4)], mode="reflect"))
    shift = (3, -2, 7, -11)
    got = run_op("ROLL", result(dtype, (5, 4, 3, 2)), [a], pack(RollParams(shift)), target)
    np.testing.assert_array_equal(got, np.roll(x, shift[::-1], axis=(0, 1, 2, 3)))


@pytest.mark.parametrize("mode", ScaleMode)
def test_resampling_to_the_same_size_changes_nothing(mode: ScaleMode, target: str) -> None:
    x = np.random.default_rng(7).normal(size=(2, 6, 7)).astype(np.float32)
    dst = result("f32", (7, 6, 2))
    got = run_op("UPSCALE", dst, [tensor(x)], pack(UpscaleParams(mode)), target)
    np.testing.assert_allclose(got[0], x, rtol=1e-6)


def test_refusals(target: str) -> None:
    x = tensor(np.ones((4, 8), np.float32))
    whole = tensor(np.ones((4, 8), np.int32))

    def refused(op: str, dst: Operand, src: Operand, *params: float) -> str:
        return str(refusal(op, dst, [src], params, target))

    assert "f32" in refused("RMS_NORM", result("f32", (8, 4)), whole, 0)
    assert "group" in refused("GROUP_NORM", result("f32", (8, 4)), x, 0, 0)
    assert "remain" in refused("REDUCE", result("f32", (2,)), x, 0, 15)
    assert "remain" in refused("REDUCE", result("f32", (1, 3)), x, 0, 1)
    assert "i32" in refused("SORT_INDICES", result("f32", (8, 4)), x, 0, 0)
    assert "other sizes" in refused("SORT_INDICES", result("i32", (9, 4)), x, 0, 1)
    assert "index per row" in refused("ARGMAX", result("i32", (3,)), x)
    assert "triangle" in refused("TRI", result("f32", (8, 4)), x, 4)
    assert "square" in refused("DIAG", result("f32", (8, 8)), x)
    pad = (1, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    assert "other sizes" in refused("PAD_ND", result("f32", (8, 4)), x, *pad)
    assert "interpolation" in refused("INTERPOLATE", result("f32", (8, 4)), x, 9, 2, 0, 0, 0, 0)
    no_source = refusal("ARANGE", result("i32", (8,)), [], (0, 8, 1), target)
    assert "f32, f16 or bf16" in str(no_source)
