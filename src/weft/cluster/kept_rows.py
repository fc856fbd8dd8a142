"""Answers that several processes keep in one folder, for a later run.

Every process writes a file of its own, a row at a time, as lines `KEY VALUE`: 16 hexadecimal digits
and JSON. A process that is killed leaves whole rows and at most a part of one behind them, which is
never read. What the files hold is found by key; memory: 24 bytes a row.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import FormatError

_ROW = re.compile(rb"([0-9a-f]{16}) (.+)\n", re.DOTALL)


class KeptRows:
    """The rows that earlier processes kept in a folder, and the rows that this process adds."""

    def __init__(self, folder: Path, name: str) -> None:
        """No other process has this `name`. Raises FormatError if the folder cannot be used."""
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._paths = sorted(folder.glob("*.rows"))
            self._index = _index(self._paths)
            self._file = open(folder / f"{name}.rows", "ab", buffering=0)
        except OSError as error:
            raise FormatError(f"{folder}: {error.strerror or error}") from None

    def get(self, key: int) -> Any:
        """The value that was kept under a key of 64 bits before this process began, or None."""
        keys, files, places = self._index
        i = int(np.searchsorted(keys, np.uint64(key)))
        if i == len(keys) or int(keys[i]) != key:
            return None
        with self._paths[int(files[i])].open("rb") as file:
            file.seek(int(places[i]))
            match = _ROW.fullmatch(file.readline())
        return None if match is None else json.loads(match[2])

    def put(self, key: int, value: Any) -> None:
        """Keeps a value that JSON can hold. Raises FormatError if it cannot be written."""
        text = json.dumps(value, separators=(",", ":"))  # ASCII: a lone surrogate is an escape
        try:
            self._file.write(b"%016x %s\n" % (key, text.encode()))
        except OSError as error:
            raise FormatError(f"{self._folder}: {error.strerror or error}") from None

    def sync(self) -> None:
        """Forces what was kept to the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file of this process."""
        self._file.close()


def _index(paths: list[Path]) -> tuple[Any, Any, Any]:
    """Keys in order, and for each the number of its file and its place there."""
    keys: list[int] = []
    files: list[int] = []
    places: list[int] = []
    for n, path in enumerate(paths):
        place = 0
        with path.open("rb") as file:
            for row in file:
                if _ROW.fullmatch(row):
                    keys.append(int(row[:16], 16))
                    files.append(n)
                    places.append(place)
                place += len(row)
    all_keys = np.array(keys, np.uint64)
    order = np.argsort(all_keys, kind="stable")
    return all_keys[order], np.array(files, np.int32)[order], np.array(places, np.int64)[order]
