"""Log-probabilities of the model's own distribution, before any sampler changes it."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from weft.errors import ContextError
from weft.llm.sampling.candidates import Candidates, k_largest
from weft.records import dataclass

__all__ = ["TokenLogprobs", "token_logprobs"]


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """A token and the likeliest tokens in its place."""

    id: int
    logprob: float
    """Natural logarithm of the probability."""
    top: tuple[tuple[int, float], ...]
    """The likeliest tokens and their log-probabilities, most likely first."""


def token_logprobs(logits: NDArray[np.float32], id_: int, top: int = 0) -> TokenLogprobs:
    """The log-probabilities of token `id_` and of the `top` likeliest tokens, from the model's
    `logits` [n_vocab].

    Raises ContextError if `top` is negative or there is no such token."""
    if top < 0:
        raise ContextError(f"logprobs is {top}; it must be 0 or more")
    if not 0 <= id_ < len(logits):
        raise ContextError(f"token {id_} is not in 0..{len(logits) - 1}")
    largest = float(logits.max())
    total = float(Candidates(logits).weights().sum(dtype=np.float64))
    shift = largest + math.log(total)
    ids = k_largest(logits, min(top, len(logits))) if top else np.empty(0, np.intp)
    return TokenLogprobs(
        int(id_),
        float(logits[id_]) - shift,
        tuple(zip(ids.tolist(), (logits[ids].astype(np.float64) - shift).tolist(), strict=True)),
    )
