"""What an engine counts."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from time import monotonic

__all__ = ["EngineStats"]

_WINDOW = 10.0  # seconds that speeds are taken over


@dataclass(slots=True)
class EngineStats:
    """Totals since the engine started; written by its thread alone, to be read by any."""

    accepted: int = 0
    refused: int = 0
    """Requests that met a full queue."""
    ended: Counter[str] = field(default_factory=Counter)
    """Texts by why they ended."""
    prompt_tokens: int = 0
    """Computed; those that were in the cache are not in it."""
    reused_tokens: int = 0
    generated_tokens: int = 0
    steps: int = 0
    step_seconds: float = 0.0
    """Time of all steps, sampling included."""
    recent: deque[tuple[float, int, int]] = field(default_factory=lambda: deque(maxlen=4096))
    """Of each step its end, prompt tokens and generated tokens."""

    def count_step(self, seconds: float, n_prompt: int, n_generated: int) -> None:
        """Adds one step; tokens that it generated have been counted already."""
        self.steps += 1
        self.step_seconds += seconds
        self.prompt_tokens += n_prompt
        self.recent.append((monotonic(), n_prompt, n_generated))

    def speeds(self) -> tuple[float, float]:
        """Prompt tokens and generated tokens per second over the last ten seconds."""
        since = monotonic() - _WINDOW
        last = [(p, g) for at, p, g in tuple(self.recent) if at > since]
        return sum(p for p, _ in last) / _WINDOW, sum(g for _, g in last) / _WINDOW
