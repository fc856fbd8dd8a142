"""Mirostat 2: the cut and the correction by hand, and the surprise that it holds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from weft.llm.sampling import Sampler, SamplingParams
from weft.llm.sampling.candidates import Candidates
from weft.llm.sampling.cuts import Mirostat

PROBS = [0.5, 0.25, 0.15, 0.06, 0.04]


def test_what_surprises_more_is_cut() -> None:
    state = Mirostat(tau=1.05, eta=0.5)  # mu is 2.1 bits: probabilities from 0.233 on
    c = Candidates(np.log(np.array(PROBS, np.float32)))
    state.shape(c)
    assert c.ids is not None and c.ids.tolist() == [0, 1]
    state.observe(0, 1 / 3)  # the second, among the two
    assert state.mu == pytest.approx(2.1 - 0.5 * (math.log2(3) - 1.05))


def test_the_likeliest_stays() -> None:
    state = Mirostat(tau=0.0, eta=0.1)
    c = Candidates(np.log(np.array(PROBS, np.float32)))
    state.shape(c)
    assert c.ids is not None and c.ids.tolist() == [0]
    state.mu = -1e9
    state.shape(c)
    assert len(c) == 1


@pytest.mark.parametrize("tau", [2.0, 4.0])
def test_the_surprise_is_held(tau: float) -> None:
    """The distribution is Zipf's, whose own entropy is 7 bits and more."""
    logits = -np.log(np.arange(1, 2001)).astype(np.float32)
    params = SamplingParams(temperature=1, mirostat=2, mirostat_tau=tau, seed=5)
    sampler = Sampler(params)
    surprise = []
    for _ in range(1500):
        ids, probs = sampler.distribution(logits)
        id_ = sampler.sample(logits)
        surprise.append(-math.log2(probs[ids == id_].item()))
    assert np.mean(surprise[200:]) == pytest.approx(tau, abs=0.1)


def test_the_cuts_are_not_run() -> None:
    logits = np.log(np.array(PROBS, np.float32))
    params = SamplingParams(temperature=1, top_k=1, mirostat=2, mirostat_tau=5, seed=1)
    sampler = Sampler(params)
    assert len({sampler.sample(logits) for _ in range(50)}) > 1
