"""How many bytes this process may still take, and the check that a plan fits into them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from weft.backends.memory import BufferType, HostMemory, Memory
from weft.errors import DeviceError, OutOfMemoryError, WeftError

__all__ = ["PlannedMemory", "allocate", "available_bytes", "human", "require_memory"]

_CGROUP_FILES = (
    # limit, current use, statistics with the reclaimable page cache
    ("memory.max", "memory.current", "memory.stat"),  # v2
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),  # v1
)


@dataclass(frozen=True, slots=True)
class PlannedMemory:
    """Stands for memory that is not allocated yet, so that plans can be made and looked at."""

    nbytes: int


def allocate(buffer_type: BufferType | None, nbytes: int, name: str, argument: str) -> Memory:
    """A block for the leaf `name`, of plain host memory where no type is given. Raises
    OutOfMemoryError that names the argument to make smaller, DeviceError for what else fails."""
    try:
        return HostMemory.zeros(nbytes) if buffer_type is None else buffer_type.allocate(nbytes)
    except (MemoryError, ValueError):  # ValueError: more than an address space holds
        raise OutOfMemoryError(
            f"no room for {nbytes} bytes of {name}; make {argument} smaller"
        ) from None
    except WeftError:
        raise
    except Exception as error:
        raise DeviceError(f"{nbytes} bytes of {name} could not be allocated: {error!r}") from error


def available_bytes(root: Path = Path("/")) -> int | None:
    """Bytes that can be allocated without swapping: what the kernel says is available, less where
    the process is in a control group with a limit. None where the system does not say."""
    limits = [n for n in (_meminfo(root / "proc/meminfo"), _cgroup(root)) if n is not None]
    return min(limits, default=None)


def require_memory(
    parts: Mapping[str, int], advice: str, *, memory: str = "", limit: int | None = None
) -> None:
    """Raises OutOfMemoryError with needed and available bytes when the sum of `parts` (name to
    bytes) does not fit `limit`, or what the process may still take."""
    needed, available = sum(parts.values()), available_bytes() if limit is None else limit
    if available is None or needed <= available:
        return
    detail = ", ".join(f"{name} {human(n)}" for name, n in parts.items())
    raise OutOfMemoryError(
        f"not enough {memory}{' ' if memory else ''}memory: {needed} bytes ({human(needed)}) are "
        f"needed ({detail}), and {available} bytes ({human(available)}) are available; {advice}"
    )


def human(nbytes: int) -> str:
    """`1.5 GiB`."""
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def _meminfo(path: Path) -> int | None:
    for line in _read(path).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _cgroup(root: Path) -> int | None:
    """What is left of the control group's limit; its page cache can be reclaimed and is free."""
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
