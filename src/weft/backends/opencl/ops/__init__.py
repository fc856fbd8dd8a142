"""The ops that the device takes, and the kernels that run them; one family a module."""

from __future__ import annotations

from weft.backends.opencl.ops import (
    attention,
    back,
    conv,
    copy,
    elementwise,
    hyper,
    index,
    matmul,
    norm,
    recurrent,
    reduce,
    resample,
    tensor,
    window,
)
from weft.backends.opencl.ops.table import Family, find_family

__all__ = ["Family", "find_family"]

_FAMILIES = (
    attention, back, conv, copy, elementwise, hyper, index, matmul, norm, recurrent, reduce,
    resample, tensor, window,
)  # fmt: skip
"""Modules that register ops when they are imported."""
