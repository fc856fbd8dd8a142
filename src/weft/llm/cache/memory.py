"""The memory that this process may still take, and the check that a plan fits into it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from weft.backends.memory import BufferType, HostMemory, Memory
from weft.errors import DeviceError, OutOfMemoryError, WeftError
from weft.records import dataclass
from weft.tables import size_text

_CGROUP_FILES = (
    # limit, current use, statistics with the reclaimable page cache
    ("memory.max", "memory.current", "memory.stat"),  # v2
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),  # v1
)


@dataclass(frozen=True, slots=True)
class PlannedMemory:
    """Stands for memory that is not allocated yet, so that plans can be made without it."""

    nbytes: int


def allocate(buffer_type: BufferType | None, nbytes: int, name: str, argument: str) -> Memory:
    """Allocates a block for the leaf `name`, in host memory if no type is given.

    Raises OutOfMemoryError, which names the argument to make smaller, and DeviceError for any other
    failure."""
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
    """Bytes that can be allocated without swapping, or None if the system does not say.

    This is the available memory of the kernel's statistics, or what remains of the limit of the
    control group if that is less."""
    limits = [n for n in (_meminfo(root / "proc/meminfo"), _cgroup(root)) if n is not None]
    return min(limits, default=None)


def require_memory(
    parts: Mapping[str, int], advice: str, *, memory: str = "", limit: int | None = None
) -> None:
    """Raises OutOfMemoryError, with needed and available bytes, if the sum of `parts` (bytes by
    name) is more than `limit` bytes (None: than the process may still take).

    The message calls the memory `memory` and ends with `advice`."""
    needed, available = sum(parts.values()), available_bytes() if limit is None else limit
    if available is None or needed <= available:
        return
    detail = ", ".join(f"{name} {size_text(n)}" for name, n in parts.items())
    raise OutOfMemoryError(
        f"not enough {memory}{' ' if memory else ''}memory: {needed} bytes ({size_text(needed)}) "
        f"are needed ({detail}), and {available} bytes ({size_text(available)}) are available; "
        f"{advice}"
    )


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
