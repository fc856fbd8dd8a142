"""Elementwise ops, INDEX and INDEX_PUT over many short rows, which kernels put together: any sizes,
repeated dimensions and gaps on every target, with no byte beside the result written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness import Operand, result, run_op, tensor
from numpy.typing import NDArray

from tests.targets import BUT_PRODUCTS
from weft.dtype import find_dtype
from weft.graph.ops import BinaryOp, BinaryParams, IndexParams, IndexPutParams
from weft.graph.params import pack

pytestmark = pytest.mark.parametrize("target", BUT_PRODUCTS)

WIDTHS = (1, 2, 3, 4, 5, 8, 13, 16, 17, 31, 63, 64, 65)
SHAPES = ((40, 1, 1), (7, 5, 3), (1, 9, 4), (300, 2, 1), (3, 1, 50))


def scattered(array: NDArray[Any], rng: np.random.Generator) -> Operand:
    """An operand `[i3, i2, i1, i0]` with gaps of whole elements behind some of its dimensions."""
    bytes_ = array.dtype.itemsize
    strides, step = [], bytes_ * int(rng.choice([1, 1, 1, 2]))
    for size in array.shape[::-1]:
        strides.append(step)
        step = step * size + bytes_ * int(rng.choice([0, 0, 3]))
    memory = np.zeros(step, np.uint8)
    np.lib.stride_tricks.as_strided(memory.view(array.dtype), array.shape, strides[::-1])[:] = array
    name = tensor(array[:0]).dtype
    return Operand(memory, name, array.shape[::-1], tuple(strides))


def numbers(dtype: str, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[Any]:
    """Whole numbers, whose sums and products every type here holds."""
    return rng.integers(-9, 10, shape).astype(find_dtype(dtype).storage)


def check_pair(
    op: str, record: Any, dtype: str, ne: tuple[int, ...], seed: int, target: str
) -> None:
    """a - b with layouts and repeated dimensions that the seed draws."""
    rng = np.random.default_rng(seed)
    repeated = tuple(1 if rng.random() < 0.4 else n for n in ne)
    a, b = numbers(dtype, ne[::-1], rng), numbers(dtype, repeated[::-1], rng)
    dst = scattered(np.zeros(ne[::-1], find_dtype(dtype).storage), rng)
    dst.memory[:] = 0xFF
    sources = [scattered(a, rng), scattered(b, rng)]
    n_threads = int(rng.integers(1, 3))
    after = run_op(op, dst, sources, record, target, n_threads, whole=True)
    want = a - b
    np.testing.assert_array_equal(dst.read(after), want, err_msg=f"{ne} {repeated} {seed}")
    places = np.zeros(dst.memory.size, np.uint8)
    np.lib.stride_tricks.as_strided(places, (*want.shape, want.itemsize), (*dst.nb[::-1], 1))[:] = 1
    assert (after[places == 0] == 0xFF).all(), "a gap of the result was written"


@pytest.mark.parametrize("dtype", ["f32", "f16", "i8", "i16", "i32", "i64"])
def test_binary(target: str, dtype: str) -> None:
    record = pack(BinaryParams(BinaryOp.SUB))
    for seed, width in enumerate(WIDTHS):
        for number, rest in enumerate(SHAPES):
            check_pair("BINARY", record, dtype, (width, *rest), 100 * seed + number, target)


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_sub(target: str, dtype: str) -> None:
    for seed, width in enumerate(WIDTHS):
        for number, rest in enumerate(SHAPES):
            check_pair("SUB", (), dtype, (width, *rest), 100 * seed + number, target)


def test_in_place(target: str) -> None:
    rng = np.random.default_rng(3)
    a, b = numbers("f32", (1, 3, 90, 8), rng), numbers("f32", (1, 3, 90, 1), rng)
    x = scattered(a, rng)
    np.testing.assert_array_equal(run_op("SUB", x, [x, tensor(b)], (), target), a - b)


@pytest.mark.parametrize("dtype", ["i8", "f16", "f32", "i64"])
def test_rows_of_any_length_by_an_index(target: str, dtype: str) -> None:
    rng = np.random.default_rng(4)
    for width in (*range(1, 20), 31, 32, 33, 40, 63, 64, 65, 130):
        table = numbers(dtype, (1, 1, 11, width), rng)
        at = rng.integers(-11, 11, 70)
        record = pack(IndexParams(axes=2, rank=1, first=1))
        dst = result(dtype, (width, 70))
        got = run_op("INDEX", dst, [scattered(table, rng), tensor(at)], record, target, 2)
        np.testing.assert_array_equal(got[0, 0], table[0, 0, at])


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("dtype", ["i8", "f16", "f32", "i64"])
def test_rows_of_any_length_are_put(target: str, dtype: str, accumulate: bool) -> None:
    rng = np.random.default_rng(5)
    record = pack(IndexPutParams(axes=2, rank=1, first=1, accumulate=accumulate))
    for width in (*range(1, 20), 33, 65, 130):
        table = numbers(dtype, (1, 1, 50, width), rng)
        at = rng.integers(-9, 9, 40) if accumulate else rng.permutation(50)[:40]
        values = numbers(dtype, (1, 1, 40, width), rng)
        sources = [scattered(table, rng), scattered(values, rng), tensor(at)]
        got = run_op("INDEX_PUT", result(dtype, (width, 50)), sources, record, target, 2)
        want = table[0, 0].copy()
        if accumulate:
            np.add.at(want, at, values[0, 0])
        else:
            want[at] = values[0, 0]
        np.testing.assert_array_equal(got[0, 0], want)
