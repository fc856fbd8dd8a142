"""Samplers that remove tokens. Each changes the given `Candidates` and keeps at least one token."""

from __future__ import annotations

import math

import numpy as np

from weft.llm.sampling.candidates import (
    SMALL,
    Candidates,
    Running,
    k_largest,
    scratch,
    select,
)

__all__ = ["min_p", "top_k", "top_n_sigma", "top_p", "typical", "xtc"]

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


def entropy_of(c: Candidates) -> float:
    """The entropy of the candidates, in nats."""
    return _entropy(c)[0]


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
