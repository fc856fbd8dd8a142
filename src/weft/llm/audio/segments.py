"""`Segment`: a part of a transcript."""

from __future__ import annotations

from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a transcript."""

    start: float
    end: float
    """Seconds from the beginning of the sound."""
    text: str
    tokens: tuple[int, ...]
    """Token ids, tokens of times included."""
    temperature: float
    avg_logprob: float
    """Mean logarithm of the probabilities of the window's tokens."""
    compression_ratio: float
    """Bytes of the window's text for each byte that zlib makes of it."""
    no_speech_prob: float
    """Probability that nobody speaks in the window."""
    seek: int
    """Frame of 10 ms where the window begins."""
