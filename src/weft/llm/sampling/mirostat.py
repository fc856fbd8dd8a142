"""Mirostat 2.0 (arXiv 2007.14966, algorithm 2): text of a steady surprise."""

from __future__ import annotations

import math

import numpy as np

from weft.llm.sampling.candidates import Candidates

__all__ = ["Mirostat"]


class Mirostat:
    """Keeps the tokens whose surprise is at most `mu` bits, and moves `mu` by what was drawn."""

    def __init__(self, tau: float, eta: float) -> None:
        """`tau`: the surprise to hold, in bits; `eta`: how fast `mu` follows."""
        self._tau, self._eta = tau, eta
        self.mu = 2 * tau

    def shape(self, c: Candidates) -> None:
        """Drops what surprises more than `mu`; the likeliest token always stays."""
        weights = c.weights()
        total = float(weights.sum(dtype=np.float64))
        # weight / total >= 2 ** -mu
        kept = np.flatnonzero(weights >= min(total * 2.0 ** -max(self.mu, -60.0), 1.0))
        c.keep(kept, c.ordered)

    def observe(self, position: int, probability: float) -> None:
        """Corrects `mu` by a token drawn with this probability among those kept."""
        surprise = -math.log2(probability)
        self.mu -= self._eta * (surprise - self._tau)
