"""Logits to a token: greedy, or temperature with top-k, top-p and min-p, in a stated order.

The order is llama.cpp's: top-k, then top-p over what is left, then min-p, then the temperature,
then the draw. Top-p: nucleus sampling (arXiv 1904.09751); min-p: arXiv 2407.01082.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.errors import ContextError

__all__ = ["Sampler", "SamplingParams"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a token is chosen; raises ContextError for a value out of range."""

    temperature: float = 0.8
    """0: always the most likely token; larger is more varied."""
    top_k: int = 40
    """Keep the k most likely tokens; 0: all."""
    top_p: float = 0.95
    """Keep the smallest set of likeliest tokens whose probabilities sum to p; 1: all."""
    min_p: float = 0.05
    """Keep tokens at least this likely relative to the likeliest one; 0: all."""
    seed: int | None = None
    """The same seed gives the same draws; None: a fresh one."""

    def __post_init__(self) -> None:
        _check("temperature", self.temperature, 0.0, math.inf)
        _check("top_k", self.top_k, 0, math.inf)
        _check("top_p", self.top_p, 0.0, 1.0)
        _check("min_p", self.min_p, 0.0, 1.0)
        if self.seed is not None:
            _check("seed", self.seed, 0, math.inf)


def _check(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high or (high == math.inf and value == math.inf):
        end = "" if high == math.inf else f" to {high:g}"
        raise ContextError(f"{name} is {value}; it must be {low:g}{end or ' or more'}")


class Sampler:
    """Draws tokens with its own random generator; one for each text."""

    def __init__(self, params: SamplingParams) -> None:
        self.params = params
        self._random = np.random.Generator(np.random.PCG64(params.seed))

    def sample(self, logits: NDArray[np.float32]) -> int:
        """A token id for `logits` [n_vocab]; ties go to the lowest id.

        Raises ContextError when a logit is NaN or the largest is infinite."""
        if self.params.temperature == 0.0 or self.params.top_k == 1:
            best = int(logits.argmax())  # NaN counts as largest
            if not math.isfinite(logits[best]):
                raise _not_finite()
            return best
        ids, probs = self.distribution(logits)
        cumulative = np.cumsum(probs)
        draw = self._random.random() * cumulative[-1]
        return int(ids[min(int(np.searchsorted(cumulative, draw, "right")), len(ids) - 1)])

    def distribution(
        self, logits: NDArray[np.float32]
    ) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        """The tokens that can be drawn, most likely first, and their probabilities."""
        p = self.params
        n = len(logits)
        if not math.isfinite(logits.max()):  # NaN counts as largest
            raise _not_finite()
        ids = _largest(logits, p.top_k if 0 < p.top_k < n else n)
        scores = logits[ids].astype(np.float64)
        probs = _softmax(scores)
        keep = len(ids)
        if p.top_p < 1.0:
            # the token that crosses p is kept
            keep = min(keep, int(np.searchsorted(np.cumsum(probs), p.top_p)) + 1)
        if p.min_p > 0.0:
            keep = min(keep, int(np.count_nonzero(probs >= p.min_p * probs[0])))
        keep = max(keep, 1)
        if p.temperature == 0.0:
            return ids[:1], np.ones(1)
        # the largest score is subtracted first, so that a tiny temperature can only overflow to
        # minus infinity, which is probability 0
        with np.errstate(over="ignore"):
            return ids[:keep], _softmax((scores[:keep] - scores[0]) / p.temperature)


def _largest(logits: NDArray[np.float32], k: int) -> NDArray[np.intp]:
    """Ids of the `k` largest, largest first, ties by id."""
    if k < len(logits):
        # everything equal to the k-th is in, so that ties go by id and not by chance
        kth = np.partition(logits, len(logits) - k)[len(logits) - k]
        candidates = np.flatnonzero(logits >= kth)
    else:
        candidates = np.arange(len(logits))
    order = np.argsort(-logits[candidates], kind="stable")[:k]
    return candidates[order]


def _softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probabilities of scores whose first is the largest."""
    e = np.exp(scores - scores[0])
    probs: NDArray[np.float64] = e / e.sum()
    return probs


def _not_finite() -> ContextError:
    return ContextError(
        "the largest logit of the model is infinite or not a number; the file may be damaged, or "
        "the model needs f32 activations"
    )
