"""Penalties against their definition, over windows that move."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.llm.sampling import slow
from tests.profiles import examples
from weft.llm.sampling import Sampler, SamplingParams
from weft.llm.sampling.candidates import Candidates
from weft.llm.sampling.history import History, Penalties

ALL = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


@settings(max_examples=examples(2.0))
@given(
    history=st.lists(st.integers(0, 9), max_size=40),
    last_n=st.sampled_from([-1, 1, 3, 8, 100]),
    repeat=st.floats(0.5, 2),
    presence=st.floats(-2, 2),
    frequency=st.floats(-2, 2),
    kept=st.sets(st.integers(0, 9), min_size=1),
)
def test_penalties(
    history: list[int],
    last_n: int,
    repeat: float,
    presence: float,
    frequency: float,
    kept: set[int],
) -> None:
    """All at once or one by one, before a cut or behind it."""
    logits = np.linspace(-2, 3, 10).astype(np.float32)
    tokens, penalties = History(), Penalties(last_n, repeat, presence, frequency)
    for id_ in history:
        tokens.append(id_)
        penalties.accept(tokens, (id_,))
    window = history if last_n < 0 else history[-last_n:]
    want = dict(slow.penalties(list(enumerate(logits.tolist())), window, repeat, presence,
                               frequency))  # fmt: skip
    c = Candidates(logits)
    c.keep(np.array(sorted(kept), np.intp))
    penalties(c)
    np.testing.assert_allclose(c.logits, [want[i] for i in sorted(kept)], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("history", "costs"),
    [
        ([0], [10, 0, 0, 0, 0]),
        ([0, 1, 2], [10, 10, 10, 0, 0]),
        ([0, 1, 2, 0, 0], [20, 10, 10, 0, 0]),
    ],
)
def test_presence_and_frequency_by_hand(history: list[int], costs: list[float]) -> None:
    logits = np.zeros(5, np.float32)
    params = SamplingParams(**ALL, presence_penalty=5, frequency_penalty=5)  # type: ignore[arg-type]
    sampler = Sampler(params)
    sampler.start(history)
    ids, probs = sampler.distribution(logits)
    want = np.exp(-np.array(costs, float))
    np.testing.assert_allclose(probs[np.argsort(ids)], want / want.sum(), rtol=1e-6)


def test_negative_logits_become_less_likely() -> None:
    sampler = Sampler(SamplingParams(temperature=0, repeat_penalty=2))
    logits = np.array([-1.0, -1.5, -5.0], np.float32)
    sampler.accept(0)
    assert sampler.sample(logits) == 1  # -1 * 2 is below -1.5


def test_tokens_leave_the_window() -> None:
    sampler = Sampler(SamplingParams(temperature=0, presence_penalty=100, repeat_last_n=2))
    logits = np.array([3.0, 2.0, 1.0, 0.0], np.float32)
    drawn = []
    for _ in range(7):
        drawn.append(sampler.sample(logits))
        sampler.accept(drawn[-1])
    assert drawn == [0, 1, 2, 0, 1, 2, 0]


def test_a_long_history_grows() -> None:
    tokens = History()
    for i in range(1000):
        tokens.append(i)
    assert len(tokens) == 1000
    assert tokens.newest_first(3).tolist() == [999, 998, 997]
    assert tokens.newest_first(-1).tolist() == list(range(999, -1, -1))
