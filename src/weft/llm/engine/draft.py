"""`Draft`: one text as it grows, from logits to what may be shown; `Stats`: what it took."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from weft.llm.sampling import Sampler, TokenLogprobs, token_logprobs
from weft.llm.tokenizers.stop_strings import StopStrings
from weft.llm.tokenizers.tokenizer import Tokenizer

__all__ = ["Draft", "FinishReason", "Stats"]

FinishReason = Literal["", "stop", "length", "context"]
"""Why text ended: the model's own end, a stop string or a constraint that is met; `max_tokens`;
or a full context. Empty while it goes on or when it was interrupted."""


@dataclass(slots=True)
class Stats:
    """Tokens and time of the last generation; the caller's time between pieces does not count. Of a
    list of prompts, sums, and the time of all as generation."""

    n_prompt: int = 0
    n_cached: int = 0
    """Tokens of the prompt that were still in the cache, and so not computed."""
    prompt_seconds: float = 0.0
    n_generated: int = 0
    """Tokens drawn, the one that ended the text included."""
    generation_seconds: float = 0.0
    """Time of all tokens but the first, which the prompt's logits gave."""
    finish_reason: FinishReason = ""
    """Of a list of prompts, that of the last."""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Of each drawn token, the one that ended the text included, where they were asked for."""

    @property
    def prompt_tokens_per_second(self) -> float:
        """Speed of prompt processing."""
        n = self.n_prompt - self.n_cached
        return n / self.prompt_seconds if self.prompt_seconds else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Speed of generation."""
        n = max(self.n_generated - 1, 0)
        return n / self.generation_seconds if self.generation_seconds else 0.0


class Draft:
    """Draws tokens and holds back what may not be shown yet: half characters, and what may become a
    stop string."""

    def __init__(
        self,
        sampler: Sampler,
        tokenizer: Tokenizer,
        stops: StopStrings,
        *,
        ends: Collection[int],
        max_tokens: int | None,
        logprobs: int | None = None,
        special: bool = False,
    ) -> None:
        """`sampler`: started with the prompt. `ends`: tokens that end it. `logprobs`: keep
        log-probabilities, with those of this many likeliest tokens. `special`: control tokens are
        text, too."""
        self._sampler = sampler
        self._stream = tokenizer.stream(special=special)
        self._stops = stops
        self._ends = ends
        self._max_tokens = max_tokens
        self._n_logprobs = logprobs
        self.logprobs: list[TokenLogprobs] = []
        self.n_drawn = 0
        """Tokens, the one that ended the text included."""
        self.token = -1
        """The last one drawn."""
        self.ended_by_token = False
        """Whether the last token is one that ends texts, and so none of the text."""
        self.finish_reason: FinishReason = ""

    def push(self, logits: NDArray[np.float32]) -> str:
        """Draws a token from `logits` [n_vocab]; returns the text that is now certain.

        While `finish_reason` is empty, `token` is to be decoded next."""
        token = self.token = self._sampler.sample(logits)
        self.n_drawn += 1
        if self._n_logprobs is not None:
            self.logprobs.append(token_logprobs(logits, token, self._n_logprobs))
        if token in self._ends:
            self.ended_by_token = True
            return self.finish("stop")
        self._sampler.accept(token)
        text, stopped = self._stops.push(self._stream.push(token))
        if stopped:
            self.finish_reason = "stop"
        elif self._sampler.done:
            text += self.finish("stop")
        elif self.n_drawn == self._max_tokens:
            text += self.finish("length")
        return text

    def finish(self, reason: FinishReason) -> str:
        """Ends the text where it is; returns what was held back."""
        text, stopped = self._stops.push(self._stream.flush())
        self.finish_reason = "stop" if stopped else reason
        return text if stopped else text + self._stops.flush()
