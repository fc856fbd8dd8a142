"""Writes a file whose tensors take long to make, so that a later run can go on with it.

Beside the target NAME lie, until it is whole, `.NAME.partial` with the bytes so far and
`.NAME.journal`: a line of JSON that says what is being written (a hash of everything that decides
the bytes), and one for each tensor that is complete, with the checksum of its bytes. At the end the
partial file is renamed. A run that finds a journal of the same work reads the tensors that are
complete once, checks them, and goes on behind them.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from weft.errors import FormatError
from weft.file_lock import try_lock
from weft.files import require_writable
from weft.frontends.gguf.writer import Layout

_SYNC_BYTES = 256 << 20
"""Number of bytes after which a journal waits for the disk."""
_READ = 16 << 20


class ResumableFile:
    """A file that is written tensor by tensor. Use it as a context manager: an error removes what
    was written, unless it is Ctrl-C or the system's (a full disk)."""

    def __init__(self, target: Path, layout: Layout, about: str) -> None:
        """`about` is what decides the bytes beside the layout: sources and their states."""
        self._target = Path(os.path.realpath(target))
        self._layout = layout
        digest = hashlib.sha256(layout.head)
        digest.update(f"\0{layout.size}\0{about}".encode("utf-8", "surrogateescape"))
        self._stamp = digest.hexdigest()
        self._partial = self._target.with_name(f".{self._target.name[:200]}.partial")
        self._journal = self._target.with_name(f".{self._target.name[:200]}.journal")
        self._sums: list[int] = []
        self._unsynced = 0
        self._file: BinaryIO
        self._log: BinaryIO

    @property
    def n_done(self) -> int:
        """Tensors that are complete."""
        return len(self._sums)

    def __enter__(self) -> ResumableFile:
        require_writable(self._target)
        try:
            for path in (self._partial, self._journal):
                _remove_what_is_of_others(path)
            if self._partial.exists():
                self._file = open(self._partial, "r+b", opener=_opened)
            else:
                self._file = open(self._partial, "x+b", opener=_opened)
            if not try_lock(self._file):
                self._file.close()
                raise FormatError(
                    f"another process is writing {str(self._target)!r}; wait for it, or write to "
                    "another name"
                )
            try:
                self._sums = self._complete()
                self._begin()
            except BaseException:
                self._file.close()
                raise
        except OSError as error:
            raise self._failed(error) from None
        return self

    def write(self) -> Iterator[int]:
        """Writes the tensors that are not complete, and gives the number of each when it is, the
        ones of an earlier run first."""
        yield from range(self.n_done)
        layout = self._layout
        for i in range(self.n_done, len(layout.rows)):
            data = layout.rows[i].bytes()
            try:
                self._append(layout.starts[i], data)
            except OSError as error:
                raise self._failed(error) from None
            del data
            yield i

    def finish(self) -> None:
        """Gives the file its name."""
        try:
            self._file.truncate(self._layout.size)
            self._file.flush()
            os.fsync(self._file.fileno())
            self._keep_mode()
            if os.name != "posix":
                self._file.close()
            os.replace(self._partial, self._target)
            self._file.close()
            self._log.close()
            self._journal.unlink(missing_ok=True)
        except OSError as error:
            raise self._failed(error) from None

    def __exit__(self, kind: type[BaseException] | None, error: object, _trace: object) -> None:
        if not self._file.closed:
            self._file.close()
            self._log.close()
        if kind is not None and not self._is_worth_keeping(kind, error):
            self._partial.unlink(missing_ok=True)
            self._journal.unlink(missing_ok=True)

    def _is_worth_keeping(self, kind: type[BaseException], error: object) -> bool:
        stopped = not issubclass(kind, Exception) or isinstance(error, _SystemRefusal)
        return stopped and self.n_done > 0

    def _complete(self) -> list[int]:
        """The checksums of the tensors that an earlier run of the same work has completed."""
        try:
            lines = self._journal.read_bytes().split(b"\n")
            if json.loads(lines[0])["stamp"] != self._stamp:
                return []
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return []
        sums: list[int] = []
        for line in lines[1:]:
            try:
                expected = int(json.loads(line)["crc32"])
            except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
                break
            if len(sums) == len(self._layout.rows) or self._sum_of(len(sums)) != expected:
                break
            sums.append(expected)
        return sums

    def _sum_of(self, index: int) -> int:
        """The checksum of a tensor in the partial file; -1 if it is cut short."""
        start = self._layout.starts[index]
        end = start + self._layout.rows[index].nbytes
        self._file.seek(start)
        crc, left = 0, end - start
        while left:
            data = self._file.read(min(left, _READ))
            if not data:
                return -1
            crc, left = zlib.crc32(data, crc), left - len(data)
        return crc

    def _begin(self) -> None:
        self._file.seek(0)
        self._file.write(self._layout.head)
        for index in range(len(self._sums)):  # the bytes between tensors have no checksum
            self._file.write(bytes(self._layout.starts[index] - self._file.tell()))
            self._file.seek(self._layout.starts[index] + self._layout.rows[index].nbytes)
        self._file.truncate()
        self._log = open(self._journal, "wb", opener=_opened)
        self._log.write(json.dumps({"stamp": self._stamp}).encode() + b"\n")
        for crc in self._sums:
            self._log.write(json.dumps({"crc32": crc}).encode() + b"\n")
        self._log.flush()

    def _append(self, start: int, data: memoryview) -> None:
        self._file.truncate(start)
        self._file.seek(start)
        self._file.write(data)
        self._file.flush()
        self._unsynced += data.nbytes
        if self._unsynced >= _SYNC_BYTES:
            os.fsync(self._file.fileno())
            self._unsynced = 0
        crc = zlib.crc32(data)
        self._sums.append(crc)
        self._log.write(json.dumps({"crc32": crc}).encode() + b"\n")
        self._log.flush()

    def _keep_mode(self) -> None:
        """The mode of the file that is replaced, if there is one."""
        if os.name == "posix" and self._target.exists():
            with suppress(OSError):
                os.chmod(self._partial, self._target.stat().st_mode & 0o777)

    def _failed(self, error: OSError) -> FormatError:
        done = (
            f"; {self.n_done} of {len(self._layout.rows)} tensors are kept, and the same command "
            "goes on with them"
            if self._sums
            else ""
        )
        return _SystemRefusal(
            f"cannot write {str(self._target)!r}: {error.strerror or error}{done}"
        )


def _opened(path: str, flags: int) -> int:
    """An opener (see `open`) that follows no symbolic link."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def _remove_what_is_of_others(path: Path) -> None:
    """Removes a name that leads to another file: a link that somebody has put there."""
    try:
        about = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISREG(about.st_mode) or about.st_nlink > 1:
        path.unlink()


class _SystemRefusal(FormatError):
    """The file system refused; what was written stays."""
