"""Copies in host memory of what a cache holds of a text, and their way back.

A `KeptText` has the tokens of a text and the rows of their keys and values. Those rows can be cut
at any token. A recurrent state cannot: it is that of the whole text. So a `Checkpoint` has the
state after some tokens, and with it the rows of sliding-window layers that have cells of their own,
which forget what is far behind. Both are put back bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from weft.errors import ContextError
from weft.graph.tensor import Tensor
from weft.llm.cache.cells import BlockCells, Cells, Kept
from weft.llm.cache.kv_cache import KVCache, read_rows, row_width, tables_of, write_rows
from weft.llm.cache.state import row_tensors, take_cells
from weft.records import dataclass

LEAST = 16
"""Minimum number of tokens worth keeping; fewer are computed again."""

Tokens = NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """The state of a text after its first `n` tokens."""

    n: int
    data: bytes
    """The rows of sliding-window layers, then the recurrent states."""

    @property
    def nbytes(self) -> int:
        """Bytes of host memory."""
        return len(self.data)


@dataclass(frozen=True, slots=True, eq=False)
class KeptText:
    """A text that was computed in order, from its beginning on."""

    key: bytes
    """Identifies the adapters and control vectors that the text was computed with."""
    tokens: Tokens
    rows: tuple[NDArray[np.uint8], ...]
    """For each leaf of keys or values that has a row for every token, or for every whole block of
    tokens, [n, bytes]."""

    @property
    def nbytes(self) -> int:
        """Bytes of host memory."""
        return int(self.tokens.nbytes) + sum(rows.nbytes for rows in self.rows)


def needs_checkpoints(cache: KVCache) -> bool:
    """True if a text cannot go back to any of its tokens by its cells alone."""
    return cache.states is not None or cache.window is not None


def row_sizes(cache: KVCache) -> list[tuple[int, int]]:
    """Bytes of a row in each leaf of a `KeptText`, and the number of tokens of each row."""
    return [(t.dtype.row_bytes(row_width(t)), _per_row(cells)) for t, cells in _kept(cache)]


def text_bytes(cache: KVCache, n: int) -> int:
    """Bytes of a `KeptText` of `n` tokens."""
    return 4 * n + sum(size * (n // per) for size, per in row_sizes(cache))


def checkpoint_bytes(cache: KVCache, n: int) -> int:
    """Bytes of a checkpoint after `n` tokens."""
    width = sum(t.dtype.row_bytes(row_width(t)) for t in _window_leaves(cache))
    return _n_window(cache, n) * width + _state_bytes(cache)


def tokens_of(cache: KVCache, seq: int) -> Tokens:
    """The tokens that a sequence has computed in order from its beginning on; there may be others
    behind them."""
    tokens = cache.tokens[cache.cells_of(seq)]
    return tokens[: cache.common_prefix(seq, tokens.astype(np.int64))]


def keep_text(cache: KVCache, seq: int, key: bytes, n: int) -> KeptText:
    """Copies the first `n` tokens of a sequence, which must be among the tokens that `tokens_of`
    returns."""
    cells = cache.cells_of(seq)[:n]
    rows = tuple(read_rows(t, of.cells_of(seq)[: n // _per_row(of)]) for t, of in _kept(cache))
    return KeptText(key, cache.tokens[cells].copy(), rows)


def put_text(
    cache: KVCache, seq: int, text: KeptText, n: int, checkpoint: Checkpoint | None
) -> None:
    """Puts the first `n` tokens of a text into an empty sequence, for which there must be free
    cells. `checkpoint` is that of these tokens, if the cache needs one. If it fails, the sequence
    is empty."""
    try:
        tables: list[Cells] = [cache, *cache.blocks.values()]
        cells = {id(of): take_cells(of, _in_order(text.tokens[:n], 0, of), seq) for of in tables}
        for (t, of), rows in zip(_kept(cache), text.rows, strict=True):
            write_rows(t, cells[id(of)], rows[: n // _per_row(of)])
        _put_checkpoint(cache, seq, checkpoint)
    except BaseException:
        cache.seq_rm(seq)
        raise


def cut(cache: KVCache, seq: int, n: int, checkpoint: Checkpoint | None) -> None:
    """Removes all but the first `n` tokens of a sequence; see `put_text`."""
    try:
        with cache.noting("removed", (seq,)):
            # `KVCache.seq_rm` refuses it, as states would be wrong
            Cells.seq_rm(cache, seq, n)
            for table in tables_of(cache)[1:]:
                table.seq_rm(seq, n)
            _put_checkpoint(cache, seq, checkpoint)
    except BaseException:
        cache.seq_rm(seq)
        raise


def share(cache: KVCache, src: int, dst: int, n: int, checkpoint: Checkpoint | None) -> None:
    """Gives the empty sequence `dst` the first `n` tokens of `src`, whose cells both have then; see
    `put_text`."""
    try:
        with cache.noting("shared", (src, dst)):
            for table in (cache, *cache.blocks.values()):
                Cells.seq_cp(table, src, dst, 0, n)
            _put_checkpoint(cache, dst, checkpoint)
    except BaseException:
        cache.seq_rm(dst)
        raise


def read_checkpoint(cache: KVCache, seq: int) -> Checkpoint:
    """Copies the state of a sequence after all of its tokens."""
    n = cache.pos_max(seq) + 1
    parts = []
    if cache.window is not None:
        cells = cache.window.cells_of(seq)
        cells = cells[len(cells) - _n_window(cache, n) :]
        parts = [read_rows(t, cells).tobytes() for t in _window_leaves(cache)]
    if cache.states is not None:
        parts.append(cache.states.read(seq))
    return Checkpoint(n, parts[0] if len(parts) == 1 else b"".join(parts))


def _put_checkpoint(cache: KVCache, seq: int, checkpoint: Checkpoint | None) -> None:
    """Makes a checkpoint the state of a sequence that has its tokens."""
    if checkpoint is None:
        return
    n, data, at = checkpoint.n, checkpoint.data, 0
    if len(data) != checkpoint_bytes(cache, n):
        raise ContextError("a checkpoint is of another cache; start the text anew")
    if cache.window is not None:
        n_rows = _n_window(cache, n)
        tokens = cache.tokens[cache.cells_of(seq)][n - n_rows : n]
        cache.window.seq_rm(seq)
        cells = take_cells(cache.window, _in_order(tokens, n - n_rows), seq)
        for t in _window_leaves(cache):
            size = t.dtype.row_bytes(row_width(t))
            rows = np.frombuffer(data, np.uint8, n_rows * size, at)
            write_rows(t, cells, rows.reshape(n_rows, size))
            at += n_rows * size
    if cache.states is not None:
        cache.states.write(seq, data[at:])


def _kept(cache: KVCache) -> Sequence[tuple[Tensor, Cells]]:
    """The leaves of which a `KeptText` has rows, with their cells: all leaves except the
    window's."""
    tables = tables_of(cache)
    return [(t, tables[n]) for t, n in row_tensors(cache) if tables[n] is not cache.window]


def _window_leaves(cache: KVCache) -> Sequence[Tensor]:
    """The leaves whose rows belong to the cells of the sliding window."""
    tables = tables_of(cache)
    return [t for t, n in row_tensors(cache) if tables[n] is cache.window]


def _per_row(cells: Cells) -> int:
    """Number of tokens that a row stands for."""
    return cells.ratio if isinstance(cells, BlockCells) else 1


def _n_window(cache: KVCache, n: int) -> int:
    """Number of the last of `n` tokens that the next token sees in sliding-window layers with
    cells of their own."""
    return 0 if cache.window is None else min(n, cache.window.window - 1)


def _state_bytes(cache: KVCache) -> int:
    states = cache.states
    return 0 if states is None else sum(t.max_bytes // states.n_slots for t in states.tensors)


def _in_order(tokens: Tokens, start: int, of: Cells | None = None) -> Kept:
    """Rows of a table for tokens from position `start` on: one for each, or for each whole block if
    the table `of` is of compressed keys."""
    n, per = len(tokens), 1 if of is None else _per_row(of)
    pos = np.arange(start + per - 1, start + n, per, dtype=np.int32)
    n = len(pos)
    serial = np.ones(n, np.int64)
    tokens = np.asarray(tokens)[per - 1 :: per]
    return Kept(np.arange(n), pos, np.ones((1, n), np.bool_), tokens, serial)
