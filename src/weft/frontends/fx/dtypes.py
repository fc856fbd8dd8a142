"""Element types of PyTorch and where weft keeps their values.

Values of float16 and bfloat16 are *stored* as such in inputs, outputs, constants and buffers;
between ops they are float32, unrounded. Booleans are i8, 0 or 1.
"""

from __future__ import annotations

import torch

from weft.dtype import DTYPES, DType

__all__ = ["FLOATS", "INTS", "STORED", "compute_type", "dtype_name", "is_float", "stored_type"]

STORED: dict[torch.dtype, DType] = {
    torch.float32: DTYPES["f32"],
    torch.float16: DTYPES["f16"],
    torch.bfloat16: DTYPES["bf16"],
    torch.int64: DTYPES["i64"],
    torch.int32: DTYPES["i32"],
    torch.int16: DTYPES["i16"],
    torch.int8: DTYPES["i8"],
    torch.bool: DTYPES["i8"],
}
"""How a value of a PyTorch type lies in memory at the border of a graph."""

if "u8" in DTYPES:
    STORED[torch.uint8] = DTYPES["u8"]

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
INTS = tuple(t for t in STORED if not t.is_floating_point and t is not torch.bool)


def dtype_name(dtype: torch.dtype) -> str:
    """`float32` of `torch.float32`."""
    return str(dtype).removeprefix("torch.")


def is_float(dtype: torch.dtype) -> bool:
    """Whether the type is one of the floats that weft computes with."""
    return dtype in FLOATS


def stored_type(dtype: torch.dtype) -> DType:
    """The type that a value has in memory at the border of a graph."""
    return STORED[dtype]


def compute_type(dtype: torch.dtype) -> DType:
    """The type that a value has between ops."""
    return DTYPES["f32"] if is_float(dtype) else STORED[dtype]
