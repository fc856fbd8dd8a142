"""Records what one `decode` changes in the cache, so that a failure can undo all of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from weft.graph.tensor import Tensor
from weft.llm.cache.cells import BlockCells, Kept
from weft.llm.cache.kv_cache import KVCache, read_rows, tables_of, write_rows
from weft.llm.cache.pages import place
from weft.llm.compute.batch import Ubatch
from weft.records import dataclass


@dataclass(slots=True, eq=False)
class Places:
    """The cells and state slots that a ubatch takes."""

    cells: NDArray[np.int64]
    window_cells: NDArray[np.int64] | None
    """Cells of sliding-window layers; None: they use `cells`."""
    slots: tuple[list[int], list[int]] | None
    blocks: dict[int, BlockPlaces] = field(default_factory=dict)
    """Places of compressed keys, by the number of positions in a block."""


@dataclass(slots=True, eq=False)
class BlockPlaces:
    """Where the compressed keys of a ubatch go, and what they are computed from; there is at least
    one, which may be of no block."""

    cells: NDArray[np.int64]
    sources: NDArray[np.int32]
    """The cells of the tokens of each block [n, span], in order of position; -1: there is none."""
    positions: NDArray[np.int32]
    """The position of the first token of each block."""


class Change:
    """The cells and states that the ubatches of one call take, one ubatch after another."""

    def __init__(self, cache: KVCache, n_tokens: int) -> None:
        """Raises ContextError if fewer than `n_tokens` cells are free. Takes none of them yet."""
        self._cache = cache
        cache.find_free(n_tokens)
        self._clock = self._last = cache.clock
        self._mixed = cache.mixed.copy()
        self._seqs = np.zeros(cache.n_seq_max, np.bool_)
        self._window = _WindowChange(cache, n_tokens) if cache.window is not None else None
        self._blocks = [_BlockChange(cache, cells) for cells in cache.blocks.values()]
        self._moved: dict[int, int] = {}  # recurrent states: sequence to its new slot
        self._slots = None if cache.states is None else cache.states.slot.copy()

    def occupy(self, ubatch: Ubatch) -> Places:
        """Takes cells for a ubatch, and a slot for its new states."""
        self._seqs |= ubatch.members.any(axis=1)
        self._last = self._cache.clock + 1  # comes first, so that `undo` finds the cells
        used = place(self._cache, ubatch.first, ubatch.positions, ubatch.members)
        ids = ubatch.ids if ubatch.is_rows else ubatch.tokens
        self._cache.occupy(used, ubatch.positions, ubatch.members, ids, ubatch.first)
        small = None if self._window is None else self._window.occupy(ubatch, ids)
        blocks = {change.ratio: change.occupy(ubatch, ids) for change in self._blocks}
        return Places(used, small, self._next_slots(ubatch), blocks)

    def _next_slots(self, ubatch: Ubatch) -> tuple[list[int], list[int]] | None:
        """The state slots that a ubatch reads and writes, for each of its sequences or once for
        several that share its tokens."""
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
        """Gives the new states to their sequences."""
        if self._cache.states is not None and self._moved:
            seqs = list(self._moved)
            self._cache.states.slot[seqs] = [self._moved[s] for s in seqs]

    def undo(self) -> None:
        """Takes the ubatches back: the cache is as it was before the call, but for what happened to
        other sequences since."""
        cache = self._cache
        mixed = np.where(self._seqs, self._mixed, cache.mixed)
        ours = (cache.serial > self._clock) & (cache.serial <= self._last)
        # a cell that nobody has was half taken
        ours &= cache.members[self._seqs].any(axis=0) | ~cache.members.any(axis=0)
        with cache.noting("taken back"):
            cache.release(np.flatnonzero(ours & (cache.pos >= 0)))
            cache.mixed[:] = mixed
            if self._window is not None:
                self._window.undo()
            for change in self._blocks:
                change.undo()
        if cache.states is not None and self._slots is not None:
            cache.states.slot[:] = self._slots


class NoChange(Change):
    """The change of a call that reads the cells of another cache and takes none."""

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache

    def occupy(self, ubatch: Ubatch) -> Places:
        return Places(np.empty(0, np.int64), None, None)

    def finish(self) -> None: ...

    def undo(self) -> None: ...


class OneChange:
    """A `Change` of a single token of one sequence, in a cache without cells for a window."""

    __slots__ = ("_cache", "_cell", "_seq", "slots")

    def __init__(self, cache: KVCache, cell: int, seq: int) -> None:
        """`cell` is the cell that the token takes."""
        self._cache = cache
        self._cell = cell
        self._seq = seq
        states = cache.states
        self.slots = (0, 0)
        """The state slots to read and to write."""
        if states is not None:
            self.slots = int(states.slot[seq]), states.free_slots()[0]

    def finish(self) -> None:
        """Gives the new state to the sequence."""
        if self._cache.states is not None:
            self._cache.states.slot[self._seq] = self.slots[1]

    def undo(self) -> None:
        """Restores the cache as it was before the call."""
        cache = self._cache
        mixed = cache.mixed.copy()
        cache.release(np.array([self._cell]))
        cache.mixed[:] = mixed
        if cache.states is not None:
            cache.states.slot[self._seq] = self.slots[0]


class _WindowChange:
    """The part of a `Change` that concerns the cells of sliding-window layers.

    A ubatch may overwrite cells that were visible when the call began; their rows are kept until
    the call ends."""

    def __init__(self, cache: KVCache, n_tokens: int) -> None:
        assert cache.window is not None
        self._cells = cache.window
        self._leaves: list[Tensor] = [
            t
            for t, table in cache.row_leaves()
            if t.max_bytes and tables_of(cache)[table] is cache.window
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
        """Restores the cells that were visible when the call began."""
        self._cells.release(np.flatnonzero(self._taken))
        for kept, rows in self._kept:
            for t, of_leaf in zip(self._leaves, rows, strict=True):
                write_rows(t, kept.cells, of_leaf)
            self._cells.put_back(kept)
        self._cells.mixed[:] = self._mixed


class _BlockChange:
    """The part of a `Change` that concerns the cells of compressed keys of one ratio."""

    def __init__(self, cache: KVCache, cells: BlockCells) -> None:
        self._cache = cache
        self._cells = cells
        self._mixed = cells.mixed.copy()
        self._taken = np.zeros(cells.size, np.bool_)
        self.ratio = cells.ratio

    def occupy(self, ubatch: Ubatch, ids: NDArray[np.int32] | None) -> BlockPlaces:
        """Takes cells for the blocks that a ubatch ends, whose tokens have their cells already."""
        cells, ends = self._cells, self._cells.ends(ubatch.positions)
        if not len(ends):
            nowhere = np.full(1, cells.size, np.int64)
            return BlockPlaces(nowhere, np.zeros((1, cells.span), np.int32), np.zeros(1, np.int32))
        used = cells.find_free(len(ends))
        self._taken[used] = True
        positions, first = ubatch.positions[ends], ubatch.first[ends]
        tokens = None if ids is None else ids[ends]
        cells.occupy(used, positions, ubatch.members[:, ends], tokens, first)
        table = self._cache.window or self._cache
        pairs = zip(first.tolist(), positions.tolist(), strict=True)
        sources = np.stack([cells.sources(table, seq, position) for seq, position in pairs])
        return BlockPlaces(used, sources, positions + 1 - cells.ratio)

    def undo(self) -> None:
        """Frees the cells that were taken."""
        self._cells.release(np.flatnonzero(self._taken & (self._cells.pos >= 0)))
        self._cells.mixed[:] = self._mixed
