"""Classes of caches that note their updates. `watch` gives a cache one of them, and `unwatch` takes
it away, so that a cache that is not watched runs no line of this file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from time import perf_counter_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.bounds import CACHE_EVENT_RANGES
from weft.llm.cache.cells import FREE, Cells, Kept, WindowCells
from weft.llm.cache.events import (
    COLUMNS,
    CacheEvent,
    CacheEventKind,
    CacheLog,
    CellRanges,
    EventDetails,
)
from weft.llm.cache.kv_cache import KVCache, row_width, tables_of
from weft.llm.cache.state import row_tensors

_SYMBOLS = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ~"
_DOT, _SEVERAL = ord("."), 127  # below and above all symbols
_NAMES = bytes(ord("+") if code == _SEVERAL else code for code in range(256))
_ALWAYS = {"kept", "reused", "shifted", "compacted", "built"}
"""Kinds that are noted even if no cell changes."""
_GIVEN = {"shared", "restored"}
"""Kinds that save the computation of every token whose cell they give."""
_MOVED = {"moved", "compacted"}
_PLACED = {"moved", "compacted", "restored"}
"""Kinds whose cells are those that have tokens afterwards."""
_BEFORE = {"removed", "taken back", "dropped", "cleared", "added", "divided", "reused"}
"""Kinds whose positions are those before the update."""


class _Table:
    """The table of cells after the last update, to which the next one is compared."""

    def __init__(self, cells: Cells, row_bytes: int, key_bytes: int) -> None:
        self.cells = cells
        self.row_bytes = row_bytes
        """Bytes of the keys and values of a cell."""
        self.key_bytes = key_bytes
        self.pos = np.full_like(cells.pos, FREE)
        self.members = np.zeros_like(cells.members)
        self.symbols = np.full(cells.size, _DOT, np.uint8)
        self.n_read = 0
        self.sync(self.changed())

    def changed(self) -> NDArray[np.int64]:
        """The cells that are not as they were."""
        differs = self.pos != self.cells.pos
        differs |= (self.members != self.cells.members).any(axis=0)
        return np.flatnonzero(differs)

    def sync(self, at: NDArray[np.int64]) -> None:
        """Takes over the cells `at`."""
        members = self.cells.members[:, at]
        self.pos[at], self.members[:, at] = self.cells.pos[at], members
        symbols = np.frombuffer(_SYMBOLS, np.uint8)
        owner = symbols[np.minimum(members.argmax(axis=0), len(symbols) - 1)]
        n = members.sum(axis=0)
        self.symbols[at] = np.where(n == 0, _DOT, np.where(n == 1, owner, _SEVERAL))
        self.n_read = self.cells.n_read

    def map(self) -> tuple[str, int]:
        """The characters of `CacheEvent.map`, and its `map_unit`."""
        seen, unit = self.cells.n_seen, 1
        while unit * COLUMNS < seen:
            unit *= 2
        codes = np.full(-(-seen // unit) * unit, _DOT, np.uint8)
        codes[:seen] = self.symbols[:seen]
        if unit > 1:
            groups = codes.reshape(-1, unit)
            high = groups.max(axis=1)
            low = np.where(groups == _DOT, 255, groups).min(axis=1)
            codes = np.where((high == low) | (high == _DOT), high, _SEVERAL).astype(np.uint8)
        return codes.tobytes().translate(_NAMES).decode(), unit


class _Watched(Cells):
    """Notes what methods change. One that calls another is a single update."""

    log: CacheLog
    _tables: list[_Table]
    """The table itself, and then the table of the window, if the cache has one."""

    def noting(
        self, kind: CacheEventKind, seqs: Sequence[int] = (), details: EventDetails | None = None
    ) -> AbstractContextManager[EventDetails]:
        return self._noting(kind, tuple(seqs), details or EventDetails())

    @contextmanager
    def _noting(
        self, kind: CacheEventKind, seqs: tuple[int, ...], details: EventDetails
    ) -> Iterator[EventDetails]:
        log = self.log
        if log.busy:  # a part of another update
            yield EventDetails()
            return
        turned = [np.flatnonzero(t.cells.shift) for t in self._tables if kind == "shifted"]
        began = perf_counter_ns()
        ends = False
        try:
            log.busy = True
            yield details
            ends = True
        finally:
            spent = (perf_counter_ns() - began) / 1000
            log.busy = False
            if not ends:
                kind, details = "taken back" if self.n_used else "cleared", EventDetails()
            noted = kind in _ALWAYS
            for i, table in enumerate(self._tables):
                at = turned[i] if turned else table.changed()
                if kind == "restored":  # also to where it was
                    back = table.cells.members[list(seqs) or slice(None)].any(axis=0)
                    at = np.union1d(at, np.flatnonzero(back))
                if noted or len(at):
                    self._note(table, kind, at, seqs, spent, details)
                    spent, noted = 0.0, False

    def _note(
        self,
        table: _Table,
        kind: CacheEventKind,
        at: NDArray[np.int64],
        seqs: tuple[int, ...],
        spent: float,
        details: EventDetails,
    ) -> None:
        """Notes that the cells `at` of a table have changed in `spent` microseconds."""
        cells, log = table.cells, self.log
        shown = at[cells.pos[at] != FREE] if kind in _PLACED else at
        if not seqs or min(seqs) < 0:
            members = cells.members[:, shown]
            differs = members != table.members[:, shown]
            mine = (differs if differs.any() else members).any(axis=1)
            seqs = tuple(np.flatnonzero(mine).tolist())
        if kind == "kept":
            seqs = tuple(seq for seq in seqs if cells.members[seq].any())
        positions = table.pos[shown] if kind in _BEFORE else cells.pos[shown]
        at_cells, more = _ranges(shown)
        at_positions, also = _ranges(positions)
        n_read = table.n_read, cells.n_read
        table.sync(at)
        codes, unit = table.map()
        log.n += 1
        event = CacheEvent(
            log.n, log.seconds, kind, "window" if isinstance(cells, WindowCells) else "cells", seqs,
            at_cells, at_positions, max(more, also), len(shown), details.by,
            details.nbytes or self._bytes(table, kind, len(shown), seqs),
            spent if details.microseconds is None else details.microseconds,
            len(shown) if kind in _GIVEN and table is self._tables[0] else details.n_saved,
            cells.n_used, cells.size, n_read, details.about, codes, unit,
        )  # fmt: skip
        log.add(event)

    def _bytes(self, table: _Table, kind: CacheEventKind, n: int, seqs: Sequence[int]) -> int:
        """Bytes of keys, values and states that an update of `n` cells writes, moves or copies."""
        if kind == "kept":
            n = int(table.cells.members[list(seqs)].any(axis=0).sum())
        if kind == "shifted":
            return table.cells.n_seen * table.key_bytes
        if kind not in ("taken", "moved", "compacted", "kept", "restored"):
            return 0
        return n * table.row_bytes + (0 if kind in _MOVED else len(seqs) * self._state_bytes(table))

    def _state_bytes(self, table: _Table) -> int:
        states = table.cells.states if isinstance(table.cells, KVCache) else None
        return 0 if states is None else sum(t.max_bytes // states.n_slots for t in states.tensors)

    def occupy(self, cells: NDArray[np.int64], *args: Any, **also: Any) -> None:
        began = perf_counter_ns()
        super().occupy(cells, *args, **also)
        self._took(np.sort(cells), began)

    def occupy_one(self, cell: int, position: int, seq: int, token: int) -> None:
        began = perf_counter_ns()
        super().occupy_one(cell, position, seq, token)
        self._took(np.array([cell]), began)

    def _took(self, cells: NDArray[np.int64], began: int) -> None:
        if not self.log.busy:
            spent = (perf_counter_ns() - began) / 1000
            self._note(self._tables[0], "taken", cells, (), spent, EventDetails())

    def release(self, cells: NDArray[np.int64]) -> None:
        with self.noting("dropped" if isinstance(self, WindowCells) else "taken back"):
            super().release(cells)

    def take_back(self, seq: int, start: int, *args: Any) -> int:
        with self.noting("taken back", (seq,)):
            return super().take_back(seq, start, *args)

    def put_back(self, kept: Kept) -> None:
        with self.noting("restored", (), EventDetails(about="after a call that failed")):
            super().put_back(kept)

    def relocate(self, source: NDArray[np.int64], target: NDArray[np.int64]) -> None:
        with self.noting("moved"):
            super().relocate(source, target)

    def clear(self) -> None:
        with self.noting("cleared"):
            super().clear()

    def seq_rm(self, seq: int, p0: int = -1, p1: int = -1) -> None:
        with self.noting("removed", (seq,)):
            super().seq_rm(seq, p0, p1)

    def seq_cp(self, src: int, dst: int, p0: int = -1, p1: int = -1) -> None:
        with self.noting("shared", (src, dst)):
            super().seq_cp(src, dst, p0, p1)

    def seq_keep(self, seq: int) -> None:
        with self.noting("removed"):
            super().seq_keep(seq)

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        with self.noting("added", (seq,), EventDetails(by=delta)):
            super().seq_add(seq, p0, p1, delta)

    def seq_div(self, seq: int, p0: int, p1: int, d: int) -> None:
        with self.noting("divided", (seq,), EventDetails(by=d)):
            super().seq_div(seq, p0, p1, d)


class WatchedCache(_Watched, KVCache):
    """A cache that notes its updates."""


class WatchedWindow(_Watched, WindowCells):
    """The cells of sliding-window layers, which note their updates."""


def watch(cache: KVCache, log: CacheLog) -> None:
    """Notes all updates of a cache in `log` from now on, instead of in another one."""
    rows, keys = [0] * len(tables_of(cache)), [0, 0]
    for t, table in row_tensors(cache):
        rows[table] += t.dtype.row_bytes(row_width(t))
    for il, t in enumerate(cache.k):
        keys[cache.is_small(il)] += t.dtype.row_bytes(row_width(t)) if t.ne[0] else 0
    tables = [_Table(cache, rows[0], keys[0])]
    if cache.window is not None:
        tables.append(_Table(cache.window, rows[1], keys[1]))
        _turn(cache.window, WatchedWindow, log=log, _tables=tables[1:])
    _turn(cache, WatchedCache, log=log, _tables=tables)


def unwatch(cache: KVCache) -> None:
    """Notes nothing any more."""
    if cache.window is not None:
        _turn(cache.window, WindowCells)
    _turn(cache, KVCache)


def _turn(cells: Cells, kind: type[Cells], **own: Any) -> None:
    """Gives a table another class, with the attributes `own` if that notes updates."""
    for name in ("log", "_tables"):
        vars(cells).pop(name, None)
    vars(cells).update(own)
    cells.__class__ = kind


def _ranges(numbers: NDArray[Any]) -> tuple[CellRanges, int]:
    """Numbers as ranges of ascending ones, and how many of these were left out."""
    if len(numbers) < 2:  # a step
        return tuple((n, n) for n in numbers.tolist()), 0
    starts = np.flatnonzero(np.diff(numbers, prepend=numbers[0] - 2) != 1)
    ends = [*(starts[1:] - 1).tolist(), len(numbers) - 1]
    kept = zip(starts[:CACHE_EVENT_RANGES].tolist(), ends, strict=False)
    found = tuple((int(numbers[first]), int(numbers[last])) for first, last in kept)
    return found, max(len(starts) - CACHE_EVENT_RANGES, 0)
