"""Which ops the device takes, and the kernels that run them; one family a module."""

from __future__ import annotations

from weft.backends.opencl.ops import attention, copy, elementwise, matmul, norm, reduce
from weft.backends.opencl.ops.table import Family, find_family

__all__ = ["Family", "find_family"]

_FAMILIES = (attention, copy, elementwise, matmul, norm, reduce)
"""Imported for what they register."""
