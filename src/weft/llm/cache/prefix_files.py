"""`PrefixFiles`: texts in a folder, so that the next process need not compute them again.

A file has a text with its rows and checkpoints:

    magic        8 bytes   "weft-px\0"
    length       u32       bytes of the header
    header       JSON      version, maker, made_with, n_tokens, checkpoints (their lengths)
    tokens       i32 [n_tokens]
    rows         for each leaf of keys or values that has a row for every token, [n_tokens, bytes]
    checkpoints  the bytes of each, in the order of the header
    checksum     32 bytes  SHA-256 of everything before it

`maker` is a hash of the model and of all that decides the bits of a result. A file's name begins
with it, so that files of others need not be opened. Several processes may share a folder: files are
written as a whole under a name that follows from their contents, and never changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import ContextError, FormatError, warn
from weft.file_lock import locked
from weft.files import replacing
from weft.llm.cache.prefix_cache import common_length, holds
from weft.llm.cache.snapshots import Checkpoint, KeptText
from weft.records import dataclass

MAGIC = b"weft-px\0"
VERSION = 1
SUFFIX = ".weftprefix"
_OWN_NAME = re.compile(r".{1,16}-[0-9a-f]{32}" + re.escape(SUFFIX))
_LENGTH = struct.Struct("<I")
_DIGEST = hashlib.sha256().digest_size
_MOST_HEADER = 1 << 20
_WAIT = 60.0
"""Seconds that a writer waits for another writer."""
_PENDING = 2
"""Maximum number of texts that wait to be written."""

Tokens = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of the files of a context."""

    maker: str
    """Hash of the model and of all that decides the bits of a result."""
    row_sizes: Sequence[tuple[int, int]]
    """For each leaf, the bytes of a row and the number of tokens that it stands for."""
    window: int
    """Maximum number of rows of sliding-window layers in a checkpoint."""
    window_row: int
    """Bytes of one such row, over all these layers."""
    state: int
    """Bytes of the recurrent states in a checkpoint."""

    def checkpoint(self, n: int) -> int:
        """Bytes of a checkpoint after `n` tokens."""
        return min(n, self.window) * self.window_row + self.state


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """A text in the folder, without its rows."""

    path: Path
    made_with: str
    tokens: Tokens
    checkpoints: tuple[int, ...]
    """The lengths in tokens to which the text can go back."""


class PrefixFiles:
    """The files of one model in a folder that has at most `most_bytes` of such files."""

    def __init__(self, folder: Path, most_bytes: int, layout: Layout) -> None:
        """The folder is created if it does not exist; raises ContextError if that cannot be."""
        self.folder = folder
        self.most_bytes = most_bytes
        self.n_written = 0
        self.n_read = 0
        self.n_refused = 0
        """Files that were damaged or did not belong to their name."""
        self._layout = layout
        self._known: dict[str, Stored | None] = {}  # by file name; None: refused
        self._lock = threading.Lock()
        self._writer: ThreadPoolExecutor | None = None
        self._pending: list[Future[None]] = []
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.scandir(folder).close()
        except OSError as error:
            raise ContextError(f"cache_dir {str(folder)!r}: {error.strerror or error}") from None

    def texts(self, made_with: str) -> list[Stored]:
        """The texts that were computed with these adapters and control vectors."""
        prefix, names = self._layout.maker[:16], set()
        with self._lock:
            for entry in self._entries():
                if not entry.name.startswith(prefix):
                    continue
                names.add(entry.name)
                if entry.name not in self._known:
                    self._known[entry.name] = self._look_at(Path(entry.path))
            for name in self._known.keys() - names:
                del self._known[name]
            return [s for s in self._known.values() if s is not None and s.made_with == made_with]

    def read(self, stored: Stored, key: bytes) -> tuple[KeptText, list[Checkpoint]] | None:
        """Reads a text with its checkpoints; None, with a warning, if it is damaged or gone. `key`
        becomes that of the text."""
        try:
            data = stored.path.read_bytes()
            header, at = self._header(data, len(data))
            if hashlib.sha256(memoryview(data)[:-_DIGEST]).digest() != data[-_DIGEST:]:
                raise FormatError("its checksum differs")
        except FileNotFoundError:  # another process has removed it
            return None
        except (OSError, FormatError) as error:
            self._refuse(stored.path, error)
            return None
        with suppress(OSError):
            os.utime(stored.path)  # it counts as used
        with self._lock:  # another process may have replaced it since it was looked at
            self._known.pop(stored.path.name, None)
        n = int(header["n_tokens"])
        tokens = np.frombuffer(data, "<i4", n, at).astype(np.int32)
        at += tokens.nbytes
        rows = []
        for size, per in self._layout.row_sizes:
            of_leaf = np.frombuffer(data, np.uint8, n // per * size, at)
            rows.append(of_leaf.reshape(n // per, size).copy())
            at += n // per * size
        checkpoints = []
        for length in header["checkpoints"]:
            size = self._layout.checkpoint(length)
            checkpoints.append(Checkpoint(length, data[at : at + size]))
            at += size
        self.n_read += 1
        return KeptText(key, tokens, tuple(rows)), checkpoints

    def write_soon(self, text: KeptText, checkpoints: Sequence[Checkpoint], made_with: str) -> None:
        """Does `write` in a thread of its own, or in this one while the interpreter ends. Waits
        while several texts are to be written."""
        if self._writer is None:
            self._writer = ThreadPoolExecutor(1, "weft-prefixes")
        self._pending = [one for one in self._pending if not one.done()]
        if len(self._pending) >= _PENDING:
            self._pending.pop(0).result()
        try:
            self._pending.append(self._writer.submit(self.write, text, checkpoints, made_with))
        except RuntimeError:  # a function of atexit closes the model: no thread can start then
            self.write(text, checkpoints, made_with)

    def close(self) -> None:
        """Waits until all texts are written."""
        if self._writer is not None:
            self._writer.shutdown()
            self._writer = None
        self._pending.clear()

    def write(self, text: KeptText, checkpoints: Sequence[Checkpoint], made_with: str) -> None:
        """Writes a text, in place of those of which it has nearly all, and removes the files used
        longest ago until all have room. A failure is a warning, as nothing depends on the file."""
        try:
            with locked(self.folder / ".lock", _WAIT):
                self._write(text, checkpoints, made_with)
        except (OSError, FormatError) as error:
            warn(f"cache_dir {str(self.folder)!r}: {error}", RuntimeWarning)

    def _write(self, text: KeptText, checkpoints: Sequence[Checkpoint], made_with: str) -> None:
        tokens = text.tokens.astype("<i4").tobytes()
        lengths = [checkpoint.n for checkpoint in checkpoints]
        header = {
            "version": VERSION,
            "maker": self._layout.maker,
            "made_with": made_with,
            "n_tokens": len(text.tokens),
            "checkpoints": lengths,
        }
        head = json.dumps(header).encode()
        size = len(MAGIC) + _LENGTH.size + len(head) + len(tokens) + _DIGEST
        size += sum(rows.nbytes for rows in text.rows) + sum(c.nbytes for c in checkpoints)
        path = self.folder / self._name(text.tokens, made_with)
        if size > self.most_bytes:
            return
        for other in self.texts(made_with):
            n, m = len(other.tokens), len(text.tokens)
            is_known = m <= n and common_length(other.tokens, text.tokens) == m
            if is_known and set(lengths) <= set(other.checkpoints):
                os.utime(other.path)
                return
            if n < m and holds(text.tokens, other.tokens):
                other.path.unlink(missing_ok=True)
        self._make_room(size, path.name)
        with replacing(path, for_owner=True) as file:
            hash_ = hashlib.sha256()
            for part in _parts(head, tokens, text, checkpoints):
                hash_.update(part)
                file.write(part)
            file.write(hash_.digest())
        with self._lock:
            self._known.pop(path.name, None)
        self.n_written += 1

    def _name(self, tokens: Tokens, made_with: str) -> str:
        digest = hashlib.sha256(made_with.encode() + b"\0" + tokens.astype("<i4").tobytes())
        return f"{self._layout.maker[:16]}-{digest.hexdigest()[:32]}{SUFFIX}"

    def _make_room(self, size: int, name: str) -> None:
        """Removes files, those used longest ago first, so that `size` more bytes have room beside
        the others, of which the one called `name` is replaced."""
        files = []
        for entry in self._entries():
            with suppress(OSError):
                about = entry.stat()
                if entry.name != name:
                    files.append((about.st_mtime_ns, about.st_size, entry.path))
        total = size + sum(nbytes for _, nbytes, _ in files)
        for _, nbytes, path in sorted(files):
            if total <= self.most_bytes:
                break
            os.unlink(path)
            total -= nbytes

    def _entries(self) -> list[os.DirEntry[str]]:
        """The files of texts in the folder, of all models."""
        try:
            with os.scandir(self.folder) as entries:
                return [e for e in entries if _OWN_NAME.fullmatch(e.name) and e.is_file()]
        except OSError:  # the folder was removed; a write says so
            return []

    def _look_at(self, path: Path) -> Stored | None:
        """Reads the beginning of a file; None, with a warning, if it is damaged."""
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                head = file.read(len(MAGIC) + _LENGTH.size + _MOST_HEADER)
                header, at = self._header(head, size)
                file.seek(at)
                tokens = np.frombuffer(file.read(4 * header["n_tokens"]), "<i4").astype(np.int32)
            made_with = str(header["made_with"])
            if path.name != self._name(tokens, made_with):
                raise FormatError("its tokens are not those of its name")
        except FileNotFoundError:
            return None
        except (OSError, FormatError) as error:
            self._refuse(path, error)
            return None
        return Stored(path, made_with, tokens, tuple(header["checkpoints"]))

    def _header(self, data: bytes, size: int) -> tuple[dict[str, Any], int]:
        """The header of a file of `size` bytes, and where the tokens begin. Raises FormatError if
        the file is of another model or its size is not what the header says."""
        start = len(MAGIC) + _LENGTH.size
        if not data.startswith(MAGIC) or len(data) < start:
            raise FormatError("it is not a text that weft kept")
        (length,) = _LENGTH.unpack_from(data, len(MAGIC))
        try:
            header: dict[str, Any] = dict(json.loads(data[start : start + length]))
        except (ValueError, TypeError, RecursionError):
            raise FormatError("it has no header") from None
        if (header.get("version"), header.get("maker")) != (VERSION, self._layout.maker):
            raise FormatError("it is of another model or another weft")
        n, lengths = header.get("n_tokens"), header.get("checkpoints")
        if not isinstance(n, int) or n < 1 or not isinstance(lengths, list):
            raise FormatError("its header does not say what it has")
        if not all(isinstance(at, int) and 1 <= at <= n for at in lengths):
            raise FormatError("its header has checkpoints that cannot be")
        rows = sum(n // per * nbytes for nbytes, per in self._layout.row_sizes)
        total = start + length + 4 * n + rows + _DIGEST
        total += sum(self._layout.checkpoint(at) for at in lengths)
        if total != size:
            raise FormatError(f"it has {size} bytes, and its header says {total}")
        return header, start + length

    def _refuse(self, path: Path, error: Exception) -> None:
        self._known[path.name] = None
        self.n_refused += 1
        warn(f"{path} is not used: {error}; remove it, the text is computed again", RuntimeWarning)


def _parts(
    head: bytes, tokens: bytes, text: KeptText, checkpoints: Sequence[Checkpoint]
) -> Iterator[bytes | memoryview]:
    """The parts of a file, in order, without the checksum."""
    yield from (MAGIC, _LENGTH.pack(len(head)), head, tokens)
    for rows in text.rows:
        yield np.ascontiguousarray(rows).data
    for checkpoint in checkpoints:
        yield checkpoint.data
