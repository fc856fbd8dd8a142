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
from weft.llm.cache.cells import Cells, Kept
from weft.llm.cache.kv_cache import KVCache, read_rows, row_width, write_rows
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
    """For each leaf of keys or values that has a row for every token, [n, bytes]."""

    @property
    def nbytes(self) -> int:
        """Bytes of host memory."""
        return int(self.tokens.nbytes) + sum(rows.nbytes for rows in self.rows)


def needs_checkpoints(cache: KVCache) -> bool:
    """True if a text cannot go back to any of its tokens by its cells alone."""
    return cache.states is not None or cache.window is not None


def row_bytes(cache: KVCache) -> list[int]:
    """Bytes of a token's row in each leaf of a `KeptText`."""
    return [t.dtype.row_bytes(row_width(t)) for t in _leaves(cache, small=False)]


def checkpoint_bytes(cache: KVCache, n: int) -> int:
    """Bytes of a checkpoint after `n` tokens."""
    width = sum(t.dtype.row_bytes(row_width(t)) for t in _leaves(cache, small=True))
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
    rows = tuple(read_rows(t, cells) for t in _leaves(cache, small=False))
    return KeptText(key, cache.tokens[cells].copy(), rows)


def put_text(
    cache: KVCache, seq: int, text: KeptText, n: int, checkpoint: Checkpoint | None
) -> None:
    """Puts the first `n` tokens of a text into an empty sequence, for which there must be free
    cells. `checkpoint` is that of these tokens, if the cache needs one. If it fails, the sequence
    is empty."""
    try:
        cells = take_cells(cache, _in_order(text.tokens[:n], 0), seq)
        for t, rows in zip(_leaves(cache, small=False), text.rows, strict=True):
            write_rows(t, cells, rows[:n])
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
            if cache.window is not None:
                cache.window.seq_rm(seq, n)
            _put_checkpoint(cache, seq, checkpoint)
    except BaseException:
        cache.seq_rm(seq)
        raise


def share(cache: KVCache, src: int, dst: int, n: int, checkpoint: Checkpoint | None) -> None:
    """Gives the empty sequence `dst` the first `n` tokens of `src`, whose cells both have then; see
    `put_text`."""
    try:
        with cache.noting("shared", (src, dst)):
            Cells.seq_cp(cache, src, dst, 0, n)
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
        parts = [read_rows(t, cells).tobytes() for t in _leaves(cache, small=True)]
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
        for t in _leaves(cache, small=True):
            size = t.dtype.row_bytes(row_width(t))
            rows = np.frombuffer(data, np.uint8, n_rows * size, at)
            write_rows(t, cells, rows.reshape(n_rows, size))
            at += n_rows * size
    if cache.states is not None:
        cache.states.write(seq, data[at:])


def _leaves(cache: KVCache, *, small: bool) -> Sequence[Tensor]:
    """The leaves whose rows belong to the cells of the sliding window, or to all cells."""
    return [t for t, is_small in row_tensors(cache) if is_small == small]


def _n_window(cache: KVCache, n: int) -> int:
    """Number of the last of `n` tokens that the next token sees in sliding-window layers with
    cells of their own."""
    return 0 if cache.window is None else min(n, cache.window.window - 1)


def _state_bytes(cache: KVCache) -> int:
    states = cache.states
    return 0 if states is None else sum(t.max_bytes // states.n_slots for t in states.tensors)


def _in_order(tokens: Tokens, start: int) -> Kept:
    """A table of cells for tokens from position `start` on."""
    n = len(tokens)
    pos = np.arange(start, start + n, dtype=np.int32)
    serial = np.ones(n, np.int64)
    return Kept(np.arange(n), pos, np.ones((1, n), np.bool_), np.asarray(tokens), serial)
