"""Sampling: what may be drawn, in which order things are cut, and that seeds reproduce."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import ContextError
from weft.llm.sampling import Sampler, SamplingParams

ALL = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
LOGITS = np.log(np.array([0.1, 0.4, 0.05, 0.3, 0.15], np.float32))


def drawn(logits: np.ndarray, **params: object) -> dict[int, float]:
    ids, probs = Sampler(SamplingParams(**params)).distribution(logits)  # type: ignore[arg-type]
    return dict(zip(ids.tolist(), probs.tolist(), strict=True))


def test_greedy_takes_the_lowest_of_equals() -> None:
    sampler = Sampler(SamplingParams(temperature=0.0))
    assert sampler.sample(np.array([1, 3, 2, 3], np.float32)) == 1


def test_nothing_cut_is_the_softmax() -> None:
    got = drawn(LOGITS, temperature=1.0, **ALL)
    assert list(got) == [1, 3, 4, 0, 2]
    np.testing.assert_allclose([got[i] for i in range(5)], np.exp(LOGITS), rtol=1e-6)


def test_top_k() -> None:
    got = drawn(LOGITS, temperature=1.0, **ALL | {"top_k": 2})
    np.testing.assert_allclose([got[1], got[3]], [4 / 7, 3 / 7], rtol=1e-6)
    assert len(got) == 2


def test_top_k_among_equals_goes_by_id() -> None:
    assert list(drawn(np.zeros(6, np.float32), temperature=1.0, **ALL | {"top_k": 3})) == [0, 1, 2]


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.0, 1), (0.39, 1), (0.41, 2), (0.69, 2), (0.71, 3), (0.96, 5), (1.0, 5)]
)
def test_top_p_keeps_the_token_that_crosses(top_p: float, kept: int) -> None:
    assert list(drawn(LOGITS, temperature=1.0, **ALL | {"top_p": top_p})) == [1, 3, 4, 0, 2][:kept]


def test_min_p_is_relative_to_the_best() -> None:
    assert list(drawn(LOGITS, temperature=1.0, **ALL | {"min_p": 0.3})) == [1, 3, 4]
    assert list(drawn(LOGITS, temperature=1.0, **ALL | {"min_p": 1.0})) == [1]


def test_top_p_counts_what_top_k_left() -> None:
    # of the best two, the first alone has 4/7 > 0.5
    assert list(drawn(LOGITS, temperature=1.0, top_k=2, top_p=0.5, min_p=0.0)) == [1]


def test_temperature_comes_last() -> None:
    # a hot temperature would let more through min_p, were it applied before
    got = drawn(LOGITS, temperature=100.0, **ALL | {"min_p": 0.3})
    assert list(got) == [1, 3, 4]
    np.testing.assert_allclose(list(got.values()), [1 / 3] * 3, atol=0.01)
    assert drawn(LOGITS, temperature=1e-300, **ALL)[1] == 1.0


def test_frequencies_follow_the_distribution() -> None:
    sampler = Sampler(SamplingParams(temperature=1.0, seed=1, **ALL))
    counts = np.bincount([sampler.sample(LOGITS) for _ in range(4000)], minlength=5) / 4000
    np.testing.assert_allclose(counts, np.exp(LOGITS), atol=0.03)


def test_a_seed_reproduces() -> None:
    def draws(seed: int | None) -> list[int]:
        sampler = Sampler(SamplingParams(temperature=1.0, seed=seed, **ALL))
        return [sampler.sample(LOGITS) for _ in range(50)]

    assert draws(7) == draws(7)
    assert draws(7) != draws(8)


def test_the_smallest_temperature_takes_the_largest() -> None:
    ids, probs = Sampler(SamplingParams(5e-324, 0, 1.0, 0.0, 1)).distribution(
        np.array([-50.0, 50.0, 49.0], np.float32)
    )
    assert ids[0] == 1 and probs.tolist() == [1.0, 0.0, 0.0]


@settings(max_examples=100, deadline=None)
@given(
    logits=st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=40),
    top_k=st.integers(0, 50),
    top_p=st.floats(0, 1),
    min_p=st.floats(0, 1),
    temperature=st.floats(0, 10),
    seed=st.integers(0, 99),
)
def test_a_draw_is_one_of_the_allowed(
    logits: list[float],
    top_k: int,
    top_p: float,
    min_p: float,
    temperature: float,
    seed: int,
) -> None:
    x = np.array(logits, np.float32)
    sampler = Sampler(SamplingParams(temperature, top_k, top_p, min_p, seed))
    ids, probs = sampler.distribution(x)
    assert probs.sum() == pytest.approx(1.0)
    assert x[ids[0]] == x.max()
    assert (np.diff(x[ids]) <= 0).all()
    assert sampler.sample(x) in ids


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_k", -1),
        ("top_p", 1.5),
        ("min_p", -0.5),
        ("seed", -1),
    ],
)
def test_values_out_of_range_are_named(name: str, value: float) -> None:
    with pytest.raises(ContextError, match=f"{name} is {value}"):
        SamplingParams(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_no_numbers(temperature: float, bad: float) -> None:
    with pytest.raises(ContextError, match="infinite or not a number"):
        Sampler(SamplingParams(temperature)).sample(np.array([0, bad, 1], np.float32))
