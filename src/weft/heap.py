"""Memory that the C library keeps after it was freed."""

from __future__ import annotations

import ctypes
from functools import cache

__all__ = ["trim_heap"]


@cache
def _libc() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(None)
    except (OSError, TypeError):
        return None


def trim_heap() -> None:
    """Lets glibc return freed memory to the system: it keeps hundreds of MiB after a model, and
    gigabytes after a few large images. Other C libraries return memory by themselves."""
    trim = getattr(_libc(), "malloc_trim", None)
    if trim is not None:
        trim(0)
