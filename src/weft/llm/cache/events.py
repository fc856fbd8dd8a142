"""`CacheEvent`: one update of a cache, as data and in words; `CacheLog` has the last ones.

`watched.py` makes them. They cost nothing where a cache is not watched, because the classes of an
unwatched cache know nothing of them."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from itertools import count
from threading import Lock
from time import perf_counter
from typing import Literal, TypeAlias

from weft.bounds import CACHE_EVENTS
from weft.errors import ContextError
from weft.records import dataclass
from weft.tables import size_text

CacheEventKind: TypeAlias = Literal[
    "taken", "taken back", "removed", "shared", "added", "divided", "shifted", "moved",
    "compacted", "dropped", "cleared", "kept", "restored", "reused", "built",
]  # fmt: skip
"""The kinds of updates; `CacheEvent.text` tells each in a sentence.

- taken: tokens of a batch take cells
- taken back: tokens of a wrong draft, or of a call that failed, give their cells back
- removed: sequences lose cells (`seq_rm`, `seq_keep`)
- shared: a sequence gets cells of another one, and nothing is copied (`seq_cp`)
- added, divided: positions change (`seq_add`, `seq_div`); keys are rotated later
- shifted: keys are rotated to positions that have changed
- moved: a sequence without room behind its last cell moves to other cells
- compacted: gaps between used cells go
- dropped: cells of sliding-window layers, which no next token sees, are freed
- cleared: every cell is freed
- kept: a text or a state is copied out of the cache
- restored: a copy comes back
- reused: a text goes on behind the tokens that a sequence has
- built: a graph is built, and memory is reserved for it"""

CellRanges: TypeAlias = tuple[tuple[int, int], ...]
"""First and last number of each range, both included."""

USUAL = 4096
"""Number of updates that are kept where nothing else is said."""

COLUMNS = 128
"""Maximum number of characters of a map."""


@dataclass(slots=True)
class EventDetails:
    """Fields of a `CacheEvent` that only the caller of an update knows; see there."""

    by: int = 0
    nbytes: int = 0
    """0: as many as the cells that have changed have."""
    microseconds: float | None = None
    """None: as many as the update took."""
    n_saved: int = 0
    about: str = ""


@dataclass(frozen=True, slots=True)
class CacheEvent:
    """One update of a cache, and the cache after it."""

    number: int
    """Number of the update, from 1, since the cache is watched."""
    seconds: float
    """Time of its end, since the cache is watched."""
    kind: CacheEventKind
    table: Literal["cells", "window"]
    """The table of the cells; in `window` are the cells of layers with a sliding window that have
    cells of their own."""
    seqs: tuple[int, ...]
    """The sequences that it concerns. If one gets what another one has, the other one is first."""
    cells: CellRanges
    """The cells that have changed; of those that moved, where they are now."""
    positions: CellRanges
    """The positions of their tokens, in the order of the cells; if the update removed or changed
    them, as they were before."""
    n_more: int
    """Number of ranges that `cells` and `positions` leave out."""
    n_cells: int
    """Number of cells that have changed."""
    by: int
    """The number that was added to the positions, or by which they were divided."""
    nbytes: int
    """Bytes of keys, values and states that were written, moved or copied; for a graph, bytes of
    its memory."""
    microseconds: float
    """Time that the update took. For tokens of a batch: to give them cells, without computing
    them. 0 if it was part of another update, or not measured."""
    n_saved: int
    """Number of tokens that need not be computed because of it."""
    n_used: int
    """Number of cells with a token afterwards."""
    size: int
    """Number of cells of the table."""
    n_read: tuple[int, int]
    """Number of cells that attention reads, before and afterwards."""
    about: str
    """Where a copy is, or which graph was built and why."""
    map: str
    """The cells afterwards, up to the last used one: a character for every `map_unit` cells. It is
    `.` for free cells, `+` for cells of several sequences, else the sequence: 0-9, a-z and A-Z
    stand for 0 to 61, `~` for more."""
    map_unit: int
    """Number of cells of a character of `map`, a power of two."""

    @property
    def text(self) -> str:
        """The update as a sentence without a full stop."""
        said = _SENTENCES[self.kind](self)
        return f"window: {said}" if self.table == "window" else said

    @property
    def cost(self) -> str:
        """The cost and the saving, and how full the cache is then."""
        parts = [f"{self.n_used} of {self.size} cells used"]
        if self.kind == "compacted" and self.n_cells:
            parts.append(f"attention reads {self.n_read[1]} cells instead of {self.n_read[0]}")
        if self.nbytes:
            parts.append(size_text(self.nbytes, 1))
        if self.microseconds:
            parts.append(f"{self.microseconds:.0f} µs")
        if self.n_saved:
            parts.append(f"saves computing {_tokens(self.n_saved)}")
        return ", ".join(parts)

    @property
    def map_lines(self) -> list[str]:
        """The map as lines of 64 characters, each with the number of its first cell."""
        starts = range(0, len(self.map), 64)
        return [f"{at * self.map_unit:>8} {self.map[at : at + 64]}" for at in starts]


def _tokens(n: int) -> str:
    return f"{n} token{'' if n == 1 else 's'}"


def _cells(n: int) -> str:
    return f"{n} cell{'' if n == 1 else 's'}"


def ranges_text(ranges: CellRanges, n_more: int = 0) -> str:
    """Ranges of numbers as text: `0-27, 64`."""
    parts = [str(a) if a == b else f"{a}-{b}" for a, b in ranges]
    return ", ".join(parts) + (f" and {n_more} more ranges" if n_more else "")


def _seqs(seqs: Sequence[int]) -> str:
    if len(seqs) == 1:
        return f"seq {seqs[0]}"
    if not seqs:
        return "no sequence"
    ranges = list[tuple[int, int]]()
    for seq in sorted(seqs):
        if ranges and seq == ranges[-1][1] + 1:
            ranges[-1] = ranges[-1][0], seq
        else:
            ranges.append((seq, seq))
    return f"seqs {ranges_text(tuple(ranges))}"


def _at(e: CacheEvent, noun: str = "cell") -> str:
    one = e.n_cells == 1
    return f"{noun}{'' if one else 's'} {ranges_text(e.cells, e.n_more)}"


def _for(e: CacheEvent) -> str:
    return f"position{'' if e.n_cells == 1 else 's'} {ranges_text(e.positions, e.n_more)}"


def _verb(e: CacheEvent, one: str, many: str) -> str:
    return f"{_seqs(e.seqs)} {one if len(e.seqs) == 1 else many}"


def _taken(e: CacheEvent) -> str:
    return f"{_verb(e, 'takes', 'take')} {_at(e)} for {_for(e)} ({_tokens(e.n_cells)})"


def _taken_back(e: CacheEvent) -> str:
    what = f"{_at(e)} with {_for(e)} ({_tokens(e.n_cells)})"
    return f"{_verb(e, 'gives', 'give')} back {what}, as if never taken"


def _removed(e: CacheEvent) -> str:
    return f"{_verb(e, 'loses', 'lose')} {_at(e)} with {_for(e)} ({_tokens(e.n_cells)})"


def _shared(e: CacheEvent) -> str:
    source, *others = e.seqs
    return f"{_seqs(others)} shares {_at(e)} of seq {source} for {_for(e)} ({_tokens(e.n_cells)})"


def _added(e: CacheEvent) -> str:
    how = f"plus {e.by}" if e.by >= 0 else f"minus {-e.by}"
    if e.kind == "divided":
        how = f"divided by {e.by}"
    what = f"keys of {_at(e)} are rotated before the next batch"
    return f"{_seqs(e.seqs)}: {_for(e)} {how}; {what}"


def _shifted(e: CacheEvent) -> str:
    return f"keys of {_at(e)} of {_seqs(e.seqs)} are rotated to {_for(e)}"


def _moved(e: CacheEvent) -> str:
    where = f"{_at(e)} ({_tokens(e.n_cells)}), where there is room behind"
    return f"{_verb(e, 'moves', 'move')} to {where}"


def _compacted(e: CacheEvent) -> str:
    if not e.n_cells:
        return "there is no gap to remove"
    moves = "moves" if e.n_cells == 1 else "move"
    return f"gaps are removed: {_cells(e.n_cells)} of {_seqs(e.seqs)} {moves} to {_at(e)}"


def _dropped(e: CacheEvent) -> str:
    return f"{_at(e)} with {_for(e)} of {_seqs(e.seqs)} are free again: no next token sees them"


def _cleared(e: CacheEvent) -> str:
    return f"every cell is free, {_cells(e.n_cells)} of {_seqs(e.seqs)} were used"


def _kept(e: CacheEvent) -> str:
    return f"{_verb(e, 'is', 'are')} copied {e.about}"


def _restored(e: CacheEvent) -> str:
    where = f"{_at(e)} for {_for(e)} ({_tokens(e.n_cells)})"
    return f"{_verb(e, 'gets', 'get')} {where} back {e.about}"


def _reused(e: CacheEvent) -> str:
    lost = f", and loses {_at(e)}" if e.n_cells else ""
    return f"{_verb(e, 'goes', 'go')} on behind {_tokens(e.n_saved)} that it has{lost}"


def _built(e: CacheEvent) -> str:
    return e.about


_SENTENCES = {
    "taken": _taken, "taken back": _taken_back, "removed": _removed, "shared": _shared,
    "added": _added, "divided": _added, "shifted": _shifted, "moved": _moved,
    "compacted": _compacted, "dropped": _dropped, "cleared": _cleared, "kept": _kept,
    "restored": _restored, "reused": _reused, "built": _built,
}  # fmt: skip


_LOGS = count(1)


class CacheLog:
    """The last updates of a cache. One thread adds them; any thread may read them."""

    def __init__(self, most: int = USUAL, level: int = 0) -> None:
        """Keeps the last `most` updates. `level` 1 also prints a line for each to stderr, and 2 the
        map of the cells. Raises ContextError for a number out of range."""
        if not 1 <= most <= CACHE_EVENTS:
            raise ContextError(
                f"{most} updates of the cache; give 1 to {CACHE_EVENTS}, or 0 for none"
            )
        self.level = level
        self.n = 0
        """Number of updates so far; the oldest may be gone."""
        self.busy = False
        """True during an update: what happens then is part of it."""
        self._events: deque[CacheEvent] = deque(maxlen=most)
        self._began = perf_counter()
        self._lock = Lock()
        number = next(_LOGS) if level else 1
        self._name = "cache" if number == 1 else f"cache {number}"

    @property
    def seconds(self) -> float:
        """Time since the log was made."""
        return perf_counter() - self._began

    @property
    def events(self) -> tuple[CacheEvent, ...]:
        """The last updates, the oldest first."""
        with self._lock:
            return tuple(self._events)

    def add(self, event: CacheEvent) -> None:
        """Adds an update, and prints it if the log does."""
        with self._lock:
            self._events.append(event)
        if self.level:
            lines = [f"{self._name}: {event.text}; {event.cost}"]
            if self.level > 1 and event.kind != "built":
                if event.map_unit > 1:
                    lines[0] += f"; a character is {event.map_unit} cells"
                lines += event.map_lines
            print("\n".join(lines), file=sys.stderr)
