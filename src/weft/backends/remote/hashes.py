"""SHA-256 of files, kept from run to run: a file is read again only where it has changed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from threading import Lock

from weft.errors import WeftError
from weft.files import read_json, write_text
from weft.flags import FLAGS

__all__ = ["file_hash"]

_LOCK = Lock()
_KNOWN: dict[str, str] = {}
_MOST = 10_000
"""The most files that are remembered."""


def file_hash(path: str | os.PathLike[str], folder: str | os.PathLike[str] | None = None) -> str:
    """The SHA-256 of a file, as 64 hexadecimal digits; raises OSError.

    It is remembered by the file's place, size and time of change in `folder` (None: the cache
    folder of weft)."""
    where = Path(folder or FLAGS.cache) / "file-hashes.json"
    status = os.stat(path)
    key = f"{os.path.realpath(path)}|{status.st_size}|{status.st_mtime_ns}|{status.st_ino}"
    with _LOCK:
        found = _KNOWN.get(key) or _stored(where).get(key)
    if found is None:
        with open(path, "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        with _LOCK:
            _store(where, key, found)
    _KNOWN[key] = found
    return found


def _stored(where: Path) -> dict[str, str]:
    try:
        table = read_json(where, "file hashes")
    except (WeftError, OSError, ValueError):
        return {}
    if not isinstance(table, dict):
        return {}
    return {str(k): v for k, v in table.items() if isinstance(v, str) and len(v) == 64}


def _store(where: Path, key: str, found: str) -> None:
    table = {**_stored(where), key: found}
    for old in list(table)[: max(0, len(table) - _MOST)]:
        del table[old]
    with contextlib.suppress(OSError, WeftError):
        where.parent.mkdir(parents=True, exist_ok=True)
        write_text(where, json.dumps(table, indent=0))
