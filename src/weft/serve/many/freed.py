"""Gives the memory of an unloaded model back to the system."""

from __future__ import annotations

import ctypes
import gc

__all__ = ["give_back_memory"]


def give_back_memory() -> None:
    """Frees cycles, of which contexts have some, and lets glibc return what it keeps for the next
    allocation: tens of MiB after a model of a few. Other C libraries return it by themselves."""
    gc.collect()
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return
    trim(0)
