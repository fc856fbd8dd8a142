"""Weights of a worker: its own model files, and tensors that clients sent, kept on disk by hash."""

from __future__ import annotations

import hashlib
import mmap
import os
import re
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import DeviceError, OutOfMemoryError
from weft.file_hashes import file_hash

Bytes = NDArray[np.uint8]

_MOST_FILES = 100_000
_NAME = re.compile(r"[0-9a-f]{64}")


class WeightFiles:
    """Finds files by size and hash, maps them, and keeps what it is sent."""

    def __init__(
        self,
        model_dirs: Iterable[str | os.PathLike[str]],
        cache_dir: str | os.PathLike[str],
        most: int = 1 << 40,
    ) -> None:
        """`most` are the bytes of sent tensors that are kept on disk; the oldest go first."""
        self._dirs = [Path(folder) for folder in model_dirs]
        self._cache = Path(cache_dir)
        self._most = most
        self._lock = Lock()
        self._maps: weakref.WeakValueDictionary[str, Bytes] = weakref.WeakValueDictionary()
        self._parts: weakref.WeakValueDictionary[tuple[str, int, int], Bytes] = (
            weakref.WeakValueDictionary()
        )

    # ---- files of this machine -------------------------------------------------------------------

    def has_size(self, size: int) -> bool:
        """True if some file has `size` bytes."""
        return next(self._of_size(size), None) is not None

    def part(self, sha: str, size: int, offset: int, nbytes: int) -> Bytes | None:
        """Bytes of the file with this hash and size, mapped; None where there is no such file.

        The same bytes are the same array as long as somebody uses it."""
        _require_name(sha)
        if offset + nbytes > size:
            raise DeviceError(f"bytes {offset}..{offset + nbytes} of a file of {size} bytes")
        with self._lock:
            key = (sha, offset, nbytes)
            part = self._parts.get(key)
            if part is None:
                whole = self._maps.get(sha)
                if whole is None:
                    path = self._find(sha, size)
                    if path is None:
                        return None
                    whole = self._maps[sha] = _mapped(path)
                part = self._parts[key] = whole[offset : offset + nbytes]
                _KEEP[id(part)] = whole
                weakref.finalize(part, _KEEP.pop, id(part), None)
            return part

    def _find(self, sha: str, size: int) -> Path | None:
        for path in self._of_size(size):
            with suppress(OSError):
                if file_hash(path, self._cache) == sha:
                    return path
        return None

    def _of_size(self, size: int) -> Iterator[Path]:
        seen = 0
        for folder in self._dirs:
            for root, _, names in os.walk(folder):
                for name in sorted(names):
                    seen += 1
                    if seen > _MOST_FILES:
                        return
                    path = Path(root, name)
                    with suppress(OSError):
                        if path.stat().st_size == size and path.is_file():
                            yield path

    # ---- tensors that were sent ------------------------------------------------------------------

    def stored(self, sha: str, nbytes: int) -> Bytes | None:
        """The bytes of a tensor that was sent once; None where it was not."""
        path = self._cache / "tensors" / _require_name(sha)
        with self._lock:
            key = (sha, -1, nbytes)
            part = self._parts.get(key)
            if part is not None:
                return part
            try:
                if path.stat().st_size != nbytes:
                    return None
                part = _mapped(path)
            except OSError:
                return None
            if hashlib.sha256(part.data).hexdigest() != sha:
                path.unlink(missing_ok=True)
                return None
            with suppress(OSError):
                os.utime(path)
            self._parts[key] = part
            return part

    def store(self, incoming: Incoming) -> None:
        """Keeps a tensor that has come whole; raises DeviceError where its hash is another."""
        folder = self._cache / "tensors"
        try:
            incoming.finish(folder / incoming.sha)
            self._make_room(folder)
        except OSError as error:
            raise DeviceError(f"cannot keep weights in {folder}: {error}") from error

    def incoming(self, sha: str, nbytes: int) -> Incoming:
        """A tensor that begins to come."""
        folder = self._cache / "tensors"
        if nbytes > self._most:
            raise OutOfMemoryError(f"this worker keeps at most {self._most} bytes of weights")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return Incoming(folder, _require_name(sha), nbytes)
        except OSError as error:
            raise DeviceError(f"cannot keep weights in {folder}: {error}") from error

    def _make_room(self, folder: Path) -> None:
        files = [(p, p.stat()) for p in folder.iterdir() if _NAME.fullmatch(p.name)]
        total = sum(status.st_size for _, status in files)
        for path, status in sorted(files, key=lambda f: f[1].st_mtime):
            if total <= self._most:
                return
            path.unlink(missing_ok=True)
            total -= status.st_size


_KEEP: dict[int, Bytes] = {}


class Incoming:
    """A tensor that comes in pieces, in order, in a temporary file beside the others."""

    def __init__(self, folder: Path, sha: str, nbytes: int) -> None:
        self.sha, self.nbytes = sha, nbytes
        self._file: Any = tempfile.NamedTemporaryFile(dir=folder, prefix="part-", delete=False)
        self._hash = hashlib.sha256()
        self.at = 0

    def add(self, piece: Bytes) -> bool:
        """Takes the next piece; True where it was the last."""
        if self.at + piece.nbytes > self.nbytes:
            raise DeviceError(f"{self.at + piece.nbytes} bytes came of a tensor of {self.nbytes}")
        try:
            self._file.write(piece)
        except OSError as error:
            raise DeviceError(f"cannot keep weights on disk: {error}") from error
        self._hash.update(piece.data)
        self.at += piece.nbytes
        return self.at == self.nbytes

    def finish(self, path: Path) -> None:
        """Gives the file its name; raises DeviceError where the hash of the bytes is another."""
        self._file.close()
        if self._hash.hexdigest() != self.sha:
            self.drop()
            raise DeviceError("weights that were sent arrived damaged: their hash is another")
        os.replace(self._file.name, path)

    def drop(self) -> None:
        """Removes what came."""
        self._file.close()
        with suppress(OSError):
            os.unlink(self._file.name)


def _mapped(path: Path) -> Bytes:
    """A file as an array; its pages come from the file, and what is written to them stays here."""
    with path.open("rb") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), np.uint8)


def _require_name(sha: str) -> str:
    if not isinstance(sha, str) or not _NAME.fullmatch(sha):
        raise DeviceError("a hash is 64 hexadecimal digits")
    return sha
