"""Gives the memory of an unloaded model back to the system."""

from __future__ import annotations

import ctypes
import functools
import gc
import sys

__all__ = ["give_back_memory"]


def give_back_memory() -> None:
    """Frees the endpoints of applications that are gone and cycles, of which contexts have some,
    and lets glibc return what it keeps for the next allocation: tens of MiB after a model of a few.
    Other C libraries return it by themselves."""
    for name, module in list(sys.modules.items()):
        if name.startswith("fastapi."):  # which keeps the handlers of thousands of endpoints
            for value in list(vars(module).values()):
                if isinstance(value, functools._lru_cache_wrapper):
                    value.cache_clear()
    gc.collect()
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return
    trim(0)
