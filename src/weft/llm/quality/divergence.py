"""The divergence between the probabilities of two models, by llama-perplexity's method.

    statistics = KLStatistics()
    for base, logits, targets in ...:         # a few rows at a time
        statistics.add(base, logits, targets)
    statistics.result().kl.value              # nats

For each scored token, p is the probability that the model gives it and q the one of the base model.
KL is the sum of q * (log q - log p) over the vocabulary, without tokens of log q <= -16; Δp is
p - q of the token that follows in the text. Errors are standard errors of means, propagated to
first order. Kept are sums, and two f32 of each token for the percentiles.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weft.errors import ContextError
from weft.llm.quality.logits_file import DEPTH, Rows, log_probs, log_sums, some_rows
from weft.records import dataclass

PERCENTILES = (99.9, 99.0, 95.0, 90.0, 75.0, 25.0, 10.0, 5.0, 1.0, 0.1)


MOST_KL = 1.0
"""Mean divergence, nats, above which a model is of no use in place of another: in the mean it takes
a token of the other to be e times less likely."""
LEAST_SAME_TOP = 0.5
"""Share of places with the other's most likely token below which a model is of no use."""


def why_of_no_use(kl: float, same_top: float) -> str | None:
    """Why a model with this mean divergence from an original, in nats, and this share of places
    with the original's most likely token is of no use in its place; None: it is of use."""
    if kl <= MOST_KL and same_top >= LEAST_SAME_TOP:
        return None
    return (
        f"its mean divergence is {kl:.3g} nats (of use: at most {MOST_KL:g}), and its most likely "
        f"token is the original's in {same_top:.2%} of the places (of use: at least "
        f"{LEAST_SAME_TOP:.0%})"
    )


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and one standard error of it."""

    value: float
    error: float


@dataclass(frozen=True, slots=True)
class Spread:
    """The distribution of a figure over single tokens."""

    minimum: float
    median: float
    maximum: float
    percentiles: dict[float, float]
    """The value at each percentage, for example 99.9."""


@dataclass(frozen=True, slots=True)
class KLDivergence:
    """A model against a base model, from the tokens scored so far."""

    n_tokens: int
    ppl: Estimate
    ppl_base: Estimate
    correlation: float
    """Correlation of log p and log q over the tokens of the text."""
    ln_ppl_ratio: Estimate
    """ln(ppl / ppl_base)."""
    ppl_ratio: Estimate
    ppl_difference: Estimate
    kl: Estimate
    """Mean KL divergence per token, in nats."""
    kl_spread: Spread | None
    """The distribution over tokens; None if only sums were asked for."""
    p_change: Estimate
    """Mean Δp, 0 to 1."""
    p_change_spread: Spread | None
    p_change_rms: Estimate
    same_top: Estimate
    """Share of tokens for which both models give the same token the most."""

    def as_dict(self) -> dict[str, Any]:
        """The figures as plain data, for JSON; percentiles are named "99.9" and so on."""
        row: dict[str, Any] = {"n_tokens": self.n_tokens}
        for name in ("ppl", "ppl_base", "ln_ppl_ratio", "ppl_ratio", "ppl_difference", "kl",
                     "p_change", "p_change_rms", "same_top"):  # fmt: skip
            estimate = getattr(self, name)
            row[name], row[f"{name}_error"] = estimate.value, estimate.error
        row["correlation"] = self.correlation
        for name in ("kl_spread", "p_change_spread"):
            spread: Spread | None = getattr(self, name)
            if spread is not None:
                percentiles = {f"{per:g}": value for per, value in spread.percentiles.items()}
                row[name] = {
                    "minimum": spread.minimum,
                    "median": spread.median,
                    "maximum": spread.maximum,
                    "percentiles": percentiles,
                }
        return row


class KLStatistics:
    """Collects the figures of tokens, a few rows at a time."""

    def __init__(self) -> None:
        self._nll = _Sums()
        self._nll_base = _Sums()
        self._both = 0.0
        self._kl = _Sums()
        self._change = _Sums()
        self._change2 = _Sums()
        self._same = 0
        self._kls: list[NDArray[np.float32]] = []
        self._changes: list[NDArray[np.float32]] = []

    @property
    def n_tokens(self) -> int:
        """The number of tokens so far."""
        return self._kl.count

    def add(self, base: Rows, logits: Rows, targets: ArrayLike) -> None:
        """Adds tokens: log q of all tokens of the base model (`log_probs`, or `unpack` of a file)
        and logits of the model, both f32 [n_rows, n_vocab], and the tokens [n_rows] that follow.

        Raises ContextError for other sizes, and for logits that are not finite."""
        following = np.asarray(targets, np.int64)
        if base.shape != logits.shape or following.shape != logits.shape[:1]:
            raise ContextError(
                f"the base model has rows {list(base.shape)}, the model {list(logits.shape)}, for "
                f"{len(following)} tokens; both must have one vocabulary and the same tokens"
            )
        for part in some_rows(*logits.shape):
            self._add(base[part], logits[part], following[part])

    def _add(self, base: Rows, logits: Rows, targets: NDArray[np.int64]) -> None:
        at = np.arange(len(targets))
        top, log_sum = log_sums(logits)
        normal = top + log_sum
        nll = normal[:, 0] - logits[at, targets]
        nll_base = -base[at, targets]
        terms = np.exp(base)
        terms *= base - logits + normal
        terms[base <= -DEPTH] = 0
        kl = terms.sum(axis=1, dtype=np.float64)
        if not np.isfinite(kl).all():
            raise ContextError("logits are infinite or not a number; the file may be damaged")
        change = np.exp(-nll) - np.exp(-nll_base)
        self._nll.add(nll)
        self._nll_base.add(nll_base)
        self._both += float((nll * nll_base).sum(dtype=np.float64))
        self._kl.add(kl)
        self._change.add(change)
        self._change2.add(change * change)
        self._same += int((logits.argmax(axis=1) == base.argmax(axis=1)).sum())
        self._kls.append(kl.astype(np.float32))
        self._changes.append(change)

    def result(self, *, spread: bool = True) -> KLDivergence:
        """The figures of the tokens so far; percentiles only with `spread`, because they sort.

        Raises ContextError if there are no tokens yet."""
        n = self.n_tokens
        if not n:
            raise ContextError("no token has been scored yet")
        log, log_base = self._nll.mean(), self._nll_base.mean()
        covariance = 0.0
        if n >= 10:
            covariance = (self._both / n - self._nll.total / n * (self._nll_base.total / n)) / (
                n - 1
            )
        errors = log.error * log_base.error
        ppl, ppl_base = _exp(log), _exp(log_base)
        ratio = Estimate(log.value - log_base.value, _difference(log, log_base, covariance))
        squares = self._change2.mean()
        rms = math.sqrt(squares.value)
        same = self._same / n
        difference = _difference(ppl, ppl_base, ppl.value * ppl_base.value * covariance)
        return KLDivergence(
            n_tokens=n,
            ppl=ppl,
            ppl_base=ppl_base,
            correlation=covariance / errors if errors > 0 else 0.0,
            ln_ppl_ratio=ratio,
            ppl_ratio=_exp(ratio),
            ppl_difference=Estimate(ppl.value - ppl_base.value, difference),
            kl=self._kl.mean(),
            kl_spread=_spread(self._kls) if spread else None,
            p_change=self._change.mean(),
            p_change_spread=_spread(self._changes) if spread else None,
            p_change_rms=Estimate(rms, 0.5 / rms * squares.error if rms else 0.0),
            same_top=Estimate(same, math.sqrt(same * (1 - same) / (n - 1)) if n > 1 else 0.0),
        )


def kl_statistics(
    base_logits: Rows | Iterable[Rows], logits: Rows | Iterable[Rows], tokens: ArrayLike
) -> KLDivergence:
    """The figures of a model with `logits` against one with `base_logits`, both f32
    [n_rows, n_vocab] or blocks of rows of the same sizes that are read one at a time; `tokens`
    [n_rows] follow in the text. Raises ContextError as `KLStatistics.add`."""
    statistics, at = KLStatistics(), 0
    targets = np.asarray(tokens, np.int64)
    one, other = _blocks(base_logits), _blocks(logits)
    for base, rows in zip(one, other, strict=True):
        statistics.add(log_probs(base), rows, targets[at : at + len(rows)])
        at += len(rows)
    if at != len(targets):
        raise ContextError(f"{at} rows of logits for {len(targets)} tokens; each needs one")
    return statistics.result()


class _Sums:
    """The sum and the sum of squares of values."""

    def __init__(self) -> None:
        self.total, self.squares, self.count = 0.0, 0.0, 0

    def add(self, values: NDArray[Any]) -> None:
        self.total += float(values.sum(dtype=np.float64))
        self.squares += float((values * values).sum(dtype=np.float64))
        self.count += len(values)

    def mean(self) -> Estimate:
        """The mean and its standard error; 0 for so few values that it would mean nothing."""
        mean = self.total / self.count
        variance = self.squares / self.count - mean * mean
        few = self.count <= 10 or variance <= 0
        return Estimate(mean, 0.0 if few else math.sqrt(variance / (self.count - 1)))


def _blocks(rows: Rows | Iterable[Rows]) -> Iterable[Rows]:
    return [rows] if isinstance(rows, np.ndarray) else rows


def _exp(log: Estimate) -> Estimate:
    value = math.exp(min(log.value, 700.0))
    return Estimate(value, value * log.error)


def _difference(one: Estimate, other: Estimate, covariance: float) -> float:
    """The standard error of the difference of two figures of the same tokens."""
    return math.sqrt(max(one.error**2 + other.error**2 - 2 * covariance, 0.0))


def _spread(parts: list[NDArray[np.float32]]) -> Spread:
    values = np.sort(np.concatenate(parts))
    last = np.float32(len(values) - 1)
    found: dict[float, float] = {}
    for per in PERCENTILES:  # by llama-perplexity's formula, in f32
        place = np.float32(per / 100) * last
        lower = int(place)
        part = place - np.float32(lower)
        upper = min(lower + 1, len(values) - 1)
        found[per] = float((np.float32(1) - part) * values[lower] + part * values[upper])
    half = len(values) // 2
    median = (
        values[half] if len(values) % 2 else np.float32(0.5) * (values[half] + values[half - 1])
    )
    return Spread(float(values[0]), float(median), float(values[-1]), found)
