"""Temperature, fixed or depending on the entropy of the candidates."""

from __future__ import annotations

import math

from weft.llm.sampling.candidates import Candidates
from weft.llm.sampling.cuts import entropy_of

__all__ = ["dynamic_temperature", "temperature"]


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
