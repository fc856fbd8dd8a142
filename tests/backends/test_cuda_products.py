"""Products of weights and activations by CUDA's own kernels, run by the shim, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.backends.cuda_kernels import call, nmse, put, run, view, weights_in_planes
from weft.backends.cuda.ops import OWN
from weft.backends.cuda.ops.products import CODES, FEW
from weft.backends.kernels.launch import View

LIMIT = 5e-4
"""The exam's: activations are bytes."""


def _zeros(*ne: int) -> View:
    return view(np.full(ne[::-1], np.nan, np.float32), "f32", ne)


def _product(w: View, x: View, *more: View | None) -> np.ndarray:
    d = _zeros(w.ne[1], *x.ne[1:])
    run(OWN["MUL_MAT"](call("MUL_MAT", d, w, x, *more)))
    matrices = d.buffer.reshape(-1, d.ne[1], d.ne[0])
    return matrices if len(matrices) > 1 else matrices[0]


@pytest.mark.parametrize(
    ("dtype", "columns"),
    [*((t, n) for t in CODES for n in (1, 3, 37)), ("q4_0", 70), ("q6_K", 70), ("q5_1", 50)],
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


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_activations_of_16_bits(dtype: str) -> None:
    """Rows of them begin anywhere."""
    rng = np.random.default_rng(6)
    w, values = weights_in_planes("q8_0", (32, 9), rng)
    x = rng.standard_normal((3, 33)).astype(np.float32)
    whole = put(x, dtype)
    part = whole.part((32, 3, 1, 1), whole.nb, 0)
    assert nmse(_product(w, part), x[:, :32] @ values.T) < LIMIT


@pytest.mark.parametrize("tokens", [1, 9])
def test_experts(tokens: int) -> None:
    rng = np.random.default_rng(7)
    w, values = weights_in_planes("mxfp4", (288, 19, 4), rng)
    x = rng.standard_normal((tokens, 1, 288)).astype(np.float32)
    chosen = np.array([rng.permutation(4)[:2] for _ in range(tokens)], np.int32)
    d = _zeros(19, 2, tokens)
    ids = view(chosen, "i32", (2, tokens))
    run(OWN["MUL_MAT_ID"](call("MUL_MAT_ID", d, w, put(x), ids)))
    want = np.einsum("tk,tsmk->tsm", x[:, 0], values[chosen])
    assert nmse(d.buffer, want) < LIMIT


def test_an_expert_that_is_not_there() -> None:
    rng = np.random.default_rng(8)
    w, _ = weights_in_planes("q4_0", (32, 3, 2), rng)
    ids = view(np.array([[2]], np.int32), "i32", (1, 1))
    d, fault = _zeros(3, 1, 1), np.zeros(6, np.int32)
    x = put(rng.standard_normal((1, 1, 32)))
    run(OWN["MUL_MAT_ID"](call("MUL_MAT_ID", d, w, x, ids)), fault)
    assert fault.tolist() == [1, 0, 2, 0, 2, 0]
