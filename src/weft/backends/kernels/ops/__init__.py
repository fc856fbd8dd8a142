"""The ops that devices take, and the kernels that run them; one family a module."""

from __future__ import annotations

from weft.backends.kernels.ops import (
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
    sort,
    tensor,
    window,
)
from weft.backends.kernels.ops.table import NO_OWN, Family, OwnKernels, find_family

__all__ = ["NO_OWN", "Family", "OwnKernels", "find_family"]

_FAMILIES = (
    attention, back, conv, copy, elementwise, hyper, index, matmul, norm, recurrent, reduce,
    resample, sort, tensor, window,
)  # fmt: skip
"""Modules that register ops when they are imported."""
