"""The measurements of a model in the user's cache folder, so that nothing is measured twice.

One file for each model, text and manner, a JSON object a line. A run that is killed loses at most
the line it was writing; what is torn or damaged is measured again.
"""

from __future__ import annotations

import json
import math
import os
from hashlib import sha256
from pathlib import Path
from typing import Any

from weft.errors import FormatError
from weft.flags import FLAGS
from weft.frontends.gguf import GGUFFile

__all__ = ["Kept", "digest_of", "kept_folder"]

_MOST_BYTES = 64 << 20
_SAMPLE = 4096
"""Number of bytes at the beginning and the end of a tensor that are hashed to tell it from
others."""


def kept_folder() -> Path:
    """The folder of all such files."""
    return Path(FLAGS.cache) / "probes"


def digest_of(file: GGUFFile, *more: object) -> str:
    """A name for the tensors of a file (names, types, sizes, and bytes at the beginning and the end
    of each) and for what else a measurement depends on."""
    digest = sha256(repr(more).encode())
    digest.update(file.architecture.encode())
    for t in file.tensors.values():
        digest.update(f"\n{t.name} {t.dtype.name} {t.ne}".encode())
        data = t.data
        digest.update(data[:_SAMPLE].tobytes())
        digest.update(data[-_SAMPLE:].tobytes())
    return digest.hexdigest()[:32]


class Kept:
    """Figures by key, read from a file and added to it."""

    def __init__(self, path: Path | None) -> None:
        """`path` is None to keep nothing beyond this object."""
        self._path = path
        self._values: dict[str, float] = {}
        if path is not None:
            self._read(path)

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: str) -> float | None:
        """The figure of `key`; None: it is not known."""
        return self._values.get(key)

    def add(self, key: str, value: float) -> None:
        """Remembers a figure. Raises FormatError if the file cannot be written."""
        self._values[key] = value
        if self._path is None:
            return
        line = json.dumps({"key": key, "value": value}) + "\n"
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # in one write, on a line of its own, even behind one that a kill has torn
            fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(fd, ("\n" + line).encode())
            finally:
                os.close(fd)
        except OSError as error:
            raise FormatError(
                f"{self._path}: what was measured cannot be kept there: "
                f"{error.strerror or error}; WEFT_CACHE names another folder"
            ) from None

    def _read(self, path: Path) -> None:
        try:
            with open(path, "rb") as file:
                data = file.read(_MOST_BYTES)
        except OSError:
            return
        for line in data.split(b"\n"):
            try:
                row: Any = json.loads(line)
                key, value = row["key"], row["value"]
            except (ValueError, LookupError, TypeError, RecursionError):
                continue
            if isinstance(key, str) and isinstance(value, (int, float)) and math.isfinite(value):
                self._values[key] = float(value)
