"""pyopencl, imported on first use; without it an error names the extra that installs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from weft.errors import DeviceError, OutOfMemoryError
from weft.extras import how_to_install

SetBytes = Callable[[int, bytes], None]
"""Sets the argument of a number."""

_NO_MEMORY = ("MEM_OBJECT_ALLOCATION_FAILURE", "OUT_OF_HOST_MEMORY", "INVALID_BUFFER_SIZE")


def library() -> Any:
    """The module `pyopencl`; raises DeviceError with the extra when it is missing or broken."""
    try:
        import pyopencl
    except ModuleNotFoundError as error:
        raise DeviceError(
            f"backend 'opencl' needs the Python package 'pyopencl'; {how_to_install('opencl')}"
        ) from error
    except ImportError as error:
        raise DeviceError(
            f"pyopencl cannot be loaded ({error}); install the system's OpenCL loader "
            "(Debian: ocl-icd-libopencl1)"
        ) from error
    return pyopencl


def bytes_setter(kernel: Any) -> SetBytes:
    """A function that sets an argument of plain bytes.

    `set_arg` tries every other kind of argument first and takes 20 times as long, so pyopencl's own
    shortcut is used where it exists."""
    setter: SetBytes = getattr(kernel, "_set_arg_buf", kernel.set_arg)
    return setter


@contextmanager
def guarded(what: str) -> Iterator[None]:
    """Turns errors of the driver into a DeviceError that begins with `what`; lack of memory becomes
    an OutOfMemoryError."""
    try:
        yield
    except library().Error as error:
        why = str(error)
        kind = OutOfMemoryError if any(code in why for code in _NO_MEMORY) else DeviceError
        raise kind(f"{what}: {why}") from error
