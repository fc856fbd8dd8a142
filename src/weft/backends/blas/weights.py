"""Matrices of any type as float32."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weft import quants
from weft.dtype import DType
from weft.errors import WeftError
from weft.native import _native

__all__ = ["can_decode", "decode_into"]

_WIDEST = 1 << 20
"""Elements that are decoded at a time."""


def can_decode(dtype: DType) -> bool:
    """Whether `decode_into` takes the type: floats and block types of rows. Types with a tail have
    one scale for a whole tensor."""
    if dtype.tail:
        return False
    return dtype.is_quantized or dtype.name in ("f32", "f16", "bf16")


def decode_into(raw: NDArray[np.uint8], dtype: DType, out: NDArray[np.float32]) -> None:
    """Decodes the rows in `raw`, one after the other without gaps, into the flat `out`.

    Raises what the decoders raise on a type that they do not know."""
    step = max(_WIDEST // dtype.block, 1)
    size = dtype.bytes
    target = _native.best_target()
    for first in range(0, raw.nbytes // size, step):
        part = raw[first * size : (first + step) * size]
        values = out[first * dtype.block : (first + step) * dtype.block]
        try:
            _native.dequantize(target, dtype.id, part, values)
        except (ValueError, WeftError):
            # types without a native decoder
            values[:] = quants.decode(part, dtype).reshape(-1)
