"""The limits of the control groups that this process is in, as containers and systemd set them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def usable_processors() -> int:
    """The number of processors that this process may use, at most as many as its groups grant."""
    try:
        n = len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        n = os.cpu_count() or 1
    return min(n, processor_limit() or n)


def processor_limit(root: Path = Path("/")) -> int | None:
    """The time that the groups grant, as a number of processors, rounded up (None: no limit).

    More threads than these would wait for each other."""
    limits = [n for folder in group_folders("cpu", root) if (n := _quota(folder)) is not None]
    return min(limits, default=None)


def memory_limit(root: Path = Path("/")) -> int | None:
    """The bytes that the groups grant, the page cache of their files included (None: no limit)."""
    files = (folder / name for folder in group_folders("memory", root) for name in _MEMORY_FILES)
    limits = [int(text) for file in files if (text := read_text(file).strip()).isdigit()]
    return min((n for n in limits if n < _NO_LIMIT), default=None)


_MEMORY_FILES = ("memory.max", "memory.limit_in_bytes")
"""The file of a limit, in version 2 and in version 1."""
_NO_LIMIT = 1 << 60
"""Version 1 has a number of bytes above this where there is no limit."""


def group_folders(controller: str, root: Path = Path("/")) -> Iterator[Path]:
    """The folders in which the limits of a controller ("cpu", "memory") may lie: of the process's
    own group and of those around it, in both versions of control groups.

    A container may see its own group as the topmost one, whatever /proc calls it; a folder that
    is not there has no limits."""
    base = root / "sys/fs/cgroup"
    for row in read_text(root / "proc/self/cgroup").splitlines():
        _, names, group = row.split(":", 2)
        if names and controller not in names.split(","):
            continue
        top = base / names if names else base
        inner = Path(group.lstrip("/"))
        yield from (top / part for part in (inner, *inner.parents))
    yield from (base, base / controller)


def read_text(path: Path) -> str:
    """The text of a file, or an empty one if it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""


def _quota(folder: Path) -> int | None:
    words = read_text(folder / "cpu.max").split()  # version 2: quota and period in microseconds
    if not words:
        words = [read_text(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    if len(words) != 2 or not all(word.isdigit() and int(word) for word in words):
        return None
    quota, period = map(int, words)
    return -(-quota // period)
