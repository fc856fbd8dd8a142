"""KL divergence and its companions, against a slow computation in f64."""

from __future__ import annotations

import math

import numpy as np
import pytest

from weft.errors import ContextError
from weft.llm.quality.divergence import KLStatistics, kl_statistics
from weft.llm.quality.logits_file import log_probs, n_packed, pack, unpack

RNG = np.random.default_rng(7)
BASE = (RNG.normal(size=(150, 301)) * 3).astype(np.float32)
LOGITS = (BASE + RNG.normal(size=BASE.shape) * 0.2).astype(np.float32)
TOKENS = RNG.integers(0, 301, 150)


def slow(row: np.ndarray) -> np.ndarray:
    """log softmax of a row in f64."""
    row = row.astype(np.float64)
    return row - math.log(sum(math.exp(x) for x in row))


def test_the_figures_are_those_of_the_definition() -> None:
    kls, changes, nll, nll_base, same = [], [], [], [], 0
    for base, row, token in zip(BASE, LOGITS, TOKENS, strict=True):
        q, p = slow(base), slow(row)
        kept = q > -16
        kls.append(float((np.exp(q) * (q - p))[kept].sum()))
        changes.append(math.exp(p[token]) - math.exp(q[token]))
        nll.append(-p[token])
        nll_base.append(-q[token])
        same += int(q.argmax() == p.argmax())
    got = kl_statistics(BASE, LOGITS, TOKENS)
    n = len(TOKENS)
    assert got.n_tokens == n
    assert got.kl.value == pytest.approx(np.mean(kls), rel=1e-5)
    assert got.kl.error == pytest.approx(np.std(kls) / math.sqrt(n - 1), rel=1e-4)
    assert got.ppl.value == pytest.approx(math.exp(np.mean(nll)), rel=1e-5)
    assert got.ppl_base.value == pytest.approx(math.exp(np.mean(nll_base)), rel=1e-5)
    differences = np.array(nll) - np.array(nll_base)
    assert got.ln_ppl_ratio.value == pytest.approx(differences.mean(), rel=1e-3)
    assert got.ln_ppl_ratio.error == pytest.approx(differences.std() / math.sqrt(n - 1), rel=1e-3)
    assert got.correlation == pytest.approx(np.corrcoef(nll, nll_base)[0, 1], rel=1e-4)
    assert got.p_change.value == pytest.approx(np.mean(changes), rel=1e-3)
    assert got.p_change_rms.value == pytest.approx(math.sqrt(np.mean(np.square(changes))), rel=1e-4)
    assert got.same_top.value == same / n
    assert got.kl_spread is not None
    assert got.kl_spread.median == pytest.approx(np.median(kls), rel=1e-4)
    for per, value in got.kl_spread.percentiles.items():
        assert value == pytest.approx(np.percentile(kls, per), rel=1e-4, abs=3e-6)


def test_blocks_of_rows_give_the_same_figures() -> None:
    def blocks(rows: np.ndarray) -> list[np.ndarray]:
        return [rows[:1], rows[1:90], rows[90:]]

    whole = kl_statistics(BASE, LOGITS, TOKENS)
    parts = kl_statistics(blocks(BASE), blocks(LOGITS), TOKENS)
    assert parts.kl_spread == whole.kl_spread
    assert parts.kl.value == pytest.approx(whole.kl.value, rel=1e-12)
    assert parts.as_dict().keys() == whole.as_dict().keys()


def test_a_packed_row_keeps_log_probs_within_half_a_step() -> None:
    for n_vocab in (301, 300):
        packed = pack(BASE[:, :n_vocab])
        assert packed.shape == (150, n_packed(n_vocab)) and n_packed(n_vocab) % 2 == 0
        want = log_probs(BASE[:, :n_vocab])
        kept = want > want.max(axis=1, keepdims=True) - 16
        step = np.ascontiguousarray(packed[:, :2]).view(np.float32)
        off = np.abs(unpack(packed, n_vocab) - want) / step
        assert off[kept].max() < 0.52
    flat = np.zeros((1, 5), np.float32)  # all steps are 0
    assert unpack(pack(flat), 5) == pytest.approx(np.full((1, 5), -math.log(5)))


def test_rows_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ContextError, match=r"rows \[150, 300\], the model \[150, 301\]"):
        kl_statistics(BASE[:, :300], LOGITS, TOKENS)
    with pytest.raises(ContextError, match="150 rows of logits for 151 tokens"):
        kl_statistics(BASE, LOGITS, [*TOKENS, 1])
    with pytest.raises(ContextError, match="no token has been scored"):
        KLStatistics().result()
    broken = LOGITS.copy()
    broken[3, 5] = np.nan
    with pytest.raises(ContextError, match="not a number"):
        kl_statistics(BASE, broken, TOKENS)
