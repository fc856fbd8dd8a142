"""Locks on files that end with their process, whatever ends it: `flock`, or its like on Windows."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
    import msvcrt

__all__ = ["is_locked", "locked", "try_lock"]

_BUSY = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)
_PAST_THE_TEXT = 1 << 30
"""Windows forbids reading the bytes that are locked, so a byte that no file has is."""


def try_lock(file: IO[Any], *, shared: bool = False) -> bool:
    """Locks an open file until it is closed or the process ends; False: another has it locked.

    `shared`: others may have it at the same time (not on Windows). A file system without locks is
    as if nobody held one."""
    try:
        if fcntl is not None:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        else:
            at = file.tell()
            file.seek(_PAST_THE_TEXT)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            file.seek(at)
    except OSError as error:
        return error.errno not in _BUSY
    return True


def is_locked(path: Path) -> bool:
    """Whether some process, this one included, has a file locked."""
    try:
        with path.open("rb") as file:
            return not try_lock(file, shared=True)
    except OSError:
        return False


@contextmanager
def locked(path: Path, seconds: float) -> Iterator[None]:
    """Holds the lock of a file, made where it is missing, for a block.

    Raises TimeoutError where another process still has it after `seconds`, and OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + seconds
    with path.open("ab") as file:
        while not try_lock(file):
            if time.monotonic() > until:
                raise TimeoutError(errno.ETIMEDOUT, f"another process keeps {path} locked")
            time.sleep(0.01)
        yield
