"""The `reference` device: NumPy for every op, slow and obvious, the definition of each op.

`kernel` is the table of ops, `view` reads and writes tensors as arrays; the other modules hold the
kernels, one family each. Semantics are ggml's (its ops.cpp and ops.h), computed in float64 and
rounded once to the result's type.
"""

from __future__ import annotations

from weft.backends.reference import (
    attention,
    conv,
    copy,
    elementwise,
    hyper,
    image,
    index,
    matmul,
    norm,
    recurrent,
    reduce,
    rope,
    spatial,
    tensor,
)
from weft.backends.reference.backend import ReferenceBackend
from weft.backends.reference.memory import REFERENCE
from weft.backends.registry import BackendInfo
from weft.errors import DeviceError
from weft.options import require_options

__all__ = ["REFERENCE", "ReferenceBackend", "describe", "make"]

_FAMILIES = (
    attention, conv, copy, elementwise, hyper, image, index, matmul, norm, recurrent, reduce, rope,
    spatial, tensor,
)  # fmt: skip
"""Modules that register kernels when they are imported."""


def describe() -> list[BackendInfo]:
    """The one device of this module."""
    return [BackendInfo("reference", True, "", "NumPy, every op, its own memory (for tests)")]


def make(suffix: str | None, **options: object) -> ReferenceBackend:
    """The backend; raises DeviceError for a device number or an option, as it takes neither."""
    if suffix is not None:
        raise DeviceError(f"there is one reference device; write `reference`, not :{suffix}")
    require_options("reference", options, ())
    return ReferenceBackend()
