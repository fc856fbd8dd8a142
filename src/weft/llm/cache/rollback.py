"""What one `decode` changes in the cache, so that a failure can take all of it back."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.graph.tensor import Tensor
from weft.llm.cache.cells import Kept
from weft.llm.cache.kv_cache import KVCache, read_rows, write_rows
from weft.llm.compute.batch import Ubatch

__all__ = ["Change", "OneChange", "Places"]


@dataclass(slots=True, eq=False)
class Places:
    """Where a ubatch is kept."""

    cells: NDArray[np.int64]
    window_cells: NDArray[np.int64] | None
    """Of sliding-window layers, where they have cells of their own."""
    slots: tuple[list[int], list[int]] | None
    """Of recurrent models: the state slots that are read and written, of each sequence."""


class Change:
    """Cells and states that the ubatches of a call take, one ubatch after another."""

    def __init__(self, cache: KVCache, n_tokens: int) -> None:
        """Raises ContextError when there are too few free cells; nothing is taken yet."""
        self._cache = cache
        cache.find_free(n_tokens)
        self._clock = cache.clock
        self._mixed = cache.mixed.copy()
        self._window = _WindowChange(cache, n_tokens) if cache.window is not None else None
        self._moved: dict[int, int] = {}  # recurrent states: sequence to its new slot
        self._slots = None if cache.states is None else cache.states.slot.copy()

    def occupy(self, ubatch: Ubatch) -> Places:
        """Takes cells for a ubatch, and a slot for its new states."""
        used = self._cache.place(ubatch.first, ubatch.positions, ubatch.members)
        ids = None if ubatch.is_rows else ubatch.tokens
        self._cache.occupy(used, ubatch.positions, ubatch.members, ids, ubatch.first)
        small = None if self._window is None else self._window.occupy(ubatch, ids)
        return Places(used, small, self._next_slots(ubatch))

    def _next_slots(self, ubatch: Ubatch) -> tuple[list[int], list[int]] | None:
        """The state slots that a ubatch reads and writes, of each of its sequences (or of one that
        others share)."""
        states, moved = self._cache.states, self._moved
        if states is None:
            return None
        firsts = ubatch.first[:: len(ubatch) // ubatch.n_seqs].tolist()
        groups = [[seq] for seq in firsts]
        if ubatch.n_seqs == 1:
            groups = [np.flatnonzero(ubatch.members[:, 0]).tolist()]
        free = iter(states.free_slots(moved.values()))
        users = Counter(moved.values())
        read, written = [], []
        for first, seqs in zip(firsts, groups, strict=True):
            source = moved.get(first, int(states.slot[first]))
            mine = 1 if len(seqs) == 1 else sum(moved.get(s) == source for s in seqs)
            own = users.get(source) == mine
            target = source if own else next(free)
            moved.update(dict.fromkeys(seqs, target))
            read.append(source)
            written.append(target)
        return read, written

    def finish(self) -> None:
        """The new states are those of their sequences from now on."""
        if self._cache.states is not None and self._moved:
            seqs = list(self._moved)
            self._cache.states.slot[seqs] = [self._moved[s] for s in seqs]

    def undo(self) -> None:
        """Leaves the cache as it was."""
        taken = (self._cache.serial > self._clock) & (self._cache.pos >= 0)
        self._cache.release(np.flatnonzero(taken))
        self._cache.mixed[:] = self._mixed
        if self._window is not None:
            self._window.undo()
        if self._cache.states is not None and self._slots is not None:
            self._cache.states.slot[:] = self._slots


class OneChange:
    """The same for a single token of one sequence, without cells for a window."""

    __slots__ = ("_cache", "_cell", "_seq", "slots")

    def __init__(self, cache: KVCache, cell: int, seq: int) -> None:
        """`cell`: the one that it takes."""
        self._cache = cache
        self._cell = cell
        self._seq = seq
        states = cache.states
        self.slots = (0, 0)
        """The state slots that are read and written."""
        if states is not None:
            self.slots = int(states.slot[seq]), states.free_slots()[0]

    def finish(self) -> None:
        """The new state is that of the sequence from now on."""
        if self._cache.states is not None:
            self._cache.states.slot[self._seq] = self.slots[1]

    def undo(self) -> None:
        """Leaves the cache as it was; a token of one sequence has mixed nothing."""
        cache = self._cache
        mixed = cache.mixed.copy()
        cache.release(np.array([self._cell]))
        cache.mixed[:] = mixed
        if cache.states is not None:
            cache.states.slot[self._seq] = self.slots[0]


class _WindowChange:
    """The same for the cells of sliding-window layers. Ubatches may overwrite cells that were seen
    when the call began; their rows are kept aside until it ends."""

    def __init__(self, cache: KVCache, n_tokens: int) -> None:
        assert cache.window is not None
        self._cells = cache.window
        self._leaves: list[Tensor] = [
            t
            for il, pair in enumerate(zip(cache.k, cache.v, strict=True))
            if cache.is_small(il)
            for t in pair
            if t.max_bytes
        ]
        full = self._cells.n_used + n_tokens > self._cells.size
        self._seen = self._cells.seen() if full else None
        self._mixed = self._cells.mixed.copy()
        self._taken = np.zeros(self._cells.size, np.bool_)
        self._kept: list[tuple[Kept, list[NDArray[np.uint8]]]] = []

    def occupy(self, ubatch: Ubatch, ids: NDArray[np.int32] | None) -> NDArray[np.int64]:
        """Takes cells for a ubatch."""
        cells = self._cells
        old = cells.in_the_way(len(ubatch))
        if len(old):
            assert self._seen is not None
            kept = old[self._seen[old] & ~self._taken[old]]
            if len(kept):
                self._kept.append((cells.keep(kept), [read_rows(t, kept) for t in self._leaves]))
            cells.release(old)
        used = cells.find_free(len(ubatch))
        self._taken[used] = True
        cells.occupy(used, ubatch.positions, ubatch.members, ids, ubatch.first)
        return used

    def undo(self) -> None:
        """Puts back what was seen."""
        self._cells.release(np.flatnonzero(self._taken))
        for kept, rows in self._kept:
            for t, of_leaf in zip(self._leaves, rows, strict=True):
                write_rows(t, kept.cells, of_leaf)
            self._cells.put_back(kept)
        self._cells.mixed[:] = self._mixed
