"""The counters and histograms of an engine."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import field, fields, replace
from time import monotonic

from weft.llm.engine.request import Done, Times
from weft.records import dataclass

SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
TOKENS = tuple(float(2**i) for i in range(18))
"""Bounds for numbers of tokens: 1 to 131,072."""


class Histogram:
    """Counts of values between bounds, as Prometheus has them. One thread adds values; any thread
    may read."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` are in rising order; a value counts for the first bound that is not less."""
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Counts a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def copy(self) -> Histogram:
        """The counts as they are now."""
        other = Histogram(self.bounds)
        other.counts, other.sum = self.counts.copy(), self.sum
        return other

    def __eq__(self, other: object) -> bool:
        mine = (self.bounds, self.counts, self.sum)
        return isinstance(other, Histogram) and mine == (other.bounds, other.counts, other.sum)

    __hash__ = None  # type: ignore[assignment]

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """For each bound, and then infinity, how many values are at most that."""
        total = 0
        for bound, count in zip((*self.bounds, float("inf")), tuple(self.counts), strict=True):
            total += count
            yield bound, total


_WINDOW = 10.0  # seconds over which speeds are averaged


@dataclass(slots=True)
class EngineStats:
    """Totals since the engine started. Its thread writes them; any thread may read them."""

    accepted: int = 0
    refused: int = 0
    """Requests refused at once, because the queue was full or the expected wait too long."""
    late: int = 0
    """Requests that waited longer than they may, and ended without a text."""
    ended: Counter[str] = field(default_factory=Counter)
    """Number of texts by the reason of their end."""
    prompt_tokens: int = 0
    """Prompt tokens computed, without those that were in the cache."""
    reused_tokens: int = 0
    """Prompt tokens that were in the cache."""
    generated_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    """Drafted tokens that were right."""
    steps: int = 0
    step_seconds: float = 0.0
    """Time of all steps, sampling included."""
    queue_seconds: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    """Time of each text from the request to its start."""
    first_token_seconds: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    """Time of each text from the request to its first token."""
    between_tokens_seconds: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    """Time of each token from the token before it."""
    text_seconds: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    """Time of each text from the request to its end."""
    prompt_sizes: Histogram = field(default_factory=lambda: Histogram(TOKENS))
    text_sizes: Histogram = field(default_factory=lambda: Histogram(TOKENS))
    prompt_seconds: float = 0.0
    """Sum of the times from the start of each ended text to its first token."""
    generation_seconds: float = 0.0
    """Sum of the times from the first token of each ended text to its end."""
    recent: deque[tuple[float, int, int]] = field(default_factory=lambda: deque(maxlen=4096))
    """End, prompt tokens and generated tokens of each of the last steps."""

    def copy(self) -> EngineStats:
        """The totals as they are now."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(self, **{k: v.copy() for k, v in values.items() if hasattr(v, "copy")})

    def count_token(self, times: Times) -> None:
        """Counts a token that has just been drawn, and notes when in `times`."""
        self.generated_tokens += 1
        now = monotonic()
        if times.first:
            self.between_tokens_seconds.add(now - times.last)
        else:
            times.first = now
            self.first_token_seconds.add(now - times.asked)
        times.last = now

    def count_end(self, done: Done) -> None:
        """Counts the end of a text."""
        self.ended[done.reason] += 1
        self.prompt_seconds += done.prompt_seconds
        self.generation_seconds += done.generation_seconds
        times = done.times
        if times is not None:
            times.ended = monotonic()
            self.text_seconds.add(times.ended - times.asked)
            self.prompt_sizes.add(done.n_prompt)
            self.text_sizes.add(done.n_generated)

    def count_step(self, seconds: float, n_prompt: int, n_generated: int) -> None:
        """Counts one step. Its generated tokens must have been added to the total before."""
        self.steps += 1
        self.step_seconds += seconds
        self.prompt_tokens += n_prompt
        self.recent.append((monotonic(), n_prompt, n_generated))

    def speeds(self) -> tuple[float, float]:
        """Prompt tokens and generated tokens per second over the last ten seconds."""
        since = monotonic() - _WINDOW
        last = [(p, g) for at, p, g in tuple(self.recent) if at > since]
        return sum(p for p, _ in last) / _WINDOW, sum(g for _, g in last) / _WINDOW
