"""Samplers that change the distribution: the temperature, mirostat 2.0 and adaptive-p."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from weft.llm.sampling.candidates import Candidates
from weft.llm.sampling.cuts import entropy_of

__all__ = ["AdaptiveP", "Mirostat", "dynamic_temperature", "temperature"]


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
    entropy = min(max(entropy_of(c) / math.log(len(c)), 0.0), 1.0)
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
