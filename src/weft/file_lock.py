"""File locks that the system releases when the process ends, however it ends.

They are `flock` locks on POSIX systems and byte locks on Windows.
"""

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

_BUSY = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)
_PAST_THE_TEXT = 1 << 30
"""Offset of the byte that is locked on Windows. Locked bytes cannot be read there, so it lies past
the end of every file."""


def try_lock(file: IO[Any], *, shared: bool = False) -> bool:
    """Locks an open file until it is closed or the process ends; False if another process has it.

    With `shared`, several processes may hold the lock at once (not on Windows). On a file system
    without locks every attempt succeeds."""
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
    """True if some process, this one included, has the file locked."""
    try:
        with path.open("rb") as file:
            return not try_lock(file, shared=True)
    except OSError:
        return False


@contextmanager
def locked(path: Path, seconds: float) -> Iterator[None]:
    """Holds the lock of a file during a `with` block. The file is created if it does not exist.

    Raises TimeoutError if another process still has the lock after `seconds`, and OSError if the
    file cannot be opened."""
    path.parent.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + seconds
    with path.open("ab") as file:
        while not try_lock(file):
            if time.monotonic() > until:
                raise TimeoutError(errno.ETIMEDOUT, f"another process keeps {path} locked")
            time.sleep(0.01)
        yield
