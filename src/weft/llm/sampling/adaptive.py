"""Adaptive-p (llama.cpp pull request 17927): draws tokens whose probabilities average a target."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weft.llm.sampling.candidates import Candidates

__all__ = ["AdaptiveP"]

_WIDTH = 0.3
"""Width of the peak of new logits around the probability aimed at."""
_PEAK = 5.0
"""New logit of a token that has exactly this probability."""
_SHARPNESS = 10.0
"""Slope of the new logits far from the peak."""


class AdaptiveP:
    """Prefers tokens near a probability, and adjusts it so that the drawn ones average `target`."""

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
