"""Samplers that remove tokens. Each changes the given `Candidates` and keeps at least one token.

Below them are the samplers that change the distribution.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from weft.llm.sampling.candidates import SMALL, Candidates, Running, k_largest, scratch, select

_NO_WEIGHT = -80.0
"""A logit this far below the largest counts as nothing, though exp of it is not 0 in float32."""
_SLACK = 1 - 1e-5
"""Factor by which bounds that only save work are loosened, because of float32 rounding."""


def top_k(c: Candidates, k: int) -> None:
    """Keeps the `k` likeliest tokens."""
    if k >= len(c):
        return
    if c.ordered:
        c.keep(np.arange(k), True)
    else:
        c.keep(k_largest(c.logits, k), True)


def min_p(c: Candidates, p: float, keep: int = 1) -> None:
    """Keeps tokens at least `p` times as likely as the likeliest one (arXiv 2407.01082), and at
    least `keep` tokens."""
    kept = np.flatnonzero(c.logits >= c.logits.max() + math.log(p))
    if len(kept) < keep:
        top_k(c, keep)
    elif len(kept) < len(c):
        c.keep(kept, c.ordered)


def top_p(c: Candidates, p: float, next_min_p: float = 0.0, keep: int = 1) -> None:
    """Keeps the smallest set of likeliest tokens whose probabilities add up to `p` (arXiv
    1904.09751), and at least `keep` tokens.

    `next_min_p` is the option of min-p if that is the next sampler: tokens that it will remove need
    no sorting here."""
    if len(c) <= SMALL:
        if not c.ordered:
            c.keep(c.order(), True)
        sums = Running(c.weights())
        n = max(sums.find(p * sums.total) + 1, min(keep, len(c)))
        c.keep(np.arange(n), True)
        return
    weights = c.weights()
    total = Running(weights).total
    # at most n tokens weigh less than x; they add up to less than n x, so all can go
    x = max((1 - p) * total / len(c), next_min_p) * _SLACK
    near = np.flatnonzero(weights >= x)
    weights = weights.take(near)
    falling = np.sort(weights)[::-1]
    k = Running(falling).find(p * total) + 1
    if k < keep:
        return top_k(c, keep)
    c.keep(near[select(weights, k, falling[k - 1])])


def typical(c: Candidates, p: float, keep: int = 1) -> None:
    """Keeps the tokens whose surprise is nearest to the entropy, until their probabilities add up
    to more than `p` (arXiv 2202.00666), and at least `keep` tokens."""
    entropy, log_total = _entropy(c)
    distance = c.falls()
    distance += entropy - log_total  # the surprise is log_total - fall
    np.abs(distance, out=distance)
    near = None
    if len(c) > SMALL and keep < 2:
        # as in top_p, tokens likelier than x suffice, and so does everything as near as these
        x = (1 - p) / len(c) * _SLACK
        reach = max(entropy - log_total, -math.log(max(x, 1e-300)) - entropy)
        near = np.flatnonzero(distance <= reach + 1e-3)
        distance = distance.take(near)
    # a stable sort of very many takes too long
    order = np.argsort(distance, kind="stable" if len(distance) <= SMALL else "quicksort")
    if near is not None:
        order = near[order]
    weights = c.weights()
    total = Running(weights).total
    n = Running(weights.take(order)).find(p * total, "right") + 1
    c.keep(order[: max(n, keep)])


def _entropy(c: Candidates) -> tuple[float, float]:
    """The entropy of the candidates in nats, and the logarithm of the sum of weights."""
    falls = c.falls()
    np.maximum(falls, _NO_WEIGHT, out=falls)  # 0 times infinity would be NaN
    weights = np.exp(falls, out=None if len(c) <= SMALL else scratch("exp", len(c)))
    total = float(weights.sum(dtype=np.float64))
    return math.log(total) - float(np.dot(weights, falls)) / total, math.log(total)


def top_n_sigma(c: Candidates, n: float) -> None:
    """Keeps logits within `n` standard deviations of the largest (arXiv 2411.07641)."""
    logits = c.logits
    is_finite = np.isfinite(logits)
    finite = logits if is_finite.all() else logits[is_finite]
    spread = finite.std()
    if not np.isfinite(spread):  # the squares of huge logits overflow
        spread = finite.std(dtype=np.float64)
    kept = np.flatnonzero(logits >= logits.max() - n * spread)
    if len(kept) < len(c):
        c.keep(kept, c.ordered)


def xtc(c: Candidates, threshold: float, keep: int = 1) -> None:
    """Removes tokens of at least probability `threshold`, except the least likely of them (exclude
    top choices, llama.cpp pull request 9742).

    Removes nothing if there are fewer than two, or if fewer than `keep` tokens would stay."""
    weights = c.weights()
    choices = np.flatnonzero(weights >= threshold * weights.sum(dtype=np.float64))
    if len(choices) < 2 or len(c) - len(choices) + 1 < keep:
        return
    stays = np.ones(len(c), np.bool_)
    stays[choices] = False
    last = len(choices) - 1 - int(weights[choices][::-1].argmin())
    stays[choices[last]] = True
    c.keep(np.flatnonzero(stays), c.ordered)


# Samplers that change the distribution: the temperature, mirostat 2.0 and adaptive-p.


def temperature(c: Candidates, t: float) -> None:
    """Divides logits by `t`; 0 keeps only the likeliest token, of equal ones the first."""
    if t == 0.0:
        c.keep_only(0 if c.ordered else int(c.logits.argmax()))
    elif t != 1.0:
        # with the largest subtracted, a tiny temperature can overflow only to minus infinity,
        # which is probability 0; the limits keep t itself in float32
        logits = c.writable()
        logits -= logits.max()
        logits /= min(max(t, 1e-30), 1e30)


def dynamic_temperature(c: Candidates, t: float, reach: float, exponent: float) -> None:
    """Divides logits by a temperature between `t - reach` (at least 0), if one token is certain,
    and `t + reach`, if all are equally likely.

    In between it grows with the `exponent`-th power of the entropy relative to its maximum."""
    if len(c) == 1:
        return
    low, high = max(0.0, t - reach), t + reach
    entropy = min(max(_entropy(c)[0] / math.log(len(c)), 0.0), 1.0)
    temperature(c, low + (high - low) * entropy**exponent)


class Mirostat:
    """Mirostat 2.0 (arXiv 2007.14966, algorithm 2) keeps the surprise of tokens steady: it keeps
    tokens whose surprise is at most `mu` bits, and adjusts `mu` after each draw."""

    def __init__(self, tau: float, eta: float) -> None:
        """`tau` is the surprise to aim at, in bits, and `eta` the learning rate of `mu`."""
        self._tau, self._eta = tau, eta
        self.mu = 2 * tau

    def shape(self, c: Candidates) -> None:
        """Removes tokens whose surprise is above `mu`; the likeliest token always stays."""
        weights = c.weights()
        total = float(weights.sum(dtype=np.float64))
        # weight / total >= 2 ** -mu
        kept = np.flatnonzero(weights >= min(total * 2.0 ** -max(self.mu, -60.0), 1.0))
        c.keep(kept, c.ordered)

    def observe(self, position: int, probability: float) -> None:
        """Adjusts `mu` after a token was drawn, with this probability among the kept ones."""
        surprise = -math.log2(probability)
        self.mu -= self._eta * (surprise - self._tau)


_WIDTH = 0.3
"""Width of the peak of new logits around the probability aimed at."""
_PEAK = 5.0
"""New logit of a token that has exactly this probability."""
_SHARPNESS = 10.0
"""Slope of the new logits far from the peak."""


class AdaptiveP:
    """Prefers tokens near a probability, and adjusts it so that the drawn ones average `target`
    (llama.cpp pull request 17927)."""

    def __init__(self, target: float, decay: float) -> None:
        """`target` is the average probability to aim at; `decay`, below 1, is the factor by which a
        token counts less in the average with each later one."""
        self._target, self._decay = target, decay
        self._count = 1 / (1 - decay)  # as if all earlier tokens had the target's probability
        self._sum = target * self._count
        self._probabilities: NDArray[np.float64] = np.ones(1)

    def shape(self, c: Candidates) -> None:
        """Replaces the logits; tokens that cannot be drawn keep minus infinity."""
        weights = c.weights().astype(np.float64)
        self._probabilities = weights / weights.sum()
        aim = min(max(2 * self._target - self._sum / self._count, 0.0), 1.0)
        distance = np.abs(self._probabilities - aim) / _WIDTH
        logits = _PEAK - _SHARPNESS * distance**2 / (1 + distance)
        c.set_logits(np.arange(len(c)), np.where(np.isneginf(c.logits), -np.inf, logits))

    def observe(self, position: int, probability: float) -> None:
        """Adds the drawn token to the average, with its probability before `shape`."""
        self._sum = self._decay * self._sum + float(self._probabilities[position])
        self._count = self._decay * self._count + 1
