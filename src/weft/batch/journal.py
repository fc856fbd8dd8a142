"""The file of answers of a batch, which a later run goes on with.

A row is one write of a whole line at the end of the file, so that a killed process leaves whole
rows and at most a part of one behind them, which is cut off when the file is opened again. The id
of a row has the number and a hash of the line that it answers: the file says by itself what is
done, and a file of requests that has changed since is noticed. A lock keeps a second process away.

A row that was written outlives its process. It outlives a failure of the machine once `sync` has
returned; rows that such a failure takes are computed again.
"""

from __future__ import annotations

import json
import os
import re
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from weft.batch.lines import Line
from weft.errors import FormatError
from weft.file_lock import try_lock

MOST_LINES = 1 << 31
"""Maximum number of lines of a file of requests."""
_ID = re.compile(r"batch_req_(\d{1,10})_([0-9a-f]{16})")


class Journal:
    """The rows of a batch: those that were there, and those that are appended.

    Memory: 8 bytes for each line of the file of requests."""

    def __init__(
        self, path: str | os.PathLike[str], *, opener: Callable[[str, int], int] | None = None
    ) -> None:
        """Opens or creates the file, by `opener` (see `open`), and cuts off a last row that is not
        whole.

        Raises FormatError if it cannot be opened, another process writes it, or it holds anything
        but rows of a batch; it is left as it was then."""
        self.path = Path(path)
        self.n_answered = 0
        """Number of rows whose request was answered with a status below 300."""
        self.n_failed = 0
        """Number of rows with an error."""
        self._digests = array("Q")
        self._unsynced = False
        try:
            self._file = open(self.path, "a+b", buffering=0, opener=opener)
        except OSError as error:
            raise FormatError(f"cannot write {self.path}: {error.strerror or error}") from None
        try:
            if not try_lock(self._file):
                raise FormatError(f"{self.path}: another process is writing it; wait for its end")
            self._size = self._read()
            if os.fstat(self._file.fileno()).st_size > self._size:
                self._file.truncate(self._size)
        except OSError as error:
            self._file.close()
            raise FormatError(f"{self.path}: {error.strerror or error}") from None
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def n_rows(self) -> int:
        """The number of rows."""
        return self.n_answered + self.n_failed

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._size

    def has(self, line: Line) -> bool:
        """True if the line has been answered. Raises FormatError if the row of this number answers
        another line."""
        if line.number >= len(self._digests) or not self._digests[line.number]:
            return False
        if self._digests[line.number] != line.digest:
            raise FormatError(
                f"line {line.number} has changed since {self.path} was begun; remove that file to "
                "start anew, or give another name"
            )
        return True

    def append(self, line: Line, row: dict[str, Any]) -> None:
        """Writes the row of a line. Raises FormatError if that fails, for example on a full disk;
        the file then ends with the row before."""
        data = encode_row(row)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            self._file.truncate(self._size)
            raise FormatError(
                f"cannot write {self.path}: {error.strerror or error}; what it has is kept, and "
                "the same command goes on from there"
            ) from None
        self._size += len(data)
        self._unsynced = True
        self._note(line.number, line.digest, is_answered(row))

    def sync(self) -> None:
        """Forces the rows to the disk. May run in another thread than `append`."""
        if self._unsynced:
            self._unsynced = False
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Forces the rows to the disk and closes the file."""
        if not self._file.closed:
            try:
                self.sync()
            finally:
                self._file.close()

    def _note(self, number: int, digest: int, answered: bool) -> None:
        missing = number + 1 - len(self._digests)
        if missing > 0:
            self._digests.frombytes(bytes(8 * missing))
        self._digests[number] = digest
        if answered:
            self.n_answered += 1
        else:
            self.n_failed += 1

    def _read(self) -> int:
        """Reads the rows that are there; returns the bytes of the whole ones."""
        whole = n = 0
        with open(self.path, "rb") as file:
            for data in file:
                n += 1
                if not data.endswith(b"\n"):
                    break  # the last row, torn
                self._take(n, data)
                whole += len(data)
        return whole

    def _take(self, n: int, data: bytes) -> None:
        try:
            row = json.loads(data)
        except (ValueError, RecursionError):
            row = None
        found = _ID.fullmatch(str(row.get("id"))) if isinstance(row, dict) else None
        if found is None or not 0 < int(found[1]) < MOST_LINES:
            raise FormatError(
                f"{self.path}: line {n} is no row of a batch; give the name of a new file"
            )
        number, digest = int(found[1]), int(found[2], 16)
        if number < len(self._digests) and self._digests[number]:
            raise FormatError(f"{self.path}: line {n} answers line {number} a second time")
        self._note(number, digest, is_answered(row))


def encode_row(row: dict[str, Any]) -> bytes:
    """A row as a line of JSON in UTF-8; one with a lone surrogate has escapes instead."""
    try:
        return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(row, separators=(",", ":")).encode() + b"\n"


def is_answered(row: dict[str, Any]) -> bool:
    """True if a row has an answer, and not an error."""
    response = row.get("response")
    status = response.get("status_code") if isinstance(response, dict) else None
    return row.get("error") is None and isinstance(status, int) and status < 300
