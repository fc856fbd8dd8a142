"""Adaptive-p (llama.cpp pull request 17927): tokens whose probabilities average a target."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weft.llm.sampling.candidates import Candidates

__all__ = ["AdaptiveP"]

_WIDTH = 0.3
"""Of the hill of new logits around the probability aimed at."""
_PEAK = 5.0
"""The new logit of a token that has just this probability."""
_SHARPNESS = 10.0
"""How fast logits fall from there."""


class AdaptiveP:
    """Prefers tokens near a probability, and moves it so that the tokens drawn average `target`."""

    def __init__(self, target: float, decay: float) -> None:
        """`target`: the probability to hold; `decay`: what a token still counts for in the average
        when the next one is drawn, below 1."""
        self._target, self._decay = target, decay
        self._count = 1 / (1 - decay)  # as if all tokens before had the target's probability
        self._sum = target * self._count
        self._probabilities: NDArray[np.float64] = np.ones(1)

    def shape(self, c: Candidates) -> None:
        """New logits; tokens that cannot be drawn stay so."""
        weights = c.weights().astype(np.float64)
        self._probabilities = weights / weights.sum()
        aim = min(max(2 * self._target - self._sum / self._count, 0.0), 1.0)
        distance = np.abs(self._probabilities - aim) / _WIDTH
        hill = _PEAK - _SHARPNESS * distance**2 / (1 + distance)
        c.set_logits(np.arange(len(c)), np.where(np.isneginf(c.logits), -np.inf, hill))

    def observe(self, position: int, probability: float) -> None:
        """The token at `position` was drawn; what counts is how likely it was before."""
        self._sum = self._decay * self._sum + float(self._probabilities[position])
        self._count = self._decay * self._count + 1
