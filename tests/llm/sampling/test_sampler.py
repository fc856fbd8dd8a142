"""Sampling: what may be drawn, in which order things are cut, and that seeds reproduce."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.llm.sampling import slow
from tests.profiles import examples
from weft.errors import ContextError
from weft.llm.sampling import Sampler, SamplingParams
from weft.llm.sampling.params import SAMPLERS

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


@settings(max_examples=examples(2.0))
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
        ("min_keep", -1),
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


def chi_square(counts: np.ndarray, probs: np.ndarray) -> float:
    """Pearson's statistic of draws against what was expected."""
    expected = probs * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize(
    "params",
    [
        ALL | {"temperature": 1.0},
        ALL | {"temperature": 0.7},
        {"temperature": 1.3, "top_k": 8, "top_p": 0.9, "min_p": 0.02},
        ALL | {"temperature": 1.0, "typical_p": 0.8},
        ALL | {"temperature": 1.0, "xtc_probability": 1.0, "xtc_threshold": 0.12},
    ],
)
def test_draws_follow_the_distribution(params: dict[str, float]) -> None:
    logits = np.random.default_rng(3).normal(0, 1, 12).astype(np.float32)
    sampler = Sampler(SamplingParams(seed=11, **params))  # type: ignore[arg-type]
    ids, probs = sampler.distribution(logits)
    counts = np.bincount([sampler.sample(logits) for _ in range(8000)], minlength=12)
    assert counts[ids].sum() == 8000
    # 99.9% of such runs are below 31.3 with 11 degrees of freedom
    assert chi_square(counts[ids], probs) < 31.3


def test_draws_of_many_follow_the_distribution() -> None:
    """A vocabulary so large that it is summed in blocks."""
    logits = np.random.default_rng(4).normal(0, 2, 20_011).astype(np.float32)
    sampler = Sampler(SamplingParams(temperature=0.9, seed=12, top_k=0, top_p=1.0, min_p=0.0))
    probs = np.exp(logits.astype(float) / 0.9)
    probs /= probs.sum()
    bins = np.arange(20_011) % 12
    counts = np.bincount(bins[[sampler.sample(logits) for _ in range(8000)]], minlength=12)
    assert chi_square(counts, np.bincount(bins, probs)) < 31.3


STEPS: dict[str, tuple[dict[str, Any], Callable[[slow.Row], slow.Row]]] = {
    "top_k": ({"top_k": 17}, lambda row: slow.top_k(row, 17)),
    "typ_p": ({"typical_p": 0.97}, lambda row: slow.typical(row, 0.97)),
    "top_p": ({"top_p": 0.93}, lambda row: slow.top_p(row, 0.93)),
    "min_p": ({"min_p": 0.03}, lambda row: slow.min_p(row, 0.03)),
    "xtc": ({"xtc_probability": 1.0, "xtc_threshold": 0.2}, lambda row: slow.xtc(row, 0.2)),
    "top_n_sigma": ({"top_n_sigma": 2.5}, lambda row: slow.top_n_sigma(row, 2.5)),
}
"""Each cut with its options and its definition."""


def test_every_cut_has_a_step() -> None:
    assert set(STEPS) == set(SAMPLERS) - {"penalties", "dry", "temperature", "adaptive_p"}


@settings(max_examples=examples(2.0))
@given(
    seed=st.integers(0, 10_000),
    order=st.permutations(list(STEPS)),
    n_used=st.integers(1, len(STEPS)),
)
def test_any_order_of_the_chain(seed: int, order: list[str], n_used: int) -> None:
    """Step after step by their definitions, with penalties at the front and a temperature last."""
    logits = np.random.default_rng(seed).normal(0, 2, 30).astype(np.float32)
    order = order[:n_used]
    options: dict[str, Any] = {
        name: value for given, _ in STEPS.values() for name, value in given.items()
    }
    chain = ["penalties", *order, "temperature"]
    params = SamplingParams(temperature=0.8, presence_penalty=0.7, samplers=chain, **options)
    row = slow.penalties(list(enumerate(logits.astype(float).tolist())), [3, 4], 1.0, 0.7, 0.0)
    for name in order:
        row = STEPS[name][1](row)
    want = slow.probabilities([(i, logit / 0.8) for i, logit in row])
    sampler = Sampler(params)
    sampler.start([3, 4])
    ids, probs = sampler.distribution(logits)
    assert dict(zip(ids.tolist(), probs.tolist(), strict=True)) == pytest.approx(want, rel=1e-6)


def test_penalties_behind_a_cut() -> None:
    logits = np.array([3.0, 2.0, 1.0, 0.0], np.float32)
    first = Sampler(SamplingParams(temperature=0, presence_penalty=9, top_k=2))
    behind = Sampler(
        SamplingParams(temperature=0, presence_penalty=9, top_k=2,
                       samplers="top_k;penalties;temperature")
    )  # fmt: skip
    for sampler in (first, behind):
        sampler.start([0, 1])
    assert first.sample(logits) == 2
    assert behind.sample(logits) == 0


def test_xtc_is_a_matter_of_chance() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.2], np.float32))
    sampler = Sampler(
        SamplingParams(temperature=0, xtc_probability=0.3, xtc_threshold=0.25, seed=2)
    )
    drawn = [sampler.sample(logits) for _ in range(2000)]
    assert set(drawn) == {0, 1}
    assert np.mean(drawn) == pytest.approx(0.3, abs=0.03)


def test_everything_random_reproduces() -> None:
    logits = np.random.default_rng(5).normal(0, 2, 300).astype(np.float32)
    options = {"xtc_probability": 0.5, "xtc_threshold": 0.05, "repeat_penalty": 1.2}

    def text(seed: int) -> list[int]:
        sampler = Sampler(SamplingParams(seed=seed, **options))  # type: ignore[arg-type]
        out = []
        for _ in range(60):
            out.append(sampler.sample(logits))
            sampler.accept(out[-1])
        return out

    assert text(3) == text(3)
    assert text(3) != text(4)


@pytest.mark.parametrize("n", [8, 6000])
def test_logit_bias(n: int) -> None:
    logits = np.zeros(n, np.float32)
    logits[2] = 5
    bias = {2: -np.inf, 5: 3.0, 6: 3.5}
    sampler = Sampler(SamplingParams(temperature=1.0, logit_bias=bias, **ALL | {"top_k": 4}))
    ids, probs = sampler.distribution(logits)
    assert ids.tolist() == [6, 5, 0, 1]
    assert probs[0] / probs[1] == pytest.approx(np.exp(0.5))
    assert not logits[5]


def test_logit_bias_out_of_reach() -> None:
    with pytest.raises(
        ContextError, match=r"logit_bias has token 9; the model's tokens are 0\.\.4"
    ):
        Sampler(SamplingParams(logit_bias={9: 1.0})).sample(LOGITS)
    everything = dict.fromkeys(range(5), -np.inf)
    with pytest.raises(ContextError, match="logit_bias forbids every token"):
        Sampler(SamplingParams(logit_bias=everything)).sample(LOGITS)


def test_a_moving_temperature() -> None:
    def temperature(logits: np.ndarray) -> float:
        sampler = Sampler(
            SamplingParams(temperature=1.0, dynatemp_range=0.5, dynatemp_exponent=2.0, **ALL)
        )
        ids, probs = sampler.distribution(logits)
        return float((logits[ids[0]] - logits[ids[1]]) / np.log(probs[0] / probs[1]))

    # between two tokens of 0.8 and 0.2 the entropy is 0.7219 bits of 1
    two = np.log(np.array([0.8, 0.2], np.float32))
    assert temperature(two) == pytest.approx(0.5 + 1.0 * 0.7219**2, rel=1e-4)
    assert temperature(np.array([20.0, 0.0], np.float32)) == pytest.approx(0.5, rel=1e-3)
    assert temperature(np.array([1e-3, 0.0], np.float32)) == pytest.approx(1.5, rel=1e-3)


def test_large_vocabularies_equal_small_ones() -> None:
    """Tokens that cannot be drawn change nothing but the way there."""
    rng = np.random.default_rng(6)
    few = rng.normal(0, 2, 50).astype(np.float32)
    many = np.full(9000, -np.inf, np.float32)
    places = np.sort(rng.choice(9000, 50, replace=False))
    many[places] = few
    for options in (
        ALL, {"top_k": 7}, ALL | {"top_p": 0.8}, ALL | {"min_p": 0.1}, ALL | {"typical_p": 0.7},
        ALL | {"xtc_probability": 1.0}, ALL | {"top_n_sigma": 1.0}, ALL | {"mirostat": 2},
        ALL | {"top_p": 0.9, "min_p": 0.1, "repeat_penalty": 1.5},
        ALL | {"dynatemp_range": 0.5, "top_k": 50},
    ):  # fmt: skip
        params = SamplingParams(**options)  # type: ignore[arg-type]
        small, large = Sampler(params), Sampler(params)
        small.start([3, 9])
        large.start(places[[3, 9]].tolist())
        ids, probs = small.distribution(few)
        large_ids, large_probs = large.distribution(many)
        assert large_ids[: len(ids)].tolist() == places[ids].tolist(), options
        np.testing.assert_allclose(large_probs[: len(ids)], probs, rtol=2e-5)  # float32 sums
        assert not large_probs[len(ids) :].any()


def test_a_tokenizer_is_asked_for() -> None:
    with pytest.raises(ContextError, match="dry_sequence_breakers needs the tokenizer"):
        Sampler(SamplingParams(dry_multiplier=1.0))
    with pytest.raises(ContextError, match="a constraint needs the tokenizer"):
        Sampler(SamplingParams(regex="a"))
    Sampler(SamplingParams(dry_multiplier=1.0, dry_sequence_breakers=()))


def test_dry_in_the_chain() -> None:
    sampler = Sampler(
        SamplingParams(temperature=0, dry_multiplier=50, dry_sequence_breakers=(), top_k=2)
    )
    logits = np.array([0.0, 3.0, 2.0, 1.0], np.float32)
    sampler.start([1, 2, 3, 1, 2])
    assert sampler.sample(logits) == 1
    logits[3] = 4.0  # would repeat "1 2 3"
    assert sampler.sample(logits) == 1
    sampler.accept(0)
    assert sampler.sample(logits) == 3


def test_threads_do_not_share_what_changes() -> None:
    """Large vocabularies use memory of the thread."""
    rows = np.random.default_rng(7).normal(0, 2, (4, 50_000)).astype(np.float32)
    options = ALL | {"temperature": 1.1, "top_p": 0.9, "presence_penalty": 0.5}

    def text(seed: int) -> list[int]:
        sampler = Sampler(SamplingParams(seed=seed, **options))  # type: ignore[arg-type]
        out = []
        for i in range(40):
            out.append(sampler.sample(rows[(seed + i) % 4]))
            sampler.accept(out[-1])
        return out

    alone = [text(seed) for seed in range(6)]
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(text, range(6))) == alone


@pytest.mark.parametrize("penalty", [-1e300, 1e300])
@pytest.mark.parametrize("n", [3, 5000])
def test_penalties_beyond_all_numbers_decide(penalty: float, n: int) -> None:
    """A bonus of 1e300 is what counts, and who all have a malus are equal again."""
    sampler = Sampler(SamplingParams(presence_penalty=penalty, temperature=1, seed=1))
    logits = np.linspace(-1, 1, n, dtype=np.float32)
    with np.errstate(invalid="raise"):
        drawn = []
        for _ in range(3):
            drawn.append(sampler.sample(logits))
            sampler.accept(drawn[-1])
        assert len(set(drawn)) == (1 if penalty < 0 else 3)
        ids, weights = sampler.distribution(logits)
    assert np.isfinite(weights).all() and weights.sum() == pytest.approx(1)
    assert (drawn[0] in ids) or penalty > 0


@pytest.mark.parametrize(
    "params",
    [
        {"samplers": "top_k", "top_k": 3},
        {"samplers": "penalties", "repeat_penalty": 1.1},
        {"dynatemp_range": 5.0},
        {"mirostat": 2},
    ],
)
def test_cold_is_greedy_only_where_nothing_else_is_said(params: dict[str, object]) -> None:
    sampler = Sampler(SamplingParams(temperature=0.0, seed=1, **params))  # type: ignore[arg-type]
    drawn_ids = {sampler.sample(LOGITS) for _ in range(60)}
    assert (len(drawn_ids) > 1) == (params != {"mirostat": 2})
    biased = Sampler(SamplingParams(temperature=0.0, logit_bias={1: -math.inf}))
    assert biased.sample(LOGITS) == 3
    for broken in (np.nan, np.inf):
        with pytest.raises(ContextError, match="infinite or not a number"):
            Sampler(SamplingParams(temperature=0.0)).sample(np.array([1, broken, 2], np.float32))
