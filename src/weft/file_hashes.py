"""Hashes of files, kept from run to run: a file is read again only where it has changed.

What is kept of a file is found by its place, size, time of change and number, in
`FOLDER/hashes`, one small file for each file and kind of hash.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

from weft.errors import WeftError
from weft.files import read_json, write_text
from weft.flags import FLAGS

Folder = str | os.PathLike[str] | None
"""Where hashes are kept; None: the cache folder of weft."""
_THREADS = 4
_LOCK = Lock()
_KNOWN: dict[str, list[str]] = {}
"""The hashes that this process has read or computed, so that no file of hashes is read twice."""


def file_hash(path: str | os.PathLike[str], folder: Folder = None) -> str:
    """The SHA-256 of a file, as 64 hexadecimal digits; raises OSError."""

    def compute(_: int) -> list[str]:
        with open(path, "rb") as file:
            return [hashlib.file_digest(file, "sha256").hexdigest()]

    return _kept(path, "sha256", folder, lambda size: 1, compute)[1][0]


def part_hashes(
    path: str | os.PathLike[str], part: int, folder: Folder = None
) -> tuple[int, tuple[str, ...]]:
    """The size of a file, and a `part_hash` of each `part` bytes, in order; raises OSError."""

    def n_parts(size: int) -> int:
        return -(-size // part)

    def compute(size: int) -> list[str]:
        with ThreadPoolExecutor(_THREADS) as pool:
            work = pool.map(lambda n: part_hash(part_of(path, n, part)), range(n_parts(size)))
            return list(work)

    size, hashes = _kept(path, f"parts of {part}", folder, n_parts, compute)
    return size, tuple(hashes)


def part_hash(data: bytes) -> str:
    """The hash of a part's bytes: BLAKE2b of 16 bytes, in hexadecimal digits."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def part_of(path: str | os.PathLike[str], n: int, part: int) -> bytes:
    """Part `n` of `part` bytes of a file; raises OSError."""
    with open(path, "rb") as file:
        file.seek(n * part)
        return file.read(part)


def _kept(
    path: str | os.PathLike[str],
    kind: str,
    folder: Folder,
    count: Callable[[int], int],
    compute: Callable[[int], list[str]],
) -> tuple[int, list[str]]:
    """The size of a file as it is now, and its `count(size)` hashes of a kind."""
    about = os.stat(path)
    key = repr((os.path.realpath(path), about.st_size, about.st_mtime_ns, about.st_ino, kind))
    name = hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
    where = Path(folder or FLAGS.cache) / "hashes" / f"{name}.json"
    with _LOCK:
        found = _KNOWN.get(str(where))
    if found is None:
        found = _stored(where, count(about.st_size))
    if found is None:
        found = compute(about.st_size)
        with suppress(OSError, WeftError):  # it is computed again the next time
            where.parent.mkdir(parents=True, exist_ok=True)
            write_text(where, json.dumps(found))
    with _LOCK:
        _KNOWN[str(where)] = found
    return about.st_size, found


def _stored(path: Path, n: int) -> list[str] | None:
    try:
        value: Any = read_json(path, "hashes") if path.exists() else None
    except (OSError, WeftError, ValueError):
        return None
    if not isinstance(value, list) or len(value) != n:
        return None
    return value if all(isinstance(one, str) for one in value) else None
