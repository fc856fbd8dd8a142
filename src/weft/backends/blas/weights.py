"""Matrices of any type as float32, decoded when they are needed or kept decoded."""

from __future__ import annotations

import weakref
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from weft import quants
from weft.backends.memory import HostMemory, Memory
from weft.dtype import DType
from weft.errors import OutOfMemoryError, WeftError
from weft.native import _native

_WIDEST = 1 << 20
"""The number of elements that are decoded at a time."""


def can_decode(dtype: DType) -> bool:
    """Whether `decode_into` takes the type: floats and block types of rows.

    Types with a tail have one scale for a whole tensor and cannot be decoded row by row."""
    if dtype.tail:
        return False
    return dtype.is_quantized or dtype.name in ("f32", "f16", "bf16")


def decode_into(raw: NDArray[np.uint8], dtype: DType, out: NDArray[np.float32]) -> None:
    """Decodes the rows in `raw`, one after the other without gaps, into the flat `out`.

    Raises the errors of the decoders for a type that they do not know."""
    step = max(_WIDEST // dtype.block, 1)
    size = dtype.bytes
    target = _native.best_target()
    for first in range(0, raw.nbytes // size, step):
        part = raw[first * size : (first + step) * size]
        values = out[first * dtype.block : (first + step) * dtype.block]
        try:
            _native.dequantize(target, dtype.id, part, values)
        except (ValueError, WeftError):
            # NumPy decodes the types without a native decoder
            values[:] = quants.decode(part, dtype).reshape(-1)


class DecodedWeights:
    """Weights in float32 that all programs of a backend share, at most `limit` bytes of them.

    Each is kept as long as the memory from which it was decoded."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # by address, bytes and type
        self._known: dict[tuple[int, int, str], NDArray[np.float32]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def get(
        self, raw: NDArray[np.uint8], dtype: DType, owner: Memory
    ) -> NDArray[np.float32] | None:
        """The elements of `raw`, bytes of the block `owner`; None where there is no room left.

        Raises OutOfMemoryError."""
        key = (raw.ctypes.data, raw.nbytes, dtype.name)
        decoded = self._known.get(key)
        if decoded is None:
            n = raw.nbytes // dtype.bytes * dtype.block
            if sum(kept.nbytes for kept in self._known.values()) + 4 * n > self._limit:
                return None
            decoded = floats(n)
            decode_into(raw, dtype, decoded)
            with suppress(TypeError):  # memory without weak references is not remembered
                weakref.finalize(owner, self._known.pop, key, None)
                self._known[key] = decoded
        return decoded


def floats(n: int) -> NDArray[np.float32]:
    """Room for `n` decoded elements. Raises OutOfMemoryError."""
    try:
        return HostMemory.zeros(4 * n).host().view(np.float32)
    except MemoryError as error:
        raise OutOfMemoryError(
            f"the host has no {4 * n} bytes left for decoded weights; make decoded_bytes smaller"
        ) from error
