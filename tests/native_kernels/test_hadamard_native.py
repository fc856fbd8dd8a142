"""HADAMARD against the matrix of its definition, for blocks that are shorter than the vectors of a
target, as long, and longer."""

from __future__ import annotations

import numpy as np
import pytest
from golden import nmse
from harness import refusal, result, run_op, tensor

from tests.targets import BUT_PRODUCTS
from weft.graph.ops import HadamardParams
from weft.graph.params import pack

pytestmark = pytest.mark.parametrize("target", BUT_PRODUCTS)


def hadamard(n: int) -> np.ndarray:
    """The number of ones in the bits of i & j decides the sign of element i, j."""
    both = np.arange(n)[:, None] & np.arange(n)
    ones = sum(both >> bit & 1 for bit in range(n.bit_length()))
    return np.where(ones % 2, -1.0, 1.0) / np.sqrt(n)


@pytest.mark.parametrize("n", [2, 4, 8, 16, 32, 64, 128, 256, 1024])
def test_blocks(n: int, target: str) -> None:
    x = np.random.default_rng(n).normal(size=(2, 3, 3 * n)).astype(np.float32)
    a, params = tensor(x), pack(HadamardParams(n))
    fresh = run_op("HADAMARD", result("f32", (3 * n, 3, 2)), [a], params, target, 2)
    again = run_op("HADAMARD", a, [a], params, target, 2)
    np.testing.assert_array_equal(fresh, again)
    want = x.reshape(2, 3, 3, n).astype(np.float64) @ hadamard(n)
    assert nmse(fresh[0].reshape(want.shape), want) < 1e-13


def test_a_length_that_does_not_divide_is_refused(target: str) -> None:
    a = tensor(np.zeros((2, 96), np.float32))
    for n in (64, 48, 1, 0, -2):
        params = pack(HadamardParams(n))
        why = refusal("HADAMARD", result("f32", (96, 2)), [a], params, target)
        assert why is not None and "a power of two that divides the rows" in why
