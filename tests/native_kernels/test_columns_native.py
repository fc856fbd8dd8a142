"""A column of a product does not depend on the columns beside it: the same bits alone and among
any number of others, wherever it stands, in every layout of the weights, on any number of threads.
"""

from __future__ import annotations

import numpy as np
import pytest
from golden import nmse
from harness import Operand, Refused, contiguous_nb, result, run_op, tensor
from numpy.typing import NDArray
from test_matmul_native import QUANTIZED, WEIGHT_TYPES, companion, has_bf16_products, weights

from tests.targets import TARGETS, in_turn
from weft import _native, quants
from weft.dtype import DTYPES
from weft.graph.ops import SoftMaxParams
from weft.graph.params import pack
from weft.program import LAYOUTS

MOST = 130
GROUPS = [(0, 1), (40, 1), (129, 1), (7, 2), (8, 3), (5, 4), (60, 6), (3, 7), (31, 8), (50, 9),
          (2, 12), (2, 13), (90, 17), (11, 32), (12, 33), (0, 64), (30, 100), (1, 129)]  # fmt: skip
"""First columns and numbers of them: among them those at which one kernel gives way to another."""


def packed(w: Operand, layout: str) -> Operand | None:
    """The weights in another layout; None where the type has none."""
    number = DTYPES[w.dtype].id
    k, rows = w.ne[:2]
    pool = _native.ThreadPool(1)
    try:
        if layout == "interleaved":
            memory = np.zeros_like(w.memory)
            _native.interleave(number, w.memory, memory, rows * w.ne[2], k, pool)
        else:
            memory = np.zeros(_native.lookup_bytes(number, rows, k), np.uint8)
            _native.make_lookup(number, w.memory, memory, rows, k, pool)
    except ValueError:
        return None
    return Operand(memory, w.dtype, w.ne, w.nb, layout=LAYOUTS.index(layout))


def activations(x: NDArray[np.float32], dtype: str) -> Operand:
    """Rows `[n, k]` as the activations of a product."""
    if dtype == "f32":
        return tensor(x)
    if dtype == "bf16":
        return tensor(quants.to_storage(np.ascontiguousarray(x), "bf16"), "bf16")
    return tensor(quants.encode_activation(x, dtype), dtype)


def product(w: Operand, x: Operand, target: str, n_threads: int = 1) -> NDArray[np.float32]:
    """`[n, rows]`"""
    dst = result("f32", (w.ne[1], x.ne[1]))
    return run_op("MUL_MAT", dst, [w, x], (), target, n_threads)[0, 0]


def assert_independent(
    w: Operand, x: NDArray[np.float32], dtype: str, target: str
) -> NDArray[np.float32]:
    """Checks all groups of columns and numbers of threads; returns all columns."""
    every = product(w, activations(x, dtype), target)
    np.testing.assert_array_equal(product(w, activations(x, dtype), target, 2), every)
    for first, n in GROUPS:
        some = activations(x[first : first + n], dtype)
        for n_threads in (1, 2):
            got = product(w, some, target, n_threads)
            np.testing.assert_array_equal(got, every[first : first + n], err_msg=f"{first}+{n}")
    return every


def columns(k: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((MOST, k)).astype(np.float32)


def without_twos(name: str, w: Operand) -> Operand:
    """tq2_0 can hold a 2, which no table has."""
    if name != "tq2_0":
        return w
    rng = np.random.default_rng(0)
    values = rng.integers(-1, 2, (w.ne[1], w.ne[0])).astype(np.float32)
    values *= rng.uniform(0.1, 2, (w.ne[1], 1)).astype(np.float32)
    return tensor(quants.encode(values, name), name)


@pytest.mark.parametrize(("name", "target"), in_turn(QUANTIZED))
def test_quantized_weights(name: str, target: str) -> None:
    """Whatever the layout, too."""
    w, _ = weights(name, 96, 1280 if name != "i2_s" else 1152)
    if name == "tq2_0":
        w = without_twos(name, w)
    x = columns(w.ne[0])
    want = assert_independent(w, x, companion(name), target)
    assert np.isfinite(want).all() and len(np.unique(want)) > want.size // 2
    for layout in ("interleaved", "lookup"):
        other = packed(w, layout)
        if other is None:
            continue
        try:
            got = assert_independent(other, x, companion(name), target)
        except Refused:
            continue  # this target multiplies rows only
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(("name", "target"), in_turn(WEIGHT_TYPES))
def test_weights_that_are_decoded(name: str, target: str) -> None:
    """Float weights, and others with float activations; rows that fill no panel."""
    w, _ = weights(name, 37, 1280)
    assert_independent(w, columns(1280), "f32", target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["q4_0", "q5_1", "q6_K", "tq1_0", "nvfp4"])
def test_rows_that_fill_no_panel(name: str, target: str) -> None:
    w, _ = weights(name, 45, 768)
    assert_independent(w, columns(768), companion(name), target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("k", [1, 31, 333, 1023, 1026, 2500])
def test_depths_of_floats(k: int, target: str) -> None:
    """Depths that fill no word, vector or slab; bf16 weights with bf16 columns."""
    x = columns(k)
    for name in ("f32", "f16", "bf16"):
        w, _ = weights(name, 45, k)
        assert_independent(w, x, "f32", target)
    assert_independent(w, x, "bf16", target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("k", [1, 2, 31, 1023, 1026, 2500, 4102])
@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
def test_depths_of_panels_of_floats(name: str, k: int, target: str) -> None:
    """Panels of floats are multiplied in parts that the caches hold; words of two are whole."""
    if DTYPES[name].id not in _native.interleaved_types(target):
        pytest.skip("the target has no panels of floats")
    if k % _native.interleaved_block(DTYPES[name].id):
        pytest.skip("rows of half a word are not repacked")
    rows, exact = weights(name, 96, k)
    w, x = packed(rows, "interleaved"), columns(k)
    assert w is not None
    pairs = name == "bf16" and has_bf16_products(target)
    for dtype in ("f32", "bf16") if pairs else ("f32",):
        seen = x if dtype == "f32" else quants.from_storage(quants.to_storage(x, "bf16"), "bf16")
        got = assert_independent(w, x, dtype, target)
        want = seen.astype(np.float64) @ exact.astype(np.float64).T
        # the processor's products of pairs round twice a word, of numbers that were rounded to 2e-6
        limit = 1e-11 if dtype == "f32" else 1e-10
        assert np.sum((got - want) ** 2) < limit * np.sum(want**2)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["f16", "bf16", "q8_0", "q4_K", "iq3_s", "tq2_0"])
@pytest.mark.parametrize("layout", ["rows", "interleaved"])
def test_experts(name: str, layout: str, target: str) -> None:
    """A token that chooses experts gets the same, whoever chooses them beside it."""
    k, rows, n_expert, n_used = 768, 64, 6, 2
    w, _ = weights(name, n_expert * rows, k)
    w = Operand(w.memory, name, (k, rows, n_expert), contiguous_nb(name, (k, rows, n_expert)))
    if layout == "interleaved":
        w = packed(w, layout)
    rng = np.random.default_rng(1)
    ids = np.stack([rng.permutation(n_expert)[:n_used] for _ in range(MOST)]).astype(np.int32)
    ids[MOST // 2 :, 0] = 3  # one expert for many
    ids[MOST // 2 :, 1] = 1
    x = columns(k)
    dtype = companion(name) if name in QUANTIZED else "f32"
    if name == "bf16" and has_bf16_products(target):
        dtype = "bf16"

    def run(first: int, n: int, n_threads: int) -> NDArray[np.float32]:
        some = activations(x[first : first + n], dtype)
        some = Operand(some.memory, dtype, (k, 1, n))
        chosen = Operand(ids[first : first + n].reshape(-1).view(np.uint8), "i32", (n_used, n))
        dst = result("f32", (rows, n_used, n))
        return run_op("MUL_MAT_ID", dst, [w, some, chosen], (), target, n_threads)[0]

    try:
        every = run(0, MOST, 1)
    except Refused:
        assert layout == "interleaved"
        return
    for first, n in GROUPS:
        for n_threads in (1, 2):
            np.testing.assert_array_equal(run(first, n, n_threads), every[first : first + n])


@pytest.mark.parametrize("target", TARGETS)
def test_wide_and_deep_products(target: str) -> None:
    """Beyond the columns and depths that are packed at a time."""
    rng = np.random.default_rng(2)
    k = 4352
    x = rng.standard_normal((520, k)).astype(np.float32)
    for name in ("q4_0", "q6_K", "f16", "bf16"):
        w, exact = weights(name, 32, k)
        dtype = companion(name) if name in QUANTIZED else "f32"
        every = product(w, activations(x, dtype), target, 2)
        assert nmse(every, x.astype(np.float64) @ exact.T.astype(np.float64)) < 1e-3
        for first, n in ((0, 1), (519, 1), (200, 40), (77, 300), (8, 512)):
            got = product(w, activations(x[first : first + n], dtype), target)
            np.testing.assert_array_equal(got, every[first : first + n])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("op", ["NORM", "RMS_NORM", "L2_NORM", "SOFT_MAX", "QUANTIZE"])
def test_other_rows(op: str, target: str) -> None:
    """What works row by row gives each row the same, too."""
    x = columns(768)
    dtype = "q8_K" if op == "QUANTIZE" else "f32"
    params = {"SOFT_MAX": pack(SoftMaxParams(0.5)), "QUANTIZE": ()}.get(op, (1e-5,))

    def run(rows: NDArray[np.float32], n_threads: int) -> NDArray[np.float32]:
        dst = result(dtype, (768, len(rows)))
        return run_op(op, dst, [tensor(rows)], params, target, n_threads)[0, 0]

    every = run(x, 1)
    for first, n in GROUPS:
        for n_threads in (1, 2):
            got = run(x[first : first + n], n_threads)
            np.testing.assert_array_equal(got, every[first : first + n])
