"""The table of cells: the position and the sequences of each. Keys and values are in `kv_cache.py`;
`pages.py` chooses the cells of new tokens.

A token at position p, whose first sequence is s, sees the cells c with s in members(c) and
pos(c) <= p.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import ContextError, ContextFull, OutOfMemoryError
from weft.llm.cache.events import CacheEventKind, EventDetails
from weft.llm.config import ModelConfig
from weft.records import dataclass

FREE = -1
_UNKNOWN = -2
_END = np.iinfo(np.int32).max
_MINUS_INF = np.float16(-np.inf).view(np.uint16)


@dataclass(frozen=True, slots=True)
class Kept:
    """A copy of some rows of a table of cells."""

    cells: NDArray[np.int64]
    pos: NDArray[np.int32]
    members: NDArray[np.bool_]
    """[n_seq_max, n]"""
    tokens: NDArray[np.int32]
    serial: NDArray[np.int64]


class Cells:
    """A table of `size` cells for up to `n_seq_max` sequences.

    A range of a method covers the positions p0 <= p < p1; p0 < 0 means 0 and p1 < 0 infinity. A
    sequence below 0 means every sequence (as in llama.cpp's `llama_memory_seq_*`)."""

    def __init__(self, size: int, n_seq_max: int = 1) -> None:
        """Raises OutOfMemoryError if there is not enough memory."""
        self.size = size
        self.n_seq_max = n_seq_max
        self.pos: NDArray[np.int32] = _table((size,), np.int32, FREE)
        """Position of each cell; -1: free."""
        self.members: NDArray[np.bool_] = _table((n_seq_max, size), np.bool_)
        """members[s, c]: whether sequence s has cell c."""
        self.shift: NDArray[np.int32] = _table((size,), np.int32)
        """Change of the position of each cell since its key was rotated."""
        self.has_shift = False
        """True if keys must be rotated by `shift` before they are read again."""
        self.tokens: NDArray[np.int32] = _table((size,), np.int32, -1)
        """Token of each used cell; -1: unknown."""
        self.serial: NDArray[np.int64] = _table((size,), np.int64)
        """Number of the ubatch that computed each cell; -1: its position has changed since."""
        self.mixed: NDArray[np.bool_] = _table((n_seq_max,), np.bool_)
        """mixed[s]: whether sequence s was assembled from parts of others."""
        self.freed = False
        """True if cells were freed since this was last set to False."""
        self.cells_step = 1
        """`n_read` is a multiple of this number of cells."""
        self._clock = 0
        self._tails = [_UNKNOWN] * n_seq_max  # the last cell of each sequence; -1: it has none
        self._low = 0  # no free cell is below this one
        self._top = 0  # no used cell is from here on

    @property
    def n_used(self) -> int:
        """Cells that hold a token."""
        return int(np.count_nonzero(self.pos != FREE))

    @property
    def n_seen(self) -> int:
        """One more than the highest used cell; attention reads the cells below it."""
        return self._top

    @property
    def n_read(self) -> int:
        """The cells that a graph reads: `n_seen`, rounded up to a multiple of `cells_step`."""
        return min(self.size, -(-self._top // self.cells_step) * self.cells_step)

    @property
    def clock(self) -> int:
        """The `serial` of the ubatch that was computed last."""
        return self._clock

    def noting(
        self, kind: CacheEventKind, seqs: Sequence[int] = (), details: EventDetails | None = None
    ) -> AbstractContextManager[EventDetails]:
        """Notes all that the `with` block changes as one `CacheEvent`, if the cache is watched
        (`watched.py`). The block may change the details that it gets."""
        return nullcontext(details or EventDetails())

    def find_free(self, n: int) -> NDArray[np.int64]:
        """The `n` lowest free cells. Raises ContextFull, with both numbers, if there are fewer."""
        if n == 1 and self._low < self.size and self.pos[self._low] == FREE:
            return np.array([self._low], np.int64)
        free = self._low + np.flatnonzero(self.pos[self._low :] == FREE)
        self._low = int(free[0]) if len(free) else self.size
        if len(free) < n:
            raise ContextFull(
                f"{n} tokens do not fit into the context: {len(free)} of its {self.size} cells are "
                "free; make `n_ctx` larger",
                calls=", or remove tokens first (seq_rm, clear)",
            )
        return free[:n]

    def tail(self, seq: int) -> int:
        """The last cell of a sequence; -1: it has none."""
        if self._tails[seq] == _UNKNOWN:
            cells = np.flatnonzero(self.members[seq])
            self._tails[seq] = int(cells[-1]) if len(cells) else -1
        return self._tails[seq]

    def relocate(self, source: NDArray[np.int64], target: NDArray[np.int64]) -> None:
        """Moves the contents of the cells `source` to the cells `target`, which must be free or
        among the sources."""
        tables: list[NDArray[Any]] = [self.pos, self.shift, self.tokens, self.serial]
        rows, members = [t[source] for t in tables], self.members[:, source]
        self.pos[source] = FREE
        self.members[:, source] = False
        for table, row in zip(tables, rows, strict=True):
            table[target] = row
        self.members[:, target] = members
        self._find_bounds()

    def occupy(
        self,
        cells: NDArray[np.int64],
        positions: NDArray[np.int32],
        seq: NDArray[np.bool_],
        tokens: NDArray[np.int32] | None = None,
        first: NDArray[np.int32] | None = None,
    ) -> None:
        """Marks free cells as used.

        `seq` [n_seq_max, n] has the sequences of each cell; `tokens` [n] its token, if known;
        `first` [n] the sequence that each token sees."""
        if first is not None and self.n_seq_max > 1:
            self._note_mixed(seq, first)
        self._clock += 1
        self.serial[cells] = self._clock  # comes first: `rollback.Change.undo` finds cells by it
        self.pos[cells] = positions
        self.members[:, cells] = seq
        self.shift[cells] = 0
        self.tokens[cells] = -1 if tokens is None else tokens
        low, last = int(cells.min()), int(cells.max())
        if low == self._low and last - low == len(cells) - 1:
            self._low = last + 1
        self._top = max(self._top, last + 1)
        for s in np.flatnonzero(seq.any(axis=1)).tolist():
            if self._tails[s] != _UNKNOWN:
                self._tails[s] = max(self._tails[s], int(cells[seq[s]].max()))

    def occupy_one(self, cell: int, position: int, seq: int, token: int) -> None:
        """Does `occupy` for a cell from `pages.next_cell`, one token and one sequence."""
        self.pos[cell] = position
        self.members[seq, cell] = True
        self.shift[cell] = 0
        self.tokens[cell] = token
        self._clock += 1
        self.serial[cell] = self._clock
        self._tails[seq] = cell
        if cell == self._low:
            self._low = cell + 1
        if cell >= self._top:
            self._top = cell + 1

    def restore_serials(self, cells: NDArray[np.int64], serial: NDArray[np.int64]) -> None:
        """Sets the serials of cells that were loaded; later ubatches count on from the largest."""
        self.serial[cells] = serial
        self._clock = max(self._clock, int(serial.max(initial=0)))

    def _note_mixed(self, seq: NDArray[np.bool_], first: NDArray[np.int32]) -> None:
        """Updates `mixed` for tokens that several sequences share.

        Such a token sees the cells of its first sequence only, so another sequence becomes mixed
        unless it has exactly the same cells."""
        shared = seq.sum(axis=0) > 1
        if not shared.any():
            return
        for a, b in {(int(first[i]), int(s)) for i in np.flatnonzero(shared)
                     for s in np.flatnonzero(seq[:, i])}:  # fmt: skip
            if a != b and (self.mixed[a] or (self.members[a] != self.members[b]).any()):
                self.mixed[b] = True

    def release(self, cells: NDArray[np.int64]) -> None:
        """Frees cells."""
        self.freed = True
        self.pos[cells] = FREE
        self.members[:, cells] = False
        self._find_bounds()
        self.mixed &= self.members.any(axis=1)

    def take_back(self, seq: int, start: int) -> int:
        """Frees the cells of `seq` from position `start` on, which no other sequence may have, as
        if they had never been taken. Returns their number."""
        cells = np.flatnonzero(self.members[seq] & (self.pos >= start))
        n = len(cells)
        if n:
            low, last = int(cells[0]), int(cells[-1])
            self.pos[cells] = FREE
            self.members[seq, cells] = False
            self._low = min(self._low, low)
            self._tails[seq] = _UNKNOWN
            if last == self._top - 1:
                used = np.flatnonzero(self.pos[:last] != FREE)
                self._top = int(used[-1]) + 1 if len(used) else 0
        return n

    def put_back(self, kept: Kept) -> None:
        """Restores rows that `keep` copied before their cells were released."""
        self.pos[kept.cells] = kept.pos
        self.members[:, kept.cells] = kept.members
        self.tokens[kept.cells] = kept.tokens
        self.serial[kept.cells] = kept.serial
        self.shift[kept.cells] = 0
        self._find_bounds()

    def keep(self, cells: NDArray[np.int64]) -> Kept:
        """Copies the rows of some cells. Their keys must have been rotated to their positions."""
        return Kept(
            cells, self.pos[cells], self.members[:, cells], self.tokens[cells], self.serial[cells]
        )

    def copy(self) -> Cells:
        """A copy of the table, without keys and values."""
        other = Cells(self.size, self.n_seq_max)
        for name in ("pos", "members", "tokens", "serial", "mixed"):
            getattr(other, name)[:] = getattr(self, name)
        other._find_bounds()
        return other

    def clear(self) -> None:
        """Frees every cell."""
        self.pos[:] = FREE
        self.members[:] = False
        self.mixed[:] = False
        self._low = self._top = 0
        self._forget_tails()
        self.shifted()

    def shifted(self) -> None:
        """Notes that all keys have been rotated to their positions."""
        self.shift[:] = 0
        self.has_shift = False

    def seq_rm(self, seq: int, p0: int = -1, p1: int = -1) -> None:
        """Removes the cells in the range from sequence `seq`; frees cells that no sequence has."""
        hit = self._in_range(p0, p1)
        if seq < 0:
            self.members[:, hit] = False
        else:
            self.members[self._seq(seq), hit] = False
        self._free_orphans()

    def seq_cp(self, src: int, dst: int, p0: int = -1, p1: int = -1) -> None:
        """Adds the cells of `src` in the range to `dst`, which shares them; nothing is copied."""
        own, other = self.members[self._seq(src)], self.members[self._seq(dst)]
        row = own & self._in_range(p0, p1)
        # a copied beginning of `src` counts as computed in order; any other part is mixed
        is_beginning = self.pos[own & ~row].min(initial=_END) > self.pos[row].max(initial=-1)
        if src != dst and (self.mixed[src] or other.any() or not is_beginning):
            self.mixed[dst] = True
        other |= row
        self._forget_tails()

    def seq_keep(self, seq: int) -> None:
        """Removes every other sequence."""
        members = self.members[self._seq(seq)].copy()
        self.members[:] = False
        self.members[seq] = members
        self._free_orphans()

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """Adds `delta` to the positions in the range, for all sequences that share the cells.

        Keys are rotated before the next decode. Cells whose position would be negative are freed.
        Raises ContextError if a position would be too large."""
        self._move(seq, p0, p1, lambda pos: pos + delta)

    def seq_div(self, seq: int, p0: int, p1: int, d: int) -> None:
        """Divides the positions in the range by `d`, rounding down; otherwise like `seq_add`."""
        if d < 1:
            raise ContextError(f"positions cannot be divided by {d}; it must be 1 or more")
        self._move(seq, p0, p1, lambda pos: pos // d)

    def _move(
        self, seq: int, p0: int, p1: int, new: Callable[[NDArray[np.int64]], NDArray[np.int64]]
    ) -> None:
        hit = self._in_range(p0, p1)
        hit &= self.members.any(axis=0) if seq < 0 else self.members[self._seq(seq)]
        cells = np.flatnonzero(hit)
        old = self.pos[cells].astype(np.int64)
        moved = new(old)
        if moved.max(initial=0) >= _END:
            raise ContextError(f"positions would move beyond {_END - 1}")
        self.pos[cells] = moved
        self.serial[cells[moved != old]] = -1
        self.shift[cells] += (moved - old).astype(np.int32)
        self.has_shift |= bool((moved != old).any())
        if moved.min(initial=0) < 0:
            self.release(cells[moved < 0])

    def cells_of(self, seq: int) -> NDArray[np.int64]:
        """The cells of sequence `seq`, in order of position."""
        cells = np.flatnonzero(self.members[self._seq(seq)])
        return cells[np.argsort(self.pos[cells], kind="stable")]

    def common_prefix(self, seq: int, tokens: NDArray[np.int64]) -> int:
        """The number of leading `tokens` that the first cells of `seq` hold, if these were computed
        in order as the beginning of a text; else 0."""
        cells = self.cells_of(seq)
        twice = len(cells) > 1 and not np.diff(self.pos[cells]).all()
        cells = cells[: len(tokens)]
        if self.mixed[seq] or twice or len(cells) == 0:
            return 0
        serial = self.serial[cells]
        good = self.pos[cells] == np.arange(len(cells))
        good &= (self.tokens[cells] == tokens[: len(cells)]) & (serial >= 0)
        good[1:] &= serial[1:] >= serial[:-1]  # a later one saw all that come before it
        return len(cells) if good.all() else int(good.argmin())

    def pos_min(self, seq: int) -> int:
        """The smallest position of `seq`, -1 when it is empty."""
        positions = self.pos[self.members[self._seq(seq)]]
        return int(positions.min()) if len(positions) else -1

    def pos_max(self, seq: int) -> int:
        """The largest position of `seq`, -1 when it is empty."""
        return int(self.pos[self.members[self._seq(seq)]].max(initial=-1))

    def fill_mask(
        self,
        out: NDArray[np.float16],
        positions: NDArray[np.int32],
        seqs: NDArray[np.int32],
        window: int = 0,
        *,
        distances: bool = False,
        causal: bool = True,
        chunked: bool = False,
    ) -> None:
        """Writes the attention mask: 0 where a token sees a cell, -inf elsewhere.

        `out` is [n_tokens, n_kv]; `positions` and `seqs`, the first sequence of each token, are
        [n_tokens]. If `window` is not 0, a token sees only the last `window` positions, its own
        included, or with `chunked` those of its chunk of `window` positions. With `distances`,
        minus the distance in positions stands in place of 0 (ALiBi). Without `causal`, a token also
        sees later positions, and half of the window is on each side of it."""
        pos, p = self.pos[: out.shape[1]], positions[:, None]
        # a free cell has no members, so its position of -1 does not matter
        seen = self.members[seqs, : out.shape[1]]
        if causal:
            seen &= pos <= p
        if window and not causal:
            seen &= np.abs(pos - p) <= window // 2
        elif window:
            seen &= pos // window == p // window if chunked else pos > p - window
        if distances:
            out[:] = np.where(seen, -np.abs(pos - p), -np.inf)
        else:
            np.multiply(~seen, _MINUS_INF, out=out.view(np.uint16))

    def _in_range(self, p0: int, p1: int) -> NDArray[np.bool_]:
        low, high = max(p0, 0), p1 if p1 >= 0 else _END
        return (self.pos >= low) & (self.pos < high)

    def _seq(self, seq: int) -> int:
        if not 0 <= seq < self.n_seq_max:
            raise ContextError(
                f"sequence {seq} is not in 0..{self.n_seq_max - 1}; make `n_seq_max` larger"
            )
        return seq

    def _free_orphans(self) -> None:
        self.freed = True
        self.pos[~self.members.any(axis=0)] = FREE
        self.mixed &= self.members.any(axis=1)
        self._find_bounds()

    def _forget_tails(self) -> None:
        self._tails = [_UNKNOWN] * self.n_seq_max

    def _find_bounds(self) -> None:
        self._forget_tails()
        used = self.pos != FREE
        at = np.flatnonzero(used)
        self._top = int(at[-1]) + 1 if len(at) else 0
        self._low = int(used.argmin()) if not used.all() else self.size


def _table(shape: tuple[int, ...], dtype: type[np.generic], value: int = 0) -> NDArray[Any]:
    try:
        return np.full(shape, value, dtype)
    except (MemoryError, ValueError):  # ValueError: more than an address space holds
        raise OutOfMemoryError(f"no room for {shape} numbers; make `n_ctx` smaller") from None


def window_size(config: ModelConfig, n_ctx: int, n_seq_max: int, n_ubatch: int) -> int:
    """The number of cells that sliding-window layers need; 0 if the model has no such layers or
    they need as many cells as the others, as for texts that are computed at once."""
    cells = config.window_kept * n_seq_max + n_ubatch
    return cells if config.window and config.causal and cells < n_ctx else 0


class WindowCells(Cells):
    """The cells of sliding-window layers: enough for the window of each sequence and for one
    ubatch. They are freed when no next token sees them and room is needed."""

    def __init__(self, size: int, n_seq_max: int, window: int) -> None:
        super().__init__(size, n_seq_max)
        self.window = window

    def seen(self) -> NDArray[np.bool_]:
        """Marks the cells [size] that the next token of one of their sequences would see."""
        last = np.where(self.members, self.pos, -1).max(axis=1)
        recent = self.pos > (last + 1 - self.window)[:, None]
        seen: NDArray[np.bool_] = (self.members & recent).any(axis=0)
        return seen

    def in_the_way(self, n: int) -> NDArray[np.int64]:
        """The oldest cells, as many as must be freed so that `n` cells are free. Raises
        ContextFull if too few cells are free or no longer seen."""
        free = self.size - self.n_used
        if free >= n:
            return np.empty(0, np.int64)
        old = np.flatnonzero((self.pos >= 0) & ~self.seen())
        if free + len(old) < n:
            raise ContextFull(
                f"{n} tokens do not fit into the {self.size} cells of the sliding window; decode "
                "fewer at once, or create the context with `swa_full` on"
            )
        oldest = np.argsort(self.pos[old], kind="stable")[: n - free]
        return old[oldest]

    def has_all(self, full: Cells, seq: int, position: int) -> bool:
        """True if this table still has all cells of `full` that tokens of `seq` see from `position`
        on."""
        low = position - self.window
        here, there = (c.members[seq] & (c.pos > low) for c in (self, full))
        return bool(here.sum() == there.sum())


class BlockCells(Cells):
    """The cells of keys that stand for whole blocks of `ratio` positions: each has the position of
    the last token of its block. What is computed for no block goes to the row behind them."""

    def __init__(self, n_ctx: int, n_seq_max: int, ratio: int, span: int) -> None:
        """A key is computed from `span` positions, which end with its block."""
        super().__init__(block_cells(n_ctx, n_seq_max, ratio), n_seq_max)
        self.ratio = ratio
        self.span = span

    @property
    def n_read(self) -> int:
        return max(super().n_read, 1)

    def ends(self, positions: NDArray[np.int32]) -> NDArray[np.intp]:
        """The numbers of the tokens that end a block."""
        return np.flatnonzero((positions + 1) % self.ratio == 0)

    def n_computed(self, positions: NDArray[np.int32]) -> int:
        """The number of keys that are computed for tokens: at least one, which may be of no
        block."""
        return len(self.ends(positions)) or 1

    def sources(self, table: Cells, seq: int, position: int) -> NDArray[np.int32]:
        """The cells of `table`, which has a cell for each token, from which the key of the block
        that ends at `position` of sequence `seq` is computed [span]; -1 before the beginning.

        Raises ContextError if the sequence lacks a token of them."""
        low = position + 1 - self.span
        own = np.flatnonzero(table.members[seq] & (table.pos >= low) & (table.pos <= position))
        cells = np.full(self.span, -1, np.int32)
        cells[table.pos[own] - low] = own
        if (cells[max(-low, 0) :] < 0).any():
            raise ContextError(
                f"position {position} of sequence {seq} ends a block of {self.ratio} tokens, some "
                "of which the sequence lacks; remove the sequence and decode it anew"
            )
        return cells


def block_cells(n_ctx: int, n_seq_max: int, ratio: int) -> int:
    """The number of cells for the blocks of `n_ctx` tokens: where sequences part, each has a block
    that begins with tokens of both."""
    return n_ctx // ratio + 2 * n_seq_max
