"""Memory that is allocated or planned, and the check that a plan fits into what is free."""

from __future__ import annotations

from collections.abc import Mapping

from weft.backends.memory import BufferType, HostMemory, Memory
from weft.errors import DeviceError, OutOfMemoryError, WeftError
from weft.free_memory import available_bytes as available_bytes
from weft.records import dataclass
from weft.tables import size_text


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
