"""Adaptive-p: probabilities of what is drawn average a target."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.llm.sampling import slow
from weft.errors import ContextError
from weft.llm.sampling import Sampler, SamplingParams
from weft.llm.sampling.candidates import Candidates
from weft.llm.sampling.cuts import AdaptiveP

ALL = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temperature": 1.0}
LOGITS = np.log(np.array([0.1, 0.4, 0.05, 0.3, 0.15], np.float32))


def drawn(logits: np.ndarray, **params: object) -> dict[int, float]:
    ids, probs = Sampler(SamplingParams(**params)).distribution(logits)  # type: ignore[arg-type]
    return dict(zip(ids.tolist(), probs.tolist(), strict=True))


def test_the_nearest_to_the_target_is_likeliest() -> None:
    for target in (0.0, 0.1, 0.28, 0.7, 1.0):
        got = drawn(LOGITS, adaptive_target=target, **ALL)
        want = slow.probabilities(slow.adaptive_p(list(enumerate(LOGITS.tolist())), target))
        assert got == pytest.approx(want, rel=1e-5)
        nearest = int(np.abs(np.exp(LOGITS) - target).argmin())
        assert next(iter(got)) == nearest


def test_what_was_drawn_moves_the_aim() -> None:
    state = AdaptiveP(0.3, 0.5)  # a count of 2 and a sum of 0.6 to begin with
    c = Candidates(LOGITS)
    state.shape(c)
    state.observe(1, 1.0)  # 0.4: a sum of 0.7 and a count of 2
    c = Candidates(LOGITS)
    state.shape(c)
    want = slow.adaptive_p(list(enumerate(LOGITS.tolist())), 2 * 0.3 - 0.7 / 2)
    np.testing.assert_allclose(c.logits, [logit for _, logit in want], rtol=1e-5)


@pytest.mark.parametrize("target", [0.15, 0.3, 0.45])
def test_probabilities_average_the_target(target: float) -> None:
    """The rows change, and the target is among the likelier tokens."""
    likelier = {"temperature": 1.0, "min_p": 0.05, "seed": 3}
    sampler = Sampler(SamplingParams(**likelier, adaptive_target=target))  # type: ignore[arg-type]
    rng, seen = np.random.default_rng(5), []
    for _ in range(3000):
        logits = (3 * rng.standard_normal(50)).astype(np.float32)
        before = drawn(logits, **likelier)
        seen.append(before[sampler.sample(logits)])
    assert np.mean(seen) == pytest.approx(target, abs=0.03)


def test_forbidden_tokens_stay_forbidden() -> None:
    got = drawn(LOGITS, adaptive_target=0.0, logit_bias={2: -math.inf, 0: -math.inf}, **ALL)
    assert got[0] == got[2] == 0
    assert set(drawn(LOGITS, **ALL | {"top_k": 2}, adaptive_target=0.0)) == {1, 3}


def test_of_a_large_vocabulary() -> None:
    logits = (4 * np.random.default_rng(1).standard_normal(20_000)).astype(np.float32)
    got = drawn(logits, adaptive_target=0.4, **ALL)
    want = slow.probabilities(slow.adaptive_p(list(enumerate(logits.tolist())), 0.4))
    assert max(got, key=got.__getitem__) == max(want, key=want.__getitem__)
    assert max(abs(got[i] - want[i]) for i in want) < 1e-5


def test_it_is_last_wherever_it_is_named_and_off_where_it_is_not() -> None:
    first = drawn(LOGITS, adaptive_target=0.1, samplers="adaptive_p;top_k", top_k=2)
    assert first == drawn(LOGITS, adaptive_target=0.1, samplers="top_k;adaptive_p", top_k=2)
    off = {1: pytest.approx(4 / 7), 3: pytest.approx(3 / 7)}
    assert drawn(LOGITS, adaptive_target=0.1, samplers="top_k", top_k=2) == off
    assert drawn(LOGITS, samplers="top_k;adaptive_p", top_k=2) == off


def test_values_out_of_range() -> None:
    with pytest.raises(ContextError, match=r"adaptive_target is 2; it must be -1 to 1"):
        SamplingParams(adaptive_target=2)
    with pytest.raises(ContextError, match=r"adaptive_decay is 1; it must be 0 to 0\.99"):
        SamplingParams(adaptive_decay=1)
