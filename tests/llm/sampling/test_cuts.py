"""Each cut against its slow definition, and against the examples of llama.cpp's own tests."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.llm.sampling import slow
from weft.llm.sampling import cuts
from weft.llm.sampling.candidates import Candidates

CUTS: dict[str, tuple[Callable[..., None], Callable[..., slow.Row], st.SearchStrategy[float]]] = {
    "top_k": (cuts.top_k, slow.top_k, st.integers(1, 60)),
    "top_p": (cuts.top_p, slow.top_p, st.floats(0, 0.999)),
    "min_p": (cuts.min_p, slow.min_p, st.floats(1e-3, 1)),
    "typical": (cuts.typical, slow.typical, st.floats(0, 0.999)),
    "top_n_sigma": (cuts.top_n_sigma, slow.top_n_sigma, st.floats(0.01, 5)),
    "xtc": (cuts.xtc, slow.xtc, st.floats(0.01, 0.5)),
}


def ids_of(c: Candidates) -> list[int]:
    return list(range(len(c))) if c.ids is None else c.ids.tolist()


def row_of(logits: np.ndarray) -> slow.Row:
    return list(enumerate(logits.astype(float).tolist()))


def left(cut: Callable[..., None], probs: list[float], value: float) -> list[float]:
    """Probabilities of the tokens that a cut leaves, largest first, as they were before it."""
    c = Candidates(np.log(np.array(probs, np.float32)))
    cut(c, value)
    return sorted((probs[i] for i in ids_of(c)), reverse=True)


@pytest.mark.parametrize("name", CUTS)
@given(seed=st.integers(0, 10_000), n=st.integers(1, 80), data=st.data())
def test_small_vocabularies(name: str, seed: int, n: int, data: st.DataObject) -> None:
    fast, reference, values = CUTS[name]
    logits = np.random.default_rng(seed).normal(0, 3, n).astype(np.float32)
    value = data.draw(values)
    c = Candidates(logits)
    fast(c, value)
    assert sorted(ids_of(c)) == sorted(i for i, _ in reference(row_of(logits), value))


@pytest.mark.parametrize("n", [3, 50, 5000])
@pytest.mark.parametrize("name", ["top_p", "min_p", "typical", "xtc"])
@pytest.mark.parametrize("keep", [1, 2, 30, 4000, 9000])
def test_what_is_kept_at_least(name: str, keep: int, n: int) -> None:
    """The likeliest, or those nearest to the entropy, are added; XTC leaves out none then."""
    cut = CUTS[name][0]
    logits = np.random.default_rng(n).normal(0, 3, n).astype(np.float32)
    for value in {"top_p": (0.1, 0.9), "min_p": (0.02, 1.0)}.get(name, (0.02, 0.4)):
        plain, c = Candidates(logits), Candidates(logits)
        cut(plain, value)
        cut(c, value, keep=keep)
        want = set(ids_of(plain))
        if len(want) < keep and name == "xtc":
            want = set(range(n))
        elif len(want) < keep and name != "typical":
            want = set(np.argsort(-logits, kind="stable")[:keep].tolist())
        got = set(ids_of(c))
        assert got >= want if name == "typical" else got == want
        assert len(got) == max(len(ids_of(plain)), min(keep, n)) or name == "xtc"


@pytest.mark.parametrize("name", CUTS)
@given(seed=st.integers(0, 10_000), n=st.integers(2, 80), data=st.data())
def test_after_another_cut(name: str, seed: int, n: int, data: st.DataObject) -> None:
    """Positions are no ids any more, and probabilities are those of what is left."""
    fast, reference, values = CUTS[name]
    logits = np.random.default_rng(seed).normal(0, 3, n).astype(np.float32)
    value, k = data.draw(values), data.draw(st.integers(1, n))
    c = Candidates(logits)
    cuts.top_k(c, k)
    fast(c, value)
    want = reference(slow.top_k(row_of(logits), k), value)
    assert sorted(ids_of(c)) == sorted(i for i, _ in want)


def big(seed: int, spread: float, peak: float) -> np.ndarray:
    """30,001 logits, some dozens of them far above the others by `peak`."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, spread, 30_001).astype(np.float32)
    logits[rng.choice(30_001, 40, replace=False)] += rng.uniform(0, peak, 40).astype(np.float32)
    return logits


BIG = [(0, 2.5, 20.0), (1, 2.5, 0.0), (2, 0.1, 0.0), (3, 0.1, 12.0), (4, 8.0, 0.0)]


@pytest.mark.parametrize("case", BIG)
@pytest.mark.parametrize("k", [1, 40, 700, 20_000, 30_000])
def test_top_k_of_many(case: tuple[int, float, float], k: int) -> None:
    logits = big(*case)
    c = Candidates(logits)
    cuts.top_k(c, k)
    assert ids_of(c) == np.argsort(-logits, kind="stable")[:k].tolist()


@pytest.mark.parametrize("k", [1, 40, 5000])
def test_top_k_of_many_equals_goes_by_id(k: int) -> None:
    c = Candidates(np.zeros(30_001, np.float32))
    cuts.top_k(c, k)
    assert ids_of(c) == list(range(k))


@pytest.mark.parametrize("case", BIG)
@pytest.mark.parametrize("p", [0.0, 0.3, 0.95, 0.999])
@pytest.mark.parametrize("next_min_p", [0.0, 0.05])
def test_top_p_of_many(case: tuple[int, float, float], p: float, next_min_p: float) -> None:
    logits = big(*case)
    probs = np.exp(logits.astype(float) - logits.max())
    probs /= probs.sum()
    c = Candidates(logits)
    cuts.top_p(c, p, next_min_p)
    ids = ids_of(c)
    kept = np.sort(probs[ids])
    assert kept[0] >= np.delete(probs, ids).max()  # these are the likeliest
    assert kept[1:].sum() < p + 1e-6  # the sums of float32 are this exact
    all_for_min_p = kept[0] >= next_min_p * kept[-1] * (1 - 1e-4) and next_min_p > 0
    assert kept.sum() >= p - 1e-6 or all_for_min_p
    if next_min_p:
        cuts.min_p(c, next_min_p)
        want = slow.min_p(slow.top_p(row_of(logits), p), next_min_p)
        assert abs(len(c) - len(want)) <= (len(want) > 4096)  # float32 on the border of many


@pytest.mark.parametrize("case", BIG)
@pytest.mark.parametrize("p", [0.0, 0.3, 0.95])
def test_typical_of_many(case: tuple[int, float, float], p: float) -> None:
    logits = big(*case)
    probs = np.exp(logits.astype(float) - logits.max())
    probs /= probs.sum()
    distance = np.abs(-np.log(probs) + (probs * np.log(probs)).sum())
    c = Candidates(logits)
    cuts.typical(c, p)
    ids = ids_of(c)
    others = np.delete(distance, ids)
    assert distance[ids].max() <= others.min() + 1e-4  # distances are float32
    assert p < probs[ids].sum() + 1e-6
    assert probs[ids].sum() - probs[ids[-1]] <= p + 1e-5


@pytest.mark.parametrize("case", BIG)
def test_the_other_cuts_of_many(case: tuple[int, float, float]) -> None:
    logits = big(*case)
    for name, value in (("min_p", 0.03), ("top_n_sigma", 1.5), ("xtc", 0.02)):
        fast, reference, _ = CUTS[name]
        c = Candidates(logits)
        fast(c, value)
        assert sorted(ids_of(c)) == sorted(i for i, _ in reference(row_of(logits), value)), name


def test_forbidden_tokens_never_come_back() -> None:
    logits = np.full(9000, -np.inf, np.float32)
    logits[[5, 700, 8999]] = [1.0, 2.0, 0.5]
    for name, value in (("top_p", 0.99), ("typical", 0.99), ("min_p", 0.01), ("xtc", 0.5),
                        ("top_n_sigma", 3.0)):  # fmt: skip
        c = Candidates(logits)
        CUTS[name][0](c, value)
        assert {i for i in ids_of(c) if np.isfinite(logits[i])}
        if name != "xtc":
            assert set(ids_of(c)) <= {5, 700, 8999}, name


@example(p=0.0)
@given(p=st.floats(0, 0.999))
def test_typical_of_equals(p: float) -> None:
    for n in (3, 9000):
        c = Candidates(np.zeros(n, np.float32))
        cuts.typical(c, p)
        assert len(c) == pytest.approx(p * n, abs=1.01 + 1e-4 * n)


@pytest.mark.parametrize(
    ("cut", "probs", "value", "kept"),
    [
        (cuts.top_p, [0.1, 0.2, 0.3, 0.4], 0.7, [0.4, 0.3]),
        (cuts.top_p, [0.1, 0.2, 0.3, 0.4], 0.8, [0.4, 0.3, 0.2]),
        (cuts.min_p, [0.1, 0.2, 0.3, 0.4], 0.26, [0.4, 0.3, 0.2]),
        (cuts.min_p, [0.1, 0.2, 0.3, 0.4], 0.74, [0.4, 0.3]),
        (cuts.min_p, [0.1, 0.2, 0.3, 0.4], 1.0, [0.4]),
        (cuts.typical, [0.97, 0.01, 0.01, 0.01], 0.5, [0.97]),
        (cuts.typical, [0.4, 0.2, 0.2, 0.2], 0.5, [0.2, 0.2, 0.2]),
        (cuts.top_n_sigma, [0.1, 0.2, 0.3, 0.4], 1.0, [0.4, 0.3]),
        (cuts.top_n_sigma, [0.1, 0.2, 0.3, 0.4], 3.0, [0.4, 0.3, 0.2, 0.1]),
        (cuts.xtc, [0.4, 0.3, 0.2, 0.1], 0.09, [0.1]),
        (cuts.xtc, [0.4, 0.3, 0.2, 0.1], 0.19, [0.2, 0.1]),
        (cuts.xtc, [0.4, 0.3, 0.2, 0.1], 0.29, [0.3, 0.2, 0.1]),
        (cuts.xtc, [0.4, 0.3, 0.2, 0.1], 0.39, [0.4, 0.3, 0.2, 0.1]),
    ],
)
def test_examples(
    cut: Callable[..., None], probs: list[float], value: float, kept: list[float]
) -> None:
    assert left(cut, probs, value) == kept
