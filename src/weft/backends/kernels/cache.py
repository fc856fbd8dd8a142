"""Files of compiled kernels that are kept between runs, for their user alone."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from weft.errors import FormatError
from weft.files import replacing
from weft.flags import FLAGS


def cache_folder(kind: str) -> Path:
    """The folder in which devices of a kind keep files between runs."""
    return Path(FLAGS.cache) / kind


def keep(path: Path, data: bytes) -> None:
    """Replaces a file of the cache as a whole; does nothing where no folder can be written."""
    with suppress(OSError, FormatError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with replacing(path) as file:
            if hasattr(os, "fchmod"):
                os.fchmod(file.fileno(), 0o600)  # whatever the umask, so that `kept` accepts it
            file.write(data)


def kept(path: Path) -> bytes:
    """A file of the cache; empty unless only this user can have written it.

    Binaries run in this process: a file that another user wrote would be that user's code."""
    flags = os.O_RDONLY  # a pipe does not stop it, a link is not followed
    for name in ("O_NONBLOCK", "O_NOFOLLOW", "O_BINARY"):
        flags |= getattr(os, name, 0)
    try:
        with open(os.open(path, flags), "rb") as file:
            return file.read() if _only_ours(os.fstat(file.fileno())) else b""
    except OSError:
        return b""


def _only_ours(about: os.stat_result) -> bool:
    if not hasattr(os, "getuid"):
        return True
    others = stat.S_IWGRP | stat.S_IWOTH
    return (
        stat.S_ISREG(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & others
    )
