"""The memory that this process may still take."""

from __future__ import annotations

from pathlib import Path

_CGROUP_FILES = (
    # limit, current use, statistics with the reclaimable page cache
    ("memory.max", "memory.current", "memory.stat"),  # v2
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),  # v1
)


def available_bytes(root: Path = Path("/")) -> int | None:
    """Bytes that can be allocated without swapping, or None if the system does not say.

    This is the available memory of the kernel's statistics, or what remains of the limit of the
    control group if that is less."""
    limits = [n for n in (_meminfo(root / "proc/meminfo"), _cgroup(root)) if n is not None]
    return min(limits, default=None)


def _meminfo(path: Path) -> int | None:
    for line in _read(path).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _cgroup(root: Path) -> int | None:
    """The bytes that remain of the control group's limit. Its page cache can be reclaimed, so it
    counts as free."""
    base = root / "sys/fs/cgroup"
    for limit_file, usage_file, stat_file in _CGROUP_FILES:
        limit, usage = _read(base / limit_file).strip(), _read(base / usage_file).strip()
        if limit.isdigit() and usage.isdigit():
            cache = 0
            for line in _read(base / stat_file).splitlines():
                name, _, value = line.partition(" ")
                if name in ("inactive_file", "total_inactive_file"):
                    cache = int(value)
            return max(int(limit) - int(usage) + cache, 0)
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
