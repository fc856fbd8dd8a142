"""wgpu, imported on first use; without it an error names the extra that installs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from weft.errors import DeviceError, OutOfMemoryError


@cache
def library() -> Any:
    """The module `wgpu`; raises DeviceError with the extra when it is missing or broken."""
    try:
        import wgpu
    except ModuleNotFoundError as error:
        raise DeviceError(
            "backend 'webgpu' needs the Python package 'wgpu'; "
            "install it with `pip install 'weft[gpu]'`"
        ) from error
    except (ImportError, OSError, RuntimeError) as error:
        raise DeviceError(f"wgpu cannot be loaded ({error})") from error
    return wgpu


@contextmanager
def guarded(what: str) -> Iterator[None]:
    """Turns errors of the library into a DeviceError that begins with `what`; lack of memory
    becomes an OutOfMemoryError."""
    errors = (library().GPUError, RuntimeError)
    try:
        yield
    except errors as error:
        why = " ".join(str(error).split())[:500]
        kind = OutOfMemoryError if "memory" in why.lower() else DeviceError
        raise kind(f"{what}: {why}") from error
