"""Writes files as a whole: to a temporary file beside the target, which is then renamed.

Readers see the old file or the new one, never a part, even after a crash or on a full disk. Links
are followed, modes and owners are kept, and anything but a regular file is refused.
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from weft.errors import FormatError

MOST_BYTES = 64 << 20
"""The longest text that is read."""

if sys.platform == "win32":

    def _lock(fd: int, *, wait: bool) -> None:
        """Does nothing: on Windows an open file cannot be removed, so it needs no lock."""
else:
    from fcntl import LOCK_EX, LOCK_NB, flock

    def _lock(fd: int, *, wait: bool) -> None:
        flock(fd, LOCK_EX if wait else LOCK_EX | LOCK_NB)


_NAME_KEPT = 200
"""Characters of a long name that its partial file keeps; file systems allow 255 bytes."""


def read_text(path: str | os.PathLike[str]) -> str:
    """Reads a UTF-8 text from a file or a pipe.

    Raises OSError if it cannot be read, ValueError if it is not UTF-8, and FormatError if it is
    longer than `MOST_BYTES`; no more than that is read."""
    with open(path, "rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise FormatError(f"{os.fspath(path)}: more than {MOST_BYTES >> 20} MiB of text")
    return data.decode("utf-8-sig")


def read_json(path: str | os.PathLike[str], what: str) -> Any:
    """Reads a JSON file; `what` names its kind in errors.

    Raises FormatError if it cannot be read, is not JSON, or is nested too deeply."""
    try:
        return json.loads(read_text(path))
    except OSError as error:
        raise FormatError(f"{what} {path}: {error.strerror or error}") from None
    except RecursionError:
        raise FormatError(f"{what} {path}: lists are nested too deeply") from None
    except ValueError as error:  # JSON and UTF-8
        raise FormatError(f"{what} {path}: not JSON ({error})") from None


def private(path: str, flags: int) -> int:
    """An opener (see `open`) of files for their owner alone. It follows no symbolic link."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o600)


@contextmanager
def replacing(path: str | os.PathLike[str], *, for_owner: bool = False) -> Iterator[BinaryIO]:
    """Opens a binary file that replaces the one at `path` if the block ends without an error.

    A symbolic link stays and its target is replaced. An existing file keeps its mode and, where the
    system allows it, its owner; with `for_owner` the file is for its owner alone. Partial files
    that killed writers left beside it are removed.

    Raises FormatError if `path` is not a regular file or cannot be written."""
    target = Path(os.path.realpath(path))
    try:
        before = _regular(target)
        _sweep(target)
        partial, fd = _begin(target, before)
        try:
            with os.fdopen(fd, "wb") as file:
                if for_owner and os.name == "posix":
                    os.fchmod(fd, 0o600)
                yield file
                file.flush()
                os.fsync(file.fileno())
                if os.name == "posix":  # still locked, so that nobody takes it for a leftover
                    os.replace(partial, target)
            if os.name != "posix":
                os.replace(partial, target)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise FormatError(f"cannot write {str(path)!r}: {error.strerror or error}") from None


def require_writable(path: str | os.PathLike[str]) -> None:
    """Raises FormatError if there is something at `path` that `replacing` would refuse."""
    try:
        _regular(Path(os.path.realpath(path)))
    except OSError as error:
        raise FormatError(f"cannot write {str(path)!r}: {error.strerror or error}") from None


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Writes a whole file; see `replacing`."""
    with replacing(path) as file:
        file.write(data)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes a whole file as UTF-8; see `replacing`. A lone surrogate is written as its escape, as
    in JSON."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def _regular(target: Path) -> os.stat_result | None:
    """The state of the existing file, or None if there is none. Raises FormatError if the path is
    not a regular file or is write-protected."""
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
    """Creates a partial file, locked until it is closed; gives its name and descriptor."""
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0)
    while True:
        partial = target.with_name(f"{_prefix(target)}{os.urandom(4).hex()}.part")
        mode = 0o666 if before is None else stat.S_IMODE(before.st_mode) & 0o700
        fd = os.open(partial, flags, mode)
        try:
            with suppress(OSError):  # a file system without locks
                _lock(fd, wait=True)
            if not partial.exists():  # another process swept it before it was locked
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
    """Removes partial files whose writer is gone, which nobody has locked."""
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
