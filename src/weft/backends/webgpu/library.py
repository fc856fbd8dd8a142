"""wgpu, imported on first use; without it an error names the extra that installs it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from weft.errors import DeviceError, OutOfMemoryError
from weft.extras import how_to_install


@cache
def library() -> Any:
    """The module `wgpu`; raises DeviceError with the extra when it, or the parser of kernels, is
    missing or broken.

    Where there is no desktop, Mesa's layer that puts the desktop's GPU first is left out, since it
    prints an error for each device."""
    if not os.environ.get("XDG_RUNTIME_DIR"):
        os.environ.setdefault("NODEVICE_SELECT", "1")
    try:
        import pycparser  # noqa: F401 - translates kernels, of which the cache may have none
        import wgpu
    except ModuleNotFoundError as error:
        raise DeviceError(
            f"backend 'webgpu' needs the Python package {error.name!r}; {how_to_install('gpu')}"
        ) from error
    except (ImportError, OSError, RuntimeError) as error:
        raise DeviceError(f"wgpu cannot be loaded ({error})") from error
    _restrict()
    return wgpu


def _restrict() -> None:
    """Lets wgpu look for devices of Metal, Vulkan and Direct3D 12 only: asking OpenGL takes a
    second, and its devices are not used."""
    try:
        from wgpu.backends.wgpu_native.extras import set_instance_extras

        set_instance_extras(backends=("Vulkan", "Metal", "DX12"))
    except (ImportError, AttributeError, KeyError, TypeError):
        pass  # a version of wgpu without this looks for all
    except RuntimeError:
        pass  # the program has used wgpu before


def said(error: Exception) -> str:
    """The text of an error of the library, in a line."""
    why = " ".join(str(error).split())[:500]
    if "device is lost" in why:
        return (
            "the device is lost: its driver has reset or removed it; with --fallback cpu texts go "
            "on without it"
        )
    return why


@contextmanager
def guarded(what: str) -> Iterator[None]:
    """Turns errors of the library into a DeviceError that begins with `what`; lack of memory
    becomes an OutOfMemoryError."""
    errors = (library().GPUError, RuntimeError)
    try:
        yield
    except errors as error:
        why = said(error)
        full = (MemoryError, library().GPUOutOfMemoryError)
        if isinstance(error, full) or "not enough memory" in why.lower():
            less = "place fewer layers there, or use a smaller context"
            raise OutOfMemoryError(f"{what}: {why}; {less}") from error
        raise DeviceError(f"{what}: {why}") from error


def period(queue: Any) -> float:
    """The nanoseconds of a tick of timestamps; 0 where the library does not tell."""
    try:
        from wgpu.backends.wgpu_native import lib

        return float(lib.wgpuQueueGetTimestampPeriod(queue._internal))
    except (ImportError, AttributeError, TypeError):
        return 0.0
