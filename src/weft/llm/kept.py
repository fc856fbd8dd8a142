"""`KeptTokens`: which tokens are in the cache, so that a prompt that begins with them need not be
computed again."""

from __future__ import annotations

from collections.abc import Sequence

from weft.errors import ContextError
from weft.llm.context import Context

__all__ = ["KeptTokens"]


class KeptTokens:
    """The tokens of sequence 0 of a context, in order, as long as nobody else has used it."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._tokens: list[int] = []
        self._runs = -1

    def clear(self) -> None:
        """Empties the cache."""
        self._context.cache.clear()
        self._tokens = []
        self._runs = self._context.counters.graphs_reused

    def keep(self, tokens: Sequence[int]) -> None:
        """Says that `tokens` have been decoded behind those that are there."""
        self._tokens += tokens
        self._runs = self._context.counters.graphs_reused

    def reuse(self, prompt: Sequence[int]) -> int:
        """Takes out of the cache what is not the beginning of `prompt`; returns how many tokens
        are left. At least one of the prompt is not, since its logits are wanted."""
        cache, kept = self._context.cache, self._tokens
        n = 0
        if self._is_mine():
            limit = min(len(kept), len(prompt) - 1)
            n = next((i for i in range(limit) if kept[i] != prompt[i]), limit)
        try:
            if n and n < len(kept):
                cache.seq_rm(0, n, -1)  # a recurrent state cannot go back: ContextError
        except ContextError:
            n = 0
        if n == 0:
            self.clear()
        self._tokens = list(prompt[:n])
        return n

    def _is_mine(self) -> bool:
        """Whether the cache still is as `keep` left it."""
        cache, n = self._context.cache, len(self._tokens)
        same = self._runs == self._context.counters.graphs_reused
        return same and cache.n_used == n and cache.pos_max(0) == n - 1
