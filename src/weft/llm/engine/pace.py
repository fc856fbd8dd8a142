"""The number of prompt tokens in a step in which texts are written too, which wait for them."""

from __future__ import annotations

from weft.errors import ContextError

__all__ = ["DELAY", "LEAST", "Pace"]

DELAY = 0.2
"""Default seconds that prompts of others may add to a step."""
LEAST = 16
"""Fewest tokens of a chunk, so that prompts go on however slow the machine is. Steps with fewer are
not learned from, as they tell little about what a token costs."""
FIRST = 64
"""Tokens of a chunk before anything was measured."""
MULTIPLE = 8
"""Chunks are whole multiples of this, which fills the tiles of products."""
WEIGHT = 0.5
"""Weight of the newest step in averages."""


class Pace:
    """Chooses the size of chunks so that each delays a step by about `delay` seconds.

    A token of a prompt costs what a step with prompts took longer than a step of equally many texts
    without. Until such a step was seen, the whole step counts, so chunks are small rather than
    large. Nothing here reads a clock."""

    def __init__(self, delay: float = DELAY, *, most: int) -> None:
        """`most` is the largest chunk in tokens; `LEAST` where it is less. Raises ContextError for
        a delay that is not between 1 ms and 60 s."""
        if not 0.001 <= delay <= 60:
            raise ContextError(
                f"prompt_delay is {delay:g}; it is the seconds that prompts may delay a step, "
                "0.001 to 60"
            )
        self.delay = delay
        self._most = max(most, LEAST)
        self._cost: float | None = None
        """Seconds of a token of a prompt."""
        self._writing: dict[int, float] = {}
        """Seconds of a step without prompts, by its number of tokens: one of each text, and the
        tokens of drafts."""

    @property
    def chunk(self) -> int:
        """The most tokens of prompts in the next step in which texts are written too."""
        if self._cost is None:
            return min(FIRST, self._most)
        n = self.delay / max(self._cost, 1e-9)
        if n >= self._most:
            return self._most
        return max(int(n) // MULTIPLE * MULTIPLE, LEAST)

    def learn(self, n_prompt: int, n_writing: int, seconds: float) -> None:
        """Learns from a step of `n_prompt` tokens of prompts and `n_writing` of texts that were
        being written, which took `seconds`."""
        if not n_prompt:
            self._writing[n_writing] = _average(self._writing.get(n_writing), seconds)
        elif n_prompt >= LEAST:
            extra = max(seconds - self._without_prompts(n_writing), 0.0)
            self._cost = _average(self._cost, extra / n_prompt)

    def _without_prompts(self, n_writing: int) -> float:
        """Seconds of a step of so many tokens, or of the closest number not above it."""
        known = [n for n in self._writing if n <= n_writing]
        return self._writing[max(known)] if known else 0.0


def _average(old: float | None, new: float) -> float:
    return new if old is None else old + WEIGHT * (new - old)
