"""Log-probabilities of the model, not of what sampling makes of it."""

from __future__ import annotations

import numpy as np
import pytest

from weft.errors import ContextError
from weft.llm import token_logprobs


@pytest.mark.parametrize("n", [7, 5000, 40_000])
def test_against_float64(n: int) -> None:
    logits = np.random.default_rng(n).normal(20, 4, n).astype(np.float32)
    exact = logits.astype(np.float64)
    exact -= exact.max() + np.log(np.exp(exact - exact.max()).sum())
    got = token_logprobs(logits, 3, top=5)
    assert got.id == 3
    assert got.logprob == pytest.approx(exact[3], abs=1e-5)
    order = np.argsort(-logits, kind="stable")[:5]
    assert [i for i, _ in got.top] == order.tolist()
    assert [p for _, p in got.top] == pytest.approx(exact[order].tolist(), abs=1e-5)


def test_more_than_there_are() -> None:
    got = token_logprobs(np.zeros(3, np.float32), 1, top=9)
    assert [i for i, _ in got.top] == [0, 1, 2]
    assert got.logprob == pytest.approx(-np.log(3))
    assert token_logprobs(np.zeros(3, np.float32), 1).top == ()


def test_bad_arguments() -> None:
    with pytest.raises(ContextError, match="logprobs is -1"):
        token_logprobs(np.zeros(3, np.float32), 1, -1)
    with pytest.raises(ContextError, match=r"token 3 is not in 0\.\.2"):
        token_logprobs(np.zeros(3, np.float32), 3)
