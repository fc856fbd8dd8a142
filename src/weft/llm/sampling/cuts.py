"""Samplers that leave tokens out. Each changes the `Candidates` that it is given and leaves one
token at least."""

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
"""A logit this far below the largest counts for nothing; its exponential is still a float32."""
_SLACK = 1 - 1e-5
"""Bounds that save work are taken this much looser, for float32."""


def top_k(c: Candidates, k: int) -> None:
    """The `k` likeliest."""
    if k >= len(c):
        return
    if c.ordered:
        c.keep(np.arange(k), True)
    else:
        c.keep(k_largest(c.logits, k), True)


def min_p(c: Candidates, p: float, keep: int = 1) -> None:
    """Those at least `p` times as likely as the likeliest (arXiv 2407.01082); `keep` at least."""
    kept = np.flatnonzero(c.logits >= c.logits.max() + math.log(p))
    if len(kept) < keep:
        top_k(c, keep)
    elif len(kept) < len(c):
        c.keep(kept, c.ordered)


def top_p(c: Candidates, p: float, next_min_p: float = 0.0, keep: int = 1) -> None:
    """The fewest likeliest that have `p` of all probability (arXiv 1904.09751); the one that
    crosses `p` stays, and `keep` at least.

    `next_min_p`: of min-p where that comes next, so that what it will drop need not be ordered."""
    if len(c) <= SMALL:
        if not c.ordered:
            c.keep(c.order(), True)
        sums = Running(c.weights())
        n = max(sums.find(p * sums.total) + 1, min(keep, len(c)))
        c.keep(np.arange(n), True)
        return
    weights = c.weights()
    total = Running(weights).total
    # tokens of weight below x are n at most, and so have less than n x: these can all go
    x = max((1 - p) * total / len(c), next_min_p) * _SLACK
    near = np.flatnonzero(weights >= x)
    weights = weights.take(near)
    falling = np.sort(weights)[::-1]
    k = Running(falling).find(p * total) + 1
    if k < keep:
        return top_k(c, keep)
    c.keep(near[select(weights, k, falling[k - 1])])


def typical(c: Candidates, p: float, keep: int = 1) -> None:
    """Those whose surprise is nearest to the entropy, up to a sum over `p` (arXiv 2202.00666);
    `keep` at least."""
    entropy, log_total = _entropy(c)
    distance = c.falls()
    distance += entropy - log_total  # the surprise is log_total - fall
    np.abs(distance, out=distance)
    near = None
    if len(c) > SMALL and keep < 2:
        # as in top_p, what is likelier than x is enough; so is everything as near as these
        x = (1 - p) / len(c) * _SLACK
        reach = max(entropy - log_total, -math.log(max(x, 1e-300)) - entropy)
        near = np.flatnonzero(distance <= reach + 1e-3)
        distance = distance.take(near)
    # a stable order of very many takes too long
    order = np.argsort(distance, kind="stable" if len(distance) <= SMALL else "quicksort")
    if near is not None:
        order = near[order]
    weights = c.weights()
    total = Running(weights).total
    n = Running(weights.take(order)).find(p * total, "right") + 1
    c.keep(order[: max(n, keep)])


def _entropy(c: Candidates) -> tuple[float, float]:
    """Entropy of what is left, in nats, and the logarithm of the sum of weights."""
    falls = c.falls()
    np.maximum(falls, _NO_WEIGHT, out=falls)  # less infinite ones
    weights = np.exp(falls, out=None if len(c) <= SMALL else scratch("exp", len(c)))
    total = float(weights.sum(dtype=np.float64))
    return math.log(total) - float(np.dot(weights, falls)) / total, math.log(total)


def entropy_of(c: Candidates) -> float:
    """Entropy of what is left, in nats."""
    return _entropy(c)[0]


def top_n_sigma(c: Candidates, n: float) -> None:
    """Logits within `n` standard deviations of the largest (arXiv 2411.07641)."""
    logits = c.logits
    finite = np.isfinite(logits)
    some = logits if finite.all() else logits[finite]
    spread = some.std()
    if not np.isfinite(spread):  # squares of huge logits
        spread = some.std(dtype=np.float64)
    kept = np.flatnonzero(logits >= logits.max() - n * spread)
    if len(kept) < len(c):
        c.keep(kept, c.ordered)


def xtc(c: Candidates, threshold: float, keep: int = 1) -> None:
    """Without the tokens of probability `threshold` and more, save the least likely of them; as it
    is where there are not two, and where fewer than `keep` would stay (exclude top choices,
    llama.cpp pull request 9742)."""
    weights = c.weights()
    choices = np.flatnonzero(weights >= threshold * weights.sum(dtype=np.float64))
    if len(choices) < 2 or len(c) - len(choices) + 1 < keep:
        return
    stays = np.ones(len(c), np.bool_)
    stays[choices] = False
    last = len(choices) - 1 - int(weights[choices][::-1].argmin())
    stays[choices[last]] = True
    c.keep(np.flatnonzero(stays), c.ordered)
