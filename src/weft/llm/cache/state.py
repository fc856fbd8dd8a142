"""Saves a cache as bytes and restores it; only the same model accepts them.

    magic      8 bytes   "weft-kv\\0"
    length     u32       bytes of the header
    header     JSON      version, fingerprint of the model, types, whether heads are rotated, number
                         of cells and sequences
    positions  i32 [n_cells]
    tokens     i32 [n_cells]           -1: unknown
    serials    i64 [n_cells]           number of the computing ubatch; -1: moved since
    members    u8 [n_seq, n_cells]     0 or 1
               these four again for the cells of sliding-window layers, if they have their own, and
               for each table of compressed keys
    mixed      u8 [n_seq]              1: assembled from parts of other sequences
    rows       for each layer, the keys of its cells, then the values
    states     for each sequence, the states of recurrent layers
    checksum   32 bytes  SHA-256 of everything before it

All numbers are little endian. Version 2 does not say whether heads are rotated; they are not.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import ContextError, ContextFull, FormatError
from weft.graph.tensor import Tensor
from weft.llm.cache.cells import BlockCells, Cells, Kept, WindowCells
from weft.llm.cache.kv_cache import KVCache, read_rows, row_width, tables_of, write_rows
from weft.llm.cache.pages import place
from weft.llm.cache.recurrent import state_bytes
from weft.llm.config import ModelConfig

MAGIC = b"weft-kv\0"
VERSION = 3
_DIGEST = hashlib.sha256().digest_size
_LENGTH = struct.Struct("<I")
_N_IDS = 1 << 30  # ids beyond the vocabulary, see `InputRows`
_MAX_POSITION = (1 << 30) - 1
_MAX_SERIAL = 1 << 62
"""Largest serial that is accepted; the serials of later cells follow it."""


def save_state(
    config: ModelConfig,
    cache: KVCache,
    seq: int | None = None,
    made_with: Mapping[str, str] | None = None,
) -> bytes:
    """Saves the cells of sequence `seq` (None: of all) with their keys, values and states.
    `made_with` tells the adapters and control vectors that they were computed with from others.

    Keys must have been rotated to their positions. Raises ContextError for an unknown sequence."""
    tables = [(cells, _saved_cells(cells, seq)) for cells in tables_of(cache)]
    n_seq = cache.n_seq_max if seq is None else 1
    counts = {"n_cells": len(tables[0][1]), "n_window": 0, "n_seq": n_seq}
    if cache.window is not None:
        counts["n_window"] = len(tables[1][1])
    n_blocks = [len(at) for cells, at in tables if isinstance(cells, BlockCells)]
    blocks = {"n_blocks": n_blocks} if n_blocks else {}
    text = json.dumps(_header(config, cache, made_with) | counts | blocks).encode()
    parts = [MAGIC, _LENGTH.pack(len(text)), text]
    for cells, at in tables:
        kept = cells.keep(at)
        members = kept.members if seq is None else np.ones((1, len(at)), np.bool_)
        parts += [kept.pos.astype("<i4").tobytes(), kept.tokens.astype("<i4").tobytes()]
        parts += [kept.serial.astype("<i8").tobytes(), members.astype(np.uint8).tobytes()]
    mixed = cache.mixed if seq is None else cache.mixed[[seq]]
    parts.append(mixed.astype(np.uint8).tobytes())
    parts += [read_rows(t, tables[small][1]).tobytes() for t, small in row_tensors(cache)]
    if cache.states is not None:
        parts += [cache.states.read(s) for s in (range(n_seq) if seq is None else [seq])]
    body = b"".join(parts)
    return body + hashlib.sha256(body).digest()


def _saved_cells(cells: Cells, seq: int | None) -> NDArray[np.int64]:
    """The cells to save, in order of position if they are of one sequence; in a sliding window only
    those that a later token sees."""
    at = np.flatnonzero(cells.members.any(axis=0)) if seq is None else cells.cells_of(seq)
    return at[cells.seen()[at]] if isinstance(cells, WindowCells) else at


def load_state(
    config: ModelConfig,
    cache: KVCache,
    data: bytes,
    seq: int | None = None,
    made_with: Mapping[str, str] | None = None,
) -> None:
    """Replaces the whole cache, or only sequence `seq`, by the cells that `data` holds.

    Raises FormatError for data that is damaged or that belongs to another model or other cache
    types, and ContextError if it does not fit. The cache is unchanged then."""
    header, body = _checked(config, cache, data, made_with, whole=seq is None)
    n_seq = header["n_seq"]
    tables = tables_of(cache)
    saved = [body.kept(n, n_seq) for n in _counts(cache, header)]
    mixed = body.take(np.uint8, n_seq).astype(np.bool_)
    for kept in saved:
        _require_possible(config, kept)
    if seq is None and n_seq > cache.n_seq_max and saved[0].members[cache.n_seq_max :].any():
        raise ContextError(
            f"the state has {n_seq} sequences, the context {cache.n_seq_max}; make `n_seq_max` "
            "larger"
        )
    for cells, kept in zip(tables, saved, strict=True):
        _require_room(cells, len(kept.cells), seq)
    if seq is None:
        cache.clear()
    else:
        cache.seq_rm(seq)
    taken = [take_cells(cells, kept, seq) for cells, kept in zip(tables, saved, strict=True)]
    for t, small in row_tensors(cache):
        row, n = t.dtype.row_bytes(row_width(t)), len(taken[small])
        write_rows(t, taken[small], body.take(np.uint8, n * row).reshape(n, row))
    n_loaded = min(n_seq, cache.n_seq_max) if seq is None else 1
    cache.mixed[slice(n_loaded) if seq is None else [seq]] = mixed[:n_loaded]
    if cache.states is not None:
        size = state_bytes(config)
        for s in range(n_seq):
            data, to = body.take(np.uint8, size).tobytes(), s if seq is None else seq
            if to < cache.n_seq_max and cache.members[to].any():
                cache.states.write(to, data)


def _require_possible(config: ModelConfig, kept: Kept) -> None:
    """Raises FormatError for a table with values that no context can have."""
    # ids of what an encoder has read are beyond the vocabulary
    n_ids = config.n_vocab + (_N_IDS if config.n_encoder else 0)
    wrong = (
        ("position", (kept.pos < 0) | (kept.pos > _MAX_POSITION)),
        ("token", (kept.tokens < -1) | (kept.tokens >= n_ids)),
        ("time", (kept.serial < -1) | (kept.serial > _MAX_SERIAL)),
        ("sequence", ~kept.members.any(axis=0)),
    )
    for what, hits in wrong:
        if hits.any():
            raise FormatError(
                f"the saved state is forged: the {what} of cell {int(hits.argmax())} cannot be; "
                "save it again"
            )


def _require_room(cells: Cells, n: int, seq: int | None) -> None:
    room = cells.size
    if seq is not None:
        others = np.delete(cells.members, seq, axis=0)
        taken = others.any(axis=0)
        if isinstance(cells, WindowCells):
            taken &= cells.seen()
        room -= int(taken.sum())
    if n > room:
        raise ContextFull(f"the state has {n} cells, there is room for {room}; make `n_ctx` larger")


def take_cells(cells: Cells, kept: Kept, seq: int | None) -> NDArray[np.int64]:
    """Takes cells for the saved ones and fills their rows of the table; returns them."""
    n = len(kept.cells)
    if n == 0:
        return kept.cells
    if isinstance(cells, WindowCells):
        cells.release(cells.in_the_way(n))
    joined = np.zeros((cells.n_seq_max, n), np.bool_)
    if seq is None:
        n_loaded = min(len(kept.members), cells.n_seq_max)
        joined[:n_loaded] = kept.members[:n_loaded]
    else:
        joined[seq] = True
    if isinstance(cells, WindowCells | BlockCells):
        at = cells.find_free(n)
        cells.occupy(at, kept.pos, joined, kept.tokens)
    else:
        at = np.empty(n, np.int64)
        owner = joined.argmax(axis=0).astype(np.int32)
        for s in dict.fromkeys(owner.tolist()):
            own = np.flatnonzero(owner == s)  # in the order of their cells
            at[own] = place(cells, owner[own], np.arange(len(own)), joined[:, own])
            cells.occupy(at[own], kept.pos[own], joined[:, own], kept.tokens[own])
    cells.restore_serials(at, kept.serial)
    return at


class _Body:
    """Reads arrays one after another from bytes, whose number has been checked."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at

    def take(self, dtype: Any, count: int) -> NDArray[Any]:
        """The next `count` elements."""
        array = np.frombuffer(self._data, dtype, count, self._at)
        self._at += array.nbytes
        return array

    def kept(self, n: int, n_seq: int) -> Kept:
        """The next table, of `n` cells."""
        pos, tokens = (self.take("<i4", n).astype(np.int32) for _ in range(2))
        serial = self.take("<i8", n).astype(np.int64)
        members = self.take(np.uint8, n_seq * n).reshape(n_seq, n).astype(np.bool_)
        return Kept(np.arange(n), pos, members, tokens, serial)


def _checked(
    config: ModelConfig,
    cache: KVCache,
    data: bytes,
    made_with: Mapping[str, str] | None,
    *,
    whole: bool,
) -> tuple[dict[str, Any], _Body]:
    """Splits `data` into header and body; raises FormatError if it is damaged or does not fit this
    model and cache."""
    start = len(MAGIC) + _LENGTH.size
    if not data.startswith(MAGIC):
        raise FormatError("this is not a saved context state of weft")
    if len(data) < start + _DIGEST or hashlib.sha256(data[:-_DIGEST]).digest() != data[-_DIGEST:]:
        raise FormatError("the saved state is damaged (its checksum differs); save it again")
    (length,) = _LENGTH.unpack_from(data, len(MAGIC))
    try:
        header: dict[str, Any] = dict(json.loads(data[start : start + length]))
    except (ValueError, TypeError, RecursionError):
        raise FormatError("the saved state has no header; save it again") from None
    if header.get("version") == 2:
        header |= {"version": VERSION, "rotated": False}
    if header.get("version") != VERSION:
        raise FormatError(
            f"the saved state has version {header.get('version')}, this weft reads 2 and "
            f"{VERSION}; save it again"
        )
    for key, mine in _header(config, cache, made_with).items():
        if header.get(key) != mine:
            raise FormatError(
                f"the saved state was made for another model or cache: its {key} is "
                f"{header.get(key)}, here it is {mine}"
            )
    counts = [header.get(key) for key in ("n_cells", "n_window", "n_seq")]
    blocks = header.get("n_blocks", [])
    counts += blocks if isinstance(blocks, list) else [None]
    if len(counts) != 3 + len(cache.blocks):
        raise FormatError("the saved state does not say how many cells it has; save it again")
    if not all(isinstance(n, int) and n >= 0 for n in counts):
        raise FormatError("the saved state does not say how many cells it has; save it again")
    n_seq, tables = header["n_seq"], _counts(cache, header)
    rows = sum(tables[small] * t.dtype.row_bytes(row_width(t)) for t, small in row_tensors(cache))
    cells = sum(tables) * (16 + n_seq) + n_seq
    if start + length + cells + rows + n_seq * state_bytes(config) + _DIGEST != len(data):
        raise FormatError("the saved state has another size than its header says; save it again")
    if not whole and header["n_seq"] != 1:
        raise FormatError(
            f"the saved state has {header['n_seq']} sequences and cannot be loaded as one; load it "
            "whole"
        )
    return header, _Body(data, start + length)


def _header(
    config: ModelConfig, cache: KVCache, made_with: Mapping[str, str] | None
) -> dict[str, Any]:
    """The part of the header that must be the same when the state is loaded."""
    return {
        "version": VERSION,
        "model": hashlib.sha256(repr(config).encode()).hexdigest()[:16],
        **cache.types._asdict(),
        "rotated": cache.rotated,
        "small_window": cache.window is not None,
        **(made_with or {}),
    }


def _counts(cache: KVCache, header: dict[str, Any]) -> list[int]:
    """The number of saved cells of each table."""
    window = [] if cache.window is None else [header["n_window"]]
    return [header["n_cells"], *window, *header.get("n_blocks", [])]


def row_tensors(cache: KVCache) -> list[tuple[Tensor, int]]:
    """Each leaf with rows, with the number of its table in `tables_of`."""
    return [(t, table) for t, table in cache.row_leaves() if t.ne[0]]
