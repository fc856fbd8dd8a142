"""What one `decode` changes in the cache, so that a failure can take all of it back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.llm.batch import Ubatch
from weft.llm.kv_cache import KVCache

__all__ = ["Change", "Places"]


@dataclass(frozen=True, slots=True)
class Places:
    """Where a ubatch is kept."""

    cells: NDArray[np.int64]
    slots: tuple[int, int] | None
    """Of recurrent models: the state slots that are read and written."""


class Change:
    """Cells and states that the ubatches of a call take, one ubatch after another."""

    def __init__(self, cache: KVCache, n_tokens: int) -> None:
        """Raises ContextError when there are too few free cells; nothing is taken yet."""
        self._cache = cache
        self._cells = cache.find_free(n_tokens)
        self._mixed = cache.mixed.copy()
        self._done = 0
        self._moved: dict[int, int] = {}  # recurrent states: sequence to its new slot
        self._slots = None if cache.states is None else cache.states.slot.copy()

    def occupy(self, ubatch: Ubatch) -> Places:
        """Takes cells for a ubatch, and a slot for its new states."""
        used = self._cells[self._done : self._done + len(ubatch)]
        self._done += len(used)
        ids = None if ubatch.is_rows else ubatch.tokens
        self._cache.occupy(used, ubatch.positions, ubatch.members, ids, ubatch.first)
        return Places(used, self._next_slots(ubatch))

    def _next_slots(self, ubatch: Ubatch) -> tuple[int, int] | None:
        """The state slots that a ubatch, of one sequence then, reads and writes."""
        states, moved = self._cache.states, self._moved
        if states is None:
            return None
        first = int(ubatch.first[0])
        source = moved.get(first, int(states.slot[first]))
        seqs = [int(s) for s in np.flatnonzero(ubatch.members[:, 0])]
        others = {slot for seq, slot in moved.items() if seq not in seqs}
        own = source in moved.values() and source not in others
        target = source if own else states.free_slot(set(moved.values()))
        moved.update(dict.fromkeys(seqs, target))
        return source, target

    def finish(self) -> None:
        """The new states are those of their sequences from now on."""
        if self._cache.states is not None and self._moved:
            seqs = list(self._moved)
            self._cache.states.slot[seqs] = [self._moved[s] for s in seqs]

    def undo(self) -> None:
        """Leaves the cache as it was."""
        self._cache.release(self._cells[: self._done])
        self._cache.mixed[:] = self._mixed
        if self._cache.states is not None and self._slots is not None:
            self._cache.states.slot[:] = self._slots
