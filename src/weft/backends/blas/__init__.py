"""The `blas` device: big float matrix products through OpenBLAS, in the memory of `cpu`.

It stands before `cpu` in a device list. Both use host memory, so nothing is copied between them;
the planner gives `blas` the products that are big enough for it, and `cpu` the rest.
"""

from __future__ import annotations

from typing import Any

from weft.backends.blas.backend import BlasBackend
from weft.backends.blas.library import OPENBLAS
from weft.backends.registry import BackendInfo
from weft.errors import DeviceError
from weft.options import require_options

__all__ = ["BlasBackend", "describe", "make"]

_OPTIONS = ("decoded_bytes", "min_batch", "n_threads")


def describe() -> list[BackendInfo]:
    """The one device, with OpenBLAS's description of itself."""
    return [BackendInfo("blas", True, "", OPENBLAS.config)]


def make(suffix: str | None = None, **options: Any) -> BlasBackend:
    """Makes the `blas` device; options belong to `BlasBackend`."""
    if suffix is not None:
        raise DeviceError(f"there is one blas device; write 'blas', not 'blas:{suffix}'")
    require_options("blas", options, _OPTIONS)
    return BlasBackend(**options)
