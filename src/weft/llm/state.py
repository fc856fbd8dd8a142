"""Saving a cache and restoring it: bytes that only the same model accepts.

    magic      8 bytes   "weft-kv\\0"
    length     u32       bytes of the header
    header     JSON      version, fingerprint of the model, types, number of cells and sequences
    positions  i32 [n_cells]
    members    u8 [n_seq, n_cells]     0 or 1
    rows       of each layer, the keys of all cells, then the values
    states     of each sequence, what its recurrent layers keep
    checksum   32 bytes  SHA-256 of everything before it

All numbers are little endian.
"""

from __future__ import annotations

import hashlib
import json
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import ContextError, FormatError
from weft.graph.tensor import Tensor
from weft.llm.config import ModelConfig
from weft.llm.kv_cache import KVCache
from weft.llm.recurrent import state_bytes

__all__ = ["load_state", "save_state"]

MAGIC = b"weft-kv\0"
VERSION = 1
_DIGEST = hashlib.sha256().digest_size
_LENGTH = struct.Struct("<I")


def save_state(config: ModelConfig, cache: KVCache, seq: int | None = None) -> bytes:
    """The cells of sequence `seq` (None: of all) with their keys and values.

    Keys must have been rotated to their positions. Raises ContextError for an unknown sequence."""
    if seq is None:
        cells = np.flatnonzero(cache.members.any(axis=0))
        members = cache.members[:, cells]
    else:
        cells = cache.cells_of(seq)
        members = np.ones((1, len(cells)), np.bool_)
    header = _header(config, cache) | {"n_cells": len(cells), "n_seq": len(members)}
    text = json.dumps(header).encode()
    parts = [MAGIC, _LENGTH.pack(len(text)), text]
    parts += [cache.pos[cells].astype("<i4").tobytes(), members.astype(np.uint8).tobytes()]
    parts += [_read_rows(t, cells).tobytes() for t in _tensors(cache)]
    if cache.states is not None:
        parts += [cache.states.read(s) for s in (range(len(members)) if seq is None else [seq])]
    body = b"".join(parts)
    return body + hashlib.sha256(body).digest()


def load_state(config: ModelConfig, cache: KVCache, data: bytes, seq: int | None = None) -> None:
    """Replaces the cache (or sequence `seq` alone) by what `data` holds.

    Raises FormatError for data that is damaged, of another model or of other cache types, and
    ContextError when it does not fit; the cache is as it was then."""
    header, body = _checked(config, cache, data, whole=seq is None)
    n, n_seq = header["n_cells"], header["n_seq"]
    positions = body.take("<i4", n)
    members = body.take(np.uint8, n_seq * n).reshape(n_seq, n).astype(np.bool_)
    if seq is None:
        if len(members) > cache.n_seq_max and members[cache.n_seq_max :].any():
            raise ContextError(
                f"the state has {len(members)} sequences, the context {cache.n_seq_max}; make "
                "n_seq_max larger"
            )
        room = cache.size
    else:
        own = cache.cells_of(seq)
        room = cache.size - cache.n_used + int((cache.members[:, own].sum(axis=0) == 1).sum())
    if n > room:
        raise ContextError(f"the state has {n} cells, there is room for {room}; make n_ctx larger")

    joined = np.zeros((cache.n_seq_max, n), np.bool_)
    if seq is None:
        cache.clear()
        joined[: len(members)] = members[: cache.n_seq_max]
    else:
        cache.seq_rm(seq)
        joined[seq] = True
    if n == 0:
        return
    cells = cache.find_free(n)
    for t in _tensors(cache):
        row = t.dtype.row_bytes(_width(t))
        _write_rows(t, cells, body.take(np.uint8, n * row).reshape(n, row))
    cache.occupy(cells, positions.astype(np.int32), joined)
    if cache.states is not None:
        size = state_bytes(config)
        for s in range(n_seq):
            data, to = body.take(np.uint8, size).tobytes(), s if seq is None else seq
            if to < cache.n_seq_max and joined[to].any():
                cache.states.write(to, data)


class _Body:
    """Arrays one after another in bytes that are known to be long enough."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at

    def take(self, dtype: Any, count: int) -> NDArray[Any]:
        """The next `count` elements."""
        found = np.frombuffer(self._data, dtype, count, self._at)
        self._at += found.nbytes
        return found


def _checked(
    config: ModelConfig, cache: KVCache, data: bytes, *, whole: bool
) -> tuple[dict[str, Any], _Body]:
    """Header and body of `data`, when it is undamaged and made for such a cache."""
    start = len(MAGIC) + _LENGTH.size
    if not data.startswith(MAGIC):
        raise FormatError("this is not a saved context state of weft")
    if len(data) < start + _DIGEST or hashlib.sha256(data[:-_DIGEST]).digest() != data[-_DIGEST:]:
        raise FormatError("the saved state is damaged (its checksum differs); save it again")
    (length,) = _LENGTH.unpack_from(data, len(MAGIC))
    try:
        header: dict[str, Any] = dict(json.loads(data[start : start + length]))
    except (ValueError, TypeError):
        raise FormatError("the saved state has no header; save it again") from None
    if header.get("version") != VERSION:
        raise FormatError(
            f"the saved state has version {header.get('version')}, this weft reads {VERSION}; "
            "save it again"
        )
    for key, mine in _header(config, cache).items():
        if header.get(key) != mine:
            raise FormatError(
                f"the saved state was made for another model or cache: its {key} is "
                f"{header.get(key)}, here it is {mine}"
            )
    n, n_seq = header.get("n_cells"), header.get("n_seq")
    if not isinstance(n, int) or not isinstance(n_seq, int) or min(n, n_seq) < 0:
        raise FormatError("the saved state does not say how many cells it has; save it again")
    rows = sum(t.dtype.row_bytes(_width(t)) for t in _tensors(cache))
    if start + length + n * (4 + n_seq + rows) + n_seq * state_bytes(config) + _DIGEST != len(data):
        raise FormatError("the saved state has another size than its header says; save it again")
    if not whole and header["n_seq"] != 1:
        raise FormatError(
            f"the saved state has {header['n_seq']} sequences and cannot be loaded as one; load it "
            "whole"
        )
    return header, _Body(data, start + length)


def _header(config: ModelConfig, cache: KVCache) -> dict[str, Any]:
    """What must agree between saving and loading."""
    return {
        "version": VERSION,
        "model": hashlib.sha256(repr(config).encode()).hexdigest()[:16],
        "type_k": cache.type_k.name,
        "type_v": cache.type_v.name,
    }


def _tensors(cache: KVCache) -> list[Tensor]:
    return [t for pair in zip(cache.k, cache.v, strict=True) for t in pair if t.ne[0]]


def _width(t: Tensor) -> int:
    width = t.ne[0]
    assert isinstance(width, int)
    return width


def _read_rows(t: Tensor, cells: NDArray[np.int64]) -> NDArray[np.uint8]:
    assert t.buffer is not None
    memory = t.buffer.data
    rows: NDArray[np.uint8] = memory.read(0, t.max_bytes).reshape(-1, t.dtype.row_bytes(_width(t)))
    return rows[cells]


def _write_rows(t: Tensor, cells: NDArray[np.int64], rows: NDArray[np.uint8]) -> None:
    assert t.buffer is not None
    memory = t.buffer.data
    # Runs of neighbouring cells go in one write each; a fresh cache is a single run.
    starts = np.flatnonzero(np.diff(cells, prepend=-2) != 1)
    for a, b in zip(starts, [*starts[1:], len(cells)], strict=True):
        memory.write(int(cells[a]) * rows.shape[1], np.ascontiguousarray(rows[a:b]).reshape(-1))
