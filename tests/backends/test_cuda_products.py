"""Products of weights and activations by CUDA's own kernels, run by the shim, against NumPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.backends.cuda_kernels import LIMITS, call, nmse, put, run, view, weights_in_planes
from tests.shares import share
from weft import quants
from weft.backends.cases.case import random_blocks
from weft.backends.cuda.ops import OWN
from weft.backends.cuda.ops.products import CODES, FEW
from weft.backends.kernels.launch import Launch, View
from weft.backends.kernels.ops.matmul import DECODED
from weft.backends.kernels.ops.table import FLOATS
from weft.dtype import find_dtype

LIMIT = 5e-4
"""The exam's: activations are bytes."""

PLANES = [*((t, n) for t in CODES for n in (1, 3, 37)), ("q4_0", 70), ("q6_K", 70), ("q5_1", 50)]
DECODED_TYPES = [t for t in DECODED if t not in (*FLOATS, *CODES)]
EXPERTS = [(t, *at) for t in ("mxfp4", "q6_K", "f16", "bf16", "f32")
           for at in ((1, 4), (67, 2), (12, 70))]  # fmt: skip


def _zeros(*ne: int) -> View:
    return view(np.full(ne[::-1], np.nan, np.float32), "f32", ne)


def _product(w: View, x: View, *more: View | None) -> np.ndarray:
    d = _zeros(w.ne[1], *x.ne[1:])
    run(OWN["MUL_MAT"](call("MUL_MAT", d, w, x, *more)))
    matrices = d.buffer.reshape(-1, d.ne[1], d.ne[0])
    return matrices if len(matrices) > 1 else matrices[0]


@pytest.mark.parametrize(
    ("dtype", "columns"),
    share("devices", PLANES, [row for row in PLANES if row[0] in ("q4_0", "q3_K", "q6_K")]),
)
def test_planes(dtype: str, columns: int) -> None:
    rng = np.random.default_rng(0)
    rows, inner = (53, 768) if columns > FEW else (21, 2560)
    w, values = weights_in_planes(dtype, (inner, rows), rng)
    x = rng.standard_normal((columns, inner)).astype(np.float32)
    got = _product(w, put(x))
    assert nmse(got, x @ values.T) < LIMIT


@pytest.mark.parametrize("columns", [2, 40])
def test_matrices_serve_several(columns: int) -> None:
    """Matrices of weights that several of the activations meet, and a bias."""
    rng = np.random.default_rng(1)
    w, values = weights_in_planes("q4_K", (256, 130, 2), rng)
    x = rng.standard_normal((4, columns, 256)).astype(np.float32)
    bias = rng.standard_normal(130).astype(np.float32)
    got = _product(w, put(x), put(bias))
    want = np.einsum("bck,bmk->bcm", x, values.repeat(2, 0)) + bias
    assert nmse(got, want) < LIMIT


@pytest.mark.parametrize("dtype", ["q4_0", "q6_K", "q5_1"])
def test_a_column_has_one_result(dtype: str) -> None:
    """However many columns are beside it, up to FEW, and above."""
    rng = np.random.default_rng(2)
    w, _ = weights_in_planes(dtype, (2304, 11), rng)
    x = rng.standard_normal((70, 2304)).astype(np.float32)
    alone = _product(w, put(x[:1]))
    for n in (2, 4, FEW):
        np.testing.assert_array_equal(_product(w, put(x[:n]))[:1], alone)
    many = _product(w, put(x))
    for n in (FEW + 1, 40):
        np.testing.assert_array_equal(_product(w, put(x[-n:])), many[-n:])


@pytest.mark.parametrize("dtype", ["q4_0", "q6_K", "f16", "f32"])
def test_one_order_for_any_number_of_columns(dtype: str) -> None:
    """Where that is wanted: `few` is 0."""
    rng = np.random.default_rng(12)
    if dtype in CODES:
        w, _ = weights_in_planes(dtype, (2304, 11), rng)
    else:
        w = put(rng.standard_normal((11, 2304)), dtype)
    x = rng.standard_normal((30, 2304)).astype(np.float32)

    def product(columns: int) -> np.ndarray:
        d = _zeros(11, columns)
        plain = call("MUL_MAT", d, w, put(x[:columns]))
        run(OWN["MUL_MAT"](plain._replace(limits=replace(LIMITS, few=0))))
        return d.buffer

    many = product(30)
    for columns in (1, 2, 8, 9):
        np.testing.assert_array_equal(product(columns), many[:columns])


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("columns", [1, 5, 41])
def test_floats(dtype: str, columns: int) -> None:
    rng = np.random.default_rng(3)
    weights = rng.standard_normal((2, 53, 296)).astype(np.float32)
    x = rng.standard_normal((4, columns, 296)).astype(np.float32) * 3000
    w = put(weights, dtype)
    d = _zeros(53, columns, 4)
    launches = OWN["MUL_MAT"](call("MUL_MAT", d, w, put(x)))
    if dtype == "f32" and columns > FEW:
        assert launches is None
        return
    run(launches)
    want = np.einsum("bck,bmk->bcm", x, weights.repeat(2, 0))
    assert nmse(d.buffer, want) < 1e-4


def test_large_activations_of_f16() -> None:
    """They are larger than any f16, or so small that f16 would lose them."""
    rng = np.random.default_rng(4)
    w = put(rng.standard_normal((16, 64)), "f16")
    for size in (1e30, 1e-30, 0.0):
        x = (rng.standard_normal((12, 64)) * size).astype(np.float32)
        got = _product(w, put(x))
        want = x.astype(np.float64) @ w.buffer.reshape(16, 64).astype(np.float64).T
        np.testing.assert_allclose(got, want, atol=size * 0.05)


@pytest.mark.parametrize("columns", [1, 12])
def test_numbers_that_are_not_finite(columns: int) -> None:
    """A NaN or an infinity among activations is one in every result of its column, nowhere else."""
    rng = np.random.default_rng(5)
    w, _ = weights_in_planes("q4_0", (96, 5), rng)
    x = rng.standard_normal((columns, 96)).astype(np.float32)
    want = _product(w, put(x))
    for bad in (np.nan, np.inf):
        spoiled = x.copy()
        spoiled[0, 40] = bad
        got = _product(w, put(spoiled))
        assert not np.isfinite(got[0]).any()
        np.testing.assert_array_equal(got[1:], want[1:])


@pytest.mark.parametrize("dtype", share("devices", DECODED_TYPES, ("iq3_s", "tq2_0")))
def test_blocks_without_planes(dtype: str) -> None:
    """Tensor cores read them decoded; few columns are left to other kernels."""
    rng = np.random.default_rng(11)
    kind = find_dtype(dtype)
    blocks = random_blocks(kind, (512, 37, 2), rng)
    w = view(blocks, dtype, (512, 37, 2))
    values = quants.decode(blocks, kind).reshape(2, 37, 512)
    x = rng.standard_normal((2, 30, 512)).astype(np.float32)
    assert nmse(_product(w, put(x)), np.einsum("bck,bmk->bcm", x, values)) < 1e-5
    few, d = put(x[:1, :1]), _zeros(37, 1, 1)
    assert OWN["MUL_MAT"](call("MUL_MAT", d, w.part((512, 37, 1, 1), w.nb, 0), few)) is None
    tokens = rng.standard_normal((20, 1, 512)).astype(np.float32)
    chosen = rng.integers(0, 2, (20, 1)).astype(np.int32)
    assert _by_experts(w, values, tokens, chosen) < 1e-5


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_activations_of_16_bits(dtype: str) -> None:
    """Rows of them begin anywhere."""
    rng = np.random.default_rng(6)
    w, values = weights_in_planes("q8_0", (32, 9), rng)
    x = rng.standard_normal((3, 33)).astype(np.float32)
    whole = put(x, dtype)
    part = whole.part((32, 3, 1, 1), whole.nb, 0)
    assert nmse(_product(w, part), x[:, :32] @ values.T) < LIMIT


def _by_experts(w: View, values: np.ndarray, x: np.ndarray, chosen: np.ndarray) -> float:
    """The error of a product in which each slot of a token chooses a matrix."""
    tokens, slots = chosen.shape
    d = _zeros(w.ne[1], slots, tokens)
    # ids are a part of longer rows, as behind a sort of all experts
    wide = np.concatenate([chosen, np.full((tokens, 3), -1)], 1).astype(np.int32)
    whole = view(wide, "i32", (slots + 3, tokens))
    ids = whole.part((slots, tokens, 1, 1), whole.nb, 0)
    run(OWN["MUL_MAT_ID"](call("MUL_MAT_ID", d, w, put(x), ids)))
    columns = np.broadcast_to(x, (tokens, slots, x.shape[2]))
    return nmse(d.buffer, np.einsum("tsk,tsmk->tsm", columns, values[chosen]))


@pytest.mark.parametrize(
    ("dtype", "tokens", "n"),
    share("devices", EXPERTS, [row for row in EXPERTS if row[0] in ("q6_K", "f16", "f32")]),
)
def test_experts(dtype: str, tokens: int, n: int) -> None:
    """Some of many experts have no columns, some of few have several tiles."""
    rng = np.random.default_rng(7)
    rows, inner = (19, 256) if n > 4 else (131, 288 if dtype != "q6_K" else 512)
    if dtype in ("mxfp4", "q6_K"):
        w, values = weights_in_planes(dtype, (inner, rows, n), rng)
    else:
        values = rng.standard_normal((n, rows, inner)).astype(np.float32)
        w = put(values, dtype)
    if dtype == "f32" and tokens > FEW:
        assert _launches_of_experts(w, tokens) is None
        return
    chosen = np.array([rng.permutation(n)[:2] for _ in range(tokens)], np.int32)
    for columns in (1, 2):
        x = rng.standard_normal((tokens, columns, inner)).astype(np.float32)
        assert _by_experts(w, values, x, chosen) < LIMIT


def _launches_of_experts(w: View, tokens: int) -> list[Launch] | None:
    x, d = _zeros(w.ne[0], 1, tokens), _zeros(w.ne[1], 2, tokens)
    ids = view(np.zeros((tokens, 2), np.int32), "i32", (2, tokens))
    return OWN["MUL_MAT_ID"](call("MUL_MAT_ID", d, w, x, ids))


def test_all_choose_one_expert() -> None:
    rng = np.random.default_rng(9)
    w, values = weights_in_planes("q5_0", (64, 7, 33), rng)
    x = rng.standard_normal((150, 1, 64)).astype(np.float32)
    assert _by_experts(w, values, x, np.full((150, 1), 32)) < LIMIT


def test_a_token_has_one_result_with_experts() -> None:
    """Whoever else chooses its experts."""
    rng = np.random.default_rng(10)
    w, _ = weights_in_planes("q4_K", (512, 21, 5), rng)
    x = rng.standard_normal((90, 1, 512)).astype(np.float32)
    chosen = np.array([rng.permutation(5)[:3] for _ in range(90)], np.int32)

    def product(first: int) -> np.ndarray:
        d, n = _zeros(21, 3, 90 - first), 90 - first
        ids = view(np.ascontiguousarray(chosen[first:]), "i32", (3, n))
        run(OWN["MUL_MAT_ID"](call("MUL_MAT_ID", d, w, put(x[first:]), ids)))
        return d.buffer.reshape(n, 3, 21)

    whole = product(0)
    for first in (1, 60, 81):
        np.testing.assert_array_equal(product(first), whole[first:])


@pytest.mark.parametrize("dtype", ["q4_0", "f16"])
@pytest.mark.parametrize("tokens", [1, 12])
def test_an_expert_that_is_not_there(dtype: str, tokens: int) -> None:
    """It is recorded; others have their results."""
    rng = np.random.default_rng(8)
    if dtype == "f16":
        w = put(rng.standard_normal((2, 3, 32)), dtype)
        values = w.buffer.reshape(2, 3, 32).astype(np.float32)
    else:
        w, values = weights_in_planes(dtype, (32, 3, 2), rng)
    chosen = np.tile(np.array([2, 1], np.int32), (tokens, 1))
    d, fault = _zeros(3, 2, tokens), np.zeros(6, np.int32)
    x = rng.standard_normal((tokens, 1, 32)).astype(np.float32)
    ids = view(chosen, "i32", (2, tokens))
    run(OWN["MUL_MAT_ID"](call("MUL_MAT_ID", d, w, put(x), ids)), fault)
    assert fault.tolist() == [1, 0, 2, 0, 2, 0]
    got = d.buffer.reshape(tokens, 2, 3)
    assert np.isnan(got[:, 0]).all()
    assert nmse(got[:, 1], x[:, 0] @ values[1].T) < LIMIT
