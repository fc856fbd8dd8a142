"""Cells of a sequence: in order, by the page, and all of them when nothing else is left."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.profiles import examples
from weft.llm.cache.cells import Cells
from weft.llm.cache.pages import STRIP, cells_from, moved, next_cell, place


def put(cells: Cells, seq: int, n: int) -> NDArray[np.int64]:
    """`n` tokens behind what a sequence has."""
    members = np.zeros((cells.n_seq_max, n), np.bool_)
    members[seq] = True
    start = cells.pos_max(seq) + 1
    positions = np.arange(start, start + n, dtype=np.int32)
    first = np.full(n, seq, np.int32)
    at = place(cells, first, positions, members)
    cells.occupy(at, positions, members, None, first)
    return at


def test_pages_then_strips_then_single_cells() -> None:
    cells = Cells(200, 4)
    assert put(cells, 0, 70).tolist() == [*range(70)]
    assert put(cells, 1, 3).tolist() == [128, 129, 130]
    assert put(cells, 0, 60).tolist() == [*range(70, 128), 144, 145]
    assert put(cells, 2, 40).tolist() == [*range(160, 200)]  # the last strip is half a strip
    assert put(cells, 1, 14).tolist() == [*range(131, 144), 146]
    assert cells.find_free(13).tolist() == [*range(147, 160)]


def test_one_token_goes_on_in_its_page_or_in_a_free_one() -> None:
    cells = Cells(256, 2)
    put(cells, 0, 63)
    assert (next_cell(cells, 0), next_cell(cells, 1)) == (63, -1)
    members = np.array([[False], [True]])
    cells.occupy(np.array([70]), np.zeros(1, np.int32), members)
    assert put(cells, 0, 1).tolist() == [63]
    assert next_cell(cells, 0) == -1 and put(cells, 0, 1).tolist() == [128]
    assert next_cell(cells, 1) == 71 and put(cells, 1, 1).tolist() == [71]
    cells.occupy(np.array([129]), np.ones(1, np.int32), members)
    assert next_cell(cells, 0) == -1 and put(cells, 0, 1).tolist() == [193]
    full = Cells(64, 1)
    put(full, 0, 64)
    assert next_cell(full, 0) == -1


def test_pieces() -> None:
    """Cells go on in the first free piece behind, at the same place of a strip."""

    def chosen(*arguments: Any) -> list[int] | None:
        cells = cells_from(*arguments)
        return None if cells is None else cells.tolist()

    free = np.ones(208, np.bool_)
    free[[3, 66]] = False
    assert chosen(free, 1, 3, (64, STRIP)) == [1, 2, 131]
    assert chosen(free, 1, 3, (STRIP,)) == [1, 2, 19]
    assert chosen(free, 3, 2, (1,)) == [19, 20]
    assert chosen(free, 64, 1, (64, STRIP)) == [128]
    assert chosen(free, 64, 3, (STRIP, 1)) == [80, 81, 82]
    assert chosen(free, 190, 8, (64, STRIP)) == [*range(190, 198)]
    assert chosen(free, 206, 3, (64, STRIP, 1)) is None
    free[:] = False
    free[[5, 22, 39]] = True
    assert chosen(free, 5, 3, (64, STRIP, 1)) == [5, 22, 39]
    assert chosen(free, 5, 3, (64, STRIP)) is None


def test_a_fork_goes_on_at_the_same_place_of_a_strip() -> None:
    cells = Cells(512, 2)
    put(cells, 0, 70)
    cells.seq_cp(0, 1)
    assert put(cells, 0, 2).tolist() == [70, 71]
    assert put(cells, 1, 2).tolist() == [134, 135]


def test_tokens_in_order_of_position_whatever_the_batch() -> None:
    cells = Cells(512, 2)
    first = np.array([1, 0, 1, 0, 1], np.int32)
    order = np.array([7, 1, 5, 0, 6], np.int32)
    members = np.array([[0, 1, 0, 1, 0], [1, 0, 1, 0, 1]], np.bool_)
    assert place(cells, first, order, members).tolist() == [2, 65, 0, 64, 1]


def test_a_sequence_without_room_behind_it_moves() -> None:
    cells = Cells(96, 3)
    put(cells, 0, 32)
    put(cells, 1, 64)
    cells.seq_rm(0)
    tokens = np.arange(64)
    cells.tokens[cells.cells_of(1)] = tokens
    assert put(cells, 1, 1).tolist() == [64]
    own = cells.cells_of(1)
    assert own.tolist() == [*range(65)] and (cells.tokens[own[:64]] == tokens).all()


@settings(max_examples=examples(2.0))
@given(seed=st.integers(0, 1 << 30), size=st.integers(1, 300))
def test_order_is_kept_where_it_can_be(seed: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    free = rng.random(size) < rng.random()
    start, n = int(rng.integers(size)), int(rng.integers(1, size + 1))
    at = cells_from(free, start, n, (64, STRIP, 1))
    if at is not None:
        assert free[at].all() and (np.diff(at) > 0).all() and at[0] >= start
        assert ((at - start - np.arange(n)) % STRIP == 0).all()
    used = np.flatnonzero(~free)
    own = used[rng.integers(len(used)) :] if len(used) else used
    if len(own) and (there := moved(free, own, -1, n, (STRIP,))) is not None:
        to, after = there
        assert ((to - own) % STRIP == 0).all() and (np.diff([*to, *after]) > 0).all()
        free[own] = True
        assert free[to].all() and free[after].all() and (after[0] - to[-1]) % STRIP == 1


@given(seed=st.integers(0, 1 << 30), size=st.integers(1, 200))
def test_no_cell_is_lost(seed: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    cells = Cells(size, 3)
    while cells.n_used < size:
        n = int(rng.integers(1, size - cells.n_used + 1))
        before = cells.n_used
        assert len(set(put(cells, int(rng.integers(3)), n).tolist())) == n
        assert cells.n_used == before + n
