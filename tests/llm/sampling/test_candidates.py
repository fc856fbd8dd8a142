"""Running sums in blocks, and candidates whose positions are no ids."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.llm.sampling.candidates import SMALL, Candidates, Running


@given(n=st.integers(SMALL + 1, SMALL + 2000), seed=st.integers(0, 99), u=st.floats(0, 0.9999))
def test_blocks_find_what_the_running_sum_finds(n: int, seed: int, u: float) -> None:
    weights = np.random.default_rng(seed).integers(0, 9, n).astype(np.float32)  # sums are exact
    sums, target = np.cumsum(weights), np.floor(u * weights.sum())
    blocks = Running(weights)
    assert blocks.total == weights.sum()
    for side in ("left", "right"):
        want = int(np.searchsorted(sums, target, side))
        while weights[want] == 0:
            want += 1
        assert blocks.find(float(target), side) == want


@pytest.mark.parametrize("n", [3, SMALL + 7])
def test_the_end_has_weight(n: int) -> None:
    weights = np.zeros(n, np.float32)
    weights[1] = 2
    assert Running(weights).find(2.5) == 1


def test_tokens_are_found_by_id() -> None:
    c = Candidates(np.arange(10, dtype=np.float32))
    c.keep(np.array([7, 2, 9, 4]))
    positions, which = c.find(np.array([4, 1, 7, 9]))
    position_of = {int(w): int(p) for p, w in zip(positions, which, strict=True)}
    assert position_of == {0: 3, 2: 0, 3: 2}


@pytest.mark.parametrize("n", [10, SMALL + 1])
def test_the_callers_logits_stay(n: int) -> None:
    logits = np.arange(n, dtype=np.float32)
    c = Candidates(logits)
    c.set_logits(np.array([3]), np.array([99.0]))
    c.writable()[:] *= 2
    np.testing.assert_array_equal(logits, np.arange(n))
    assert c.logits[3] == 198
