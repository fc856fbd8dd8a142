"""Element types of PyTorch and the types in which weft stores their values.

Values of float16 and bfloat16 are *stored* as such in inputs, outputs, constants and buffers;
between ops they are float32, unrounded. Booleans are i8, 0 or 1. Values of uint8 are i16: they can
be moved, compared and converted (`registry.BYTES`), but not computed with, because i16 does not
wrap at 256.
"""

from __future__ import annotations

import torch

from weft.dtype import DTYPES, DType
from weft.frontends.fx.support import InheritedReason

STORED: dict[torch.dtype, DType] = {
    torch.float32: DTYPES["f32"], torch.float16: DTYPES["f16"], torch.bfloat16: DTYPES["bf16"],
    torch.int64: DTYPES["i64"], torch.int32: DTYPES["i32"], torch.int16: DTYPES["i16"],
    torch.int8: DTYPES["i8"], torch.bool: DTYPES["i8"], torch.uint8: DTYPES["i16"],
}  # fmt: skip
"""The type in memory of a value of a PyTorch type, at the border of a graph."""

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
INTS = (torch.int64, torch.int32, torch.int16, torch.int8)


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a type without its module, such as `float32` for `torch.float32`."""
    return str(dtype).removeprefix("torch.")


def refused_type(dtype: torch.dtype) -> InheritedReason:
    """The reason why a type cannot be stored, with a remedy."""
    what = f"type {dtype_name(dtype)} is not supported"
    if dtype is torch.float64:
        what += "; call .float() on the module and its inputs before torch.export"
    return InheritedReason(what)


def is_float(dtype: torch.dtype) -> bool:
    """Whether the type is one of the floats that weft computes with."""
    return dtype in FLOATS


def stored_type(dtype: torch.dtype) -> DType:
    """The type that a value has in memory at the border of a graph."""
    return STORED[dtype]


def compute_type(dtype: torch.dtype) -> DType:
    """The type that a value has between ops."""
    return DTYPES["f32"] if is_float(dtype) else STORED[dtype]
