"""The memory that this process may still take."""

from __future__ import annotations

from pathlib import Path

from weft.control_group import group_folders, read_text

_CGROUP_FILES = (
    # limit and current use
    ("memory.max", "memory.current"),  # v2
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),  # v1
)


def available_bytes(root: Path = Path("/")) -> int | None:
    """Bytes that can be allocated without swapping, or None if the system does not say.

    This is the available memory of the kernel's statistics, or what remains of the limit of a
    control group of this process if that is less."""
    limits = [_meminfo(root / "proc/meminfo"), *map(_cgroup, group_folders("memory", root))]
    return min((n for n in limits if n is not None), default=None)


def _meminfo(path: Path) -> int | None:
    for line in read_text(path).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _cgroup(folder: Path) -> int | None:
    """The bytes that remain of a control group's limit. Its page cache can be reclaimed, so it
    counts as free."""
    for limit_file, usage_file in _CGROUP_FILES:
        limit, usage = (
            read_text(folder / limit_file).strip(),
            read_text(folder / usage_file).strip(),
        )
        if limit.isdigit() and usage.isdigit():
            cache = 0
            for line in read_text(folder / "memory.stat").splitlines():
                name, _, value = line.partition(" ")
                if name in ("inactive_file", "total_inactive_file"):
                    cache = int(value)
            return max(int(limit) - int(usage) + cache, 0)
    return None
