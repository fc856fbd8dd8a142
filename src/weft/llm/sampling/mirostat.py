"""Mirostat 2.0 (arXiv 2007.14966, algorithm 2), which keeps the surprise of tokens steady."""

from __future__ import annotations

import math

import numpy as np

from weft.llm.sampling.candidates import Candidates

__all__ = ["Mirostat"]


class Mirostat:
    """Keeps tokens whose surprise is at most `mu` bits, and adjusts `mu` after each draw."""

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
