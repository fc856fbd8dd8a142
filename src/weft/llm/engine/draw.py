"""A row of logits to a token: what `weft.llm.sampling` does, and what an OpenAI request adds to it.

In order: logit bias, frequency and presence penalties (as the OpenAI API states them: subtracted
from the logits of tokens that the text already has), then the sampler. Log-probabilities are those
of the model, before all of it. The one place where the engine meets sampling.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from weft.errors import ContextError
from weft.llm.sampling import Sampler, SamplingParams

__all__ = ["DrawOptions", "Drawer", "log_probabilities"]

_MAX_TOP = 100


@dataclass(frozen=True, slots=True)
class DrawOptions:
    """How tokens of one text are chosen; raises ContextError for a value out of range."""

    sampling: SamplingParams = field(default_factory=SamplingParams)
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit for each time that the text has it."""
    presence_penalty: float = 0.0
    """Subtracted once from the logit of each token that the text has."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to logits."""
    logprobs: int | None = None
    """Give log-probabilities: of the token drawn, and of so many likeliest ones."""

    def __post_init__(self) -> None:
        for name in ("frequency_penalty", "presence_penalty"):
            if not math.isfinite(getattr(self, name)):
                raise ContextError(f"{name} is {getattr(self, name)}; it must be a number")
        if self.logprobs is not None and not 0 <= self.logprobs <= _MAX_TOP:
            raise ContextError(f"logprobs is {self.logprobs}; it must be 0 to {_MAX_TOP}")
        for token, bias in self.logit_bias.items():
            if token < 0 or not math.isfinite(bias):
                raise ContextError(f"logit_bias of token {token} is {bias}; give a number")


class Drawer:
    """Draws the tokens of one text."""

    def __init__(self, options: DrawOptions) -> None:
        self.options = options
        self._sampler = Sampler(options.sampling)
        self._seen: Counter[int] = Counter()
        self._penalized = bool(options.frequency_penalty or options.presence_penalty)
        self._bias = dict(options.logit_bias)

    def draw(self, logits: NDArray[np.float32]) -> tuple[int, float, tuple[tuple[int, float], ...]]:
        """A token for `logits` [n_vocab], its log-probability (nan if not asked for) and the
        likeliest tokens' with theirs. Raises ContextError for logits that are not finite."""
        changed = logits
        if self._bias or (self._penalized and self._seen):
            changed = logits.copy()
            for token, bias in self._bias.items():
                changed[token] += bias
            for token, n in self._seen.items() if self._penalized else ():
                changed[token] -= n * self.options.frequency_penalty + self.options.presence_penalty
        token = self._sampler.sample(changed)
        if self._penalized:
            self._seen[token] += 1
        if self.options.logprobs is None:
            return token, math.nan, ()
        return token, *log_probabilities(logits, token, self.options.logprobs)


def log_probabilities(
    logits: NDArray[np.float32], token: int, n_top: int
) -> tuple[float, tuple[tuple[int, float], ...]]:
    """The log-probability of `token`, and the `n_top` likeliest tokens with theirs."""
    scores = logits.astype(np.float64)
    scores -= scores.max()
    scores -= np.log(np.exp(scores).sum())
    n_top = min(n_top, len(scores))
    best = np.argpartition(-scores, n_top - 1)[:n_top] if n_top else np.empty(0, np.intp)
    best = best[np.argsort(-scores[best], kind="stable")]
    return float(scores[token]), tuple((int(i), float(scores[i])) for i in best)
