"""Chooses the free cells for the next tokens of a sequence.

The cells of a sequence are in ascending order, and modulo STRIP each number is one more than that
of the cell before it. Attention adds up in the order of cells and has a sum for each number modulo
STRIP (`native/src/kernels/attention/attention_sums.h`), so a text is the same to the last bit in
whatever cells it is. Free pages are used first, because attention skips pages that are masked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.llm.cache.cells import FREE, Cells
from weft.records import dataclass

PAGE = 64
"""Number of cells in a page; attention skips a page whose cells are all masked."""
STRIP = 16
"""Number of cells in a strip, and of the sums that attention has."""
TIDY = ((PAGE, STRIP), (STRIP,))
"""Sizes of pieces, in the order to try, that leave alone strips with cells of other sequences."""


def place(
    table: Cells, first: NDArray[np.int32], order: NDArray[Any], members: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Chooses free cells of `table` for tokens.

    Each token goes behind the cells of the sequence that it sees, `first` [n]; tokens of one
    sequence are sorted by `order` [n]. `members` [n_seq_max, n] has the sequences of each token.
    Raises ContextError as `Cells.find_free` does."""
    if len(first) == 1:
        cell = next_cell(table, int(first[0]))
        if cell >= 0:
            return np.array([cell], np.int64)
    table.find_free(len(first))
    free = table.pos == FREE
    cells = np.empty(len(first), np.int64)
    joined = members.sum(axis=0) > 1
    tails: dict[int, int] = {}
    for seq in dict.fromkeys(first.tolist()):
        mine = np.flatnonzero(first == seq)
        if len(mine) > 1:
            mine = mine[np.argsort(order[mine], kind="stable")]
        places = _behind(table, free, seq, tails.get(seq, table.tail(seq)), len(mine))
        free[places] = False
        cells[mine] = places
        if joined[mine].any():
            for other in np.flatnonzero(members[:, mine].any(axis=1)).tolist():
                tails[other] = int(places[members[other, mine]].max())
    return cells


def _behind(
    table: Cells, free: NDArray[np.bool_], seq: int, tail: int, n: int
) -> NDArray[np.int64]:
    """Free cells behind the last cell of a sequence, `tail`.

    If there is no room, the sequence moves to where there is. If it cannot move, the cells are any
    free ones, and the sequence loses the order of its cells."""
    room = _in_order(table, free, seq, tail, n)
    if room is None:
        places = cells_from(free, tail + 1, n, (STRIP, 1))
        return np.flatnonzero(free)[:n] if places is None else places
    if len(room.source):
        free[room.source] = True
        free[room.target] = False
        table.relocate(room.source, room.target)
    return room.behind


@dataclass(slots=True, eq=False)
class _Room:
    """Cells in which the next tokens of a sequence keep the order of its cells."""

    behind: NDArray[np.int64]
    """Free cells behind the cells of the sequence."""
    source: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """Cells of the sequence that move to `target`."""
    target: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))


def _in_order(table: Cells, free: NDArray[np.bool_], seq: int, tail: int, n: int) -> _Room | None:
    """Room behind the last cell of a sequence, `tail`, or where it can move to; None: there is
    none."""
    cell = tail + 1
    if n == 1 and cell % PAGE and cell < table.size and free[cell]:
        return _Room(np.array([cell], np.int64))
    for sizes in TIDY:
        places = cells_from(free, cell, n, sizes)
        if places is not None:
            return _Room(places)
    own = np.flatnonzero(table.members[seq])
    shared = np.flatnonzero(table.members[:, own].sum(axis=0) > 1)
    floor = int(own[shared[-1]]) if len(shared) else -1
    own = own[own > floor]
    # cells that this call of `place` has already given out are not in the table yet
    if len(own) and own[-1] == tail:
        for sizes in TIDY:
            move = moved(free, own, floor, n, sizes)
            if move is not None:
                return _Room(move[1], own, move[0])
    return None


def has_room_in_order(table: Cells, wanted: Sequence[tuple[int, int]]) -> bool:
    """True if the next tokens of sequences keep the order of their cells, moved or not. `wanted`
    has each sequence, once, and the number of its tokens."""
    if all(n == 1 and next_cell(table, seq) >= 0 for seq, n in wanted):
        return True
    free = table.pos == FREE
    for seq, n in wanted:
        room = _in_order(table, free, seq, table.tail(seq), n)
        if room is None:
            return False
        free[room.source] = True
        free[room.target] = False
        free[room.behind] = False
    return True


def next_cell(table: Cells, seq: int) -> int:
    """The cell for the next token of a sequence if no search is needed; -1: call `place`."""
    cell = table.tail(seq) + 1
    free = cell % PAGE and cell < table.size and table.pos[cell] == FREE
    return cell if free else -1


def has_room_behind(table: Cells, seq: int, n: int) -> bool:
    """True if the next `n` tokens of a sequence would take the same cells one by one as together:
    without moving the sequence, and in order."""
    cell = table.tail(seq) + 1
    if cell % PAGE and cell // PAGE == (cell + n - 1) // PAGE:
        run = table.pos[cell : cell + n]
        if len(run) == n and (run == FREE).all():
            return True
    return cells_from(table.pos == FREE, cell, n, TIDY[0]) is not None


def cells_from(
    free: NDArray[np.bool_], start: int, n: int, sizes: tuple[int, ...]
) -> NDArray[np.int64] | None:
    """Chooses `n` free cells in ascending order, none below `start`. The first is congruent to
    `start` modulo STRIP, and each other one to its predecessor plus one. None: there are too few.

    Where cells are not consecutive, they go on in a free piece of one of the `sizes`, in the order
    in which these are to be tried."""
    runs, cell = [np.empty(0, np.int64)], start
    while n:
        if cell % PAGE == 0 or cell >= len(free) or not free[cell]:
            cell = next((c for size in sizes if (c := _start(free, cell, size)) >= 0), -1)
            if cell < 0:
                return None
        end = min(cell + n, (cell // PAGE + 1) * PAGE, len(free))
        run = free[cell:end]
        length = len(run) if run.all() else int(run.argmin())
        runs.append(np.arange(cell, cell + length))
        n -= length
        cell += length
    return np.concatenate(runs)


def _start(free: NDArray[np.bool_], cell: int, size: int) -> int:
    """The first cell from `cell` on that is congruent to it modulo STRIP and in a free piece of
    `size` cells; -1: there is none."""
    if size == 1:
        alone = free[cell::STRIP]
        return cell + int(alone.argmax()) * STRIP if alone.any() else -1
    first = -(-cell // size)
    whole = free[first * size : len(free) // size * size].reshape(-1, size).all(axis=1)
    return (first + int(whole.argmax())) * size + cell % STRIP if whole.any() else -1


def moved(
    free: NDArray[np.bool_], own: NDArray[np.int64], floor: int, n: int, sizes: tuple[int, ...]
) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Chooses new cells for `own`, the last cells of a sequence, which no other one has, and `n`
    free cells behind them.

    All are behind the cell `floor`, and each is congruent to its old cell modulo STRIP. None: there
    are no such cells."""
    free = free.copy()
    free[own] = True
    cuts = np.flatnonzero(np.diff(own) != 1) + 1
    runs, last = [], floor
    for run in np.split(own, cuts):
        at = cells_from(free, last + 1 + (int(run[0]) - last - 1) % STRIP, len(run), sizes)
        if at is None:
            return None
        runs.append(at)
        last = int(at[-1])
    after = cells_from(free, last + 1, n, sizes)
    return None if after is None else (np.concatenate(runs), after)
