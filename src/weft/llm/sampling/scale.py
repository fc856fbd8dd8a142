"""Temperature: fixed, or moving with the entropy of what is left."""

from __future__ import annotations

import math

from weft.llm.sampling.candidates import Candidates
from weft.llm.sampling.cuts import entropy_of

__all__ = ["dynamic_temperature", "temperature"]


def temperature(c: Candidates, t: float) -> None:
    """Logits divided by `t`; 0 leaves the likeliest token alone, of equal ones the first."""
    if t == 0.0:
        c.keep_only(0 if c.ordered else int(c.logits.argmax()))
    elif t != 1.0:
        # less the largest first, so that a tiny temperature can only overflow to minus infinity,
        # which is probability 0; the limits keep t itself in float32
        logits = c.writable()
        logits -= logits.max()
        logits /= min(max(t, 1e-30), 1e30)


def dynamic_temperature(c: Candidates, t: float, reach: float, exponent: float) -> None:
    """A temperature of `t - reach` (0 at least) where one token is certain, `t + reach` where all
    are equally likely, by the entropy's `exponent`-th power in between."""
    if len(c) == 1:
        return
    low, high = max(0.0, t - reach), t + reach
    certainty = min(max(entropy_of(c) / math.log(len(c)), 0.0), 1.0)
    temperature(c, low + (high - low) * certainty**exponent)
