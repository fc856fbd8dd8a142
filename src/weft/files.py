"""Files are written beside their place and then moved there.

A reader, a crash or a full disk meets the old file or the new one, never a part of it. Links are
followed, modes and owners are kept, and what is no regular file is refused.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from weft.errors import FormatError

__all__ = ["read_text", "replacing", "write_bytes", "write_text"]

MOST_BYTES = 64 << 20
"""The longest text that is read."""

if sys.platform == "win32":

    def _lock(fd: int, *, wait: bool) -> None:
        """Does nothing: a file that is open cannot be removed there, which serves as well."""
else:
    from fcntl import LOCK_EX, LOCK_NB, flock

    def _lock(fd: int, *, wait: bool) -> None:
        flock(fd, LOCK_EX if wait else LOCK_EX | LOCK_NB)


_NAME_KEPT = 200
"""Characters of a long name that its partial file keeps; file systems allow 255 bytes."""


def read_text(path: str | os.PathLike[str]) -> str:
    """What a UTF-8 file or a pipe holds.

    Raises OSError where it cannot be read, ValueError where it is no UTF-8, FormatError beyond
    `MOST_BYTES`, before more is read."""
    with open(path, "rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise FormatError(f"{os.fspath(path)}: more than {MOST_BYTES >> 20} MiB of text")
    return data.decode("utf-8-sig")


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A binary file to write; it becomes the file at `path` when the block ends without an error.

    A symbolic link stays and its target is replaced. An existing file keeps its mode and, where the
    system allows it, its owner. What killed writers of this file have left beside it is removed.

    Raises FormatError when the place is no regular file, is not writable, or the system refuses."""
    target = Path(os.path.realpath(path))
    try:
        before = _regular(target)
        _sweep(target)
        partial, fd = _begin(target, before)
        try:
            with os.fdopen(fd, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
                if os.name == "posix":  # while it is locked, so that nobody takes it for a leftover
                    os.replace(partial, target)
            if os.name != "posix":
                os.replace(partial, target)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise FormatError(f"cannot write {str(path)!r}: {error.strerror or error}") from None


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Writes a whole file; see `replacing`."""
    with replacing(path) as file:
        file.write(data)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes a whole file as UTF-8; see `replacing`. A lone surrogate becomes its escape, as JSON
    has it."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def _regular(target: Path) -> os.stat_result | None:
    """What is there now; None for nothing."""
    try:
        before = target.stat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(before.st_mode):
        kind = "a folder" if stat.S_ISDIR(before.st_mode) else "a device, pipe or socket"
        raise FormatError(f"cannot write {str(target)!r}: it is {kind}; give the name of a file")
    if not os.access(target, os.W_OK):
        raise FormatError(
            f"cannot write {str(target)!r}: it is write-protected; remove it first or choose "
            "another name"
        )
    return before


def _begin(target: Path, before: os.stat_result | None) -> tuple[Path, int]:
    """A new partial file, locked until it is closed: its name and descriptor."""
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0)
    while True:
        partial = target.with_name(f"{_prefix(target)}{os.urandom(4).hex()}.part")
        mode = 0o666 if before is None else stat.S_IMODE(before.st_mode) & 0o700
        fd = os.open(partial, flags, mode)
        try:
            with suppress(OSError):  # a file system without locks
                _lock(fd, wait=True)
            if not partial.exists():  # swept between the two calls
                os.close(fd)
                continue
            if before is not None and os.name == "posix":
                with suppress(OSError):  # only root may give files away
                    os.fchown(fd, before.st_uid, before.st_gid)
                os.fchmod(fd, stat.S_IMODE(before.st_mode))
        except BaseException:
            os.close(fd)
            partial.unlink(missing_ok=True)
            raise
        return partial, fd


def _prefix(target: Path) -> str:
    return f".{target.name[:_NAME_KEPT]}."


def _sweep(target: Path) -> None:
    """Removes partial files whose writer is gone: nobody holds their lock."""
    name = re.compile(re.escape(_prefix(target)) + r"[0-9a-f]{8}\.part")
    for entry in os.listdir(target.parent):
        if name.fullmatch(entry):
            with suppress(OSError):
                _remove_unlocked(target.with_name(entry))


def _remove_unlocked(partial: Path) -> None:
    fd = os.open(partial, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    try:
        _lock(fd, wait=False)
        if os.name == "posix":
            partial.unlink()
    finally:
        os.close(fd)
    if os.name != "posix":
        partial.unlink()
