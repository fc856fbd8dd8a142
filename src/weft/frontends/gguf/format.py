"""The GGUF layout, its value types, and the limits weft sets.

Source: docs/gguf.md in the ggml repository. All numbers are little endian.

    magic        4 bytes   "GGUF"
    version      u32       2 or 3 (same layout; 1 had 32-bit counts, 3 allowed big-endian files)
    n_tensors    u64
    n_kv         u64
    n_kv times:
      key        string    u64 length, then that many bytes (no terminator)
      type       u32       a ValueType
      value                a scalar; a string; or an array: u32 item type, u64 count, the items
    n_tensors times:
      name       string
      n_dims     u32       at most 4
      ne         u64 each  sizes, innermost first
      type       u32       a row of weft.dtype.DTYPES
      offset     u64       from the start of the data section, a multiple of the alignment
    padding                up to a multiple of `general.alignment` (32 when the key is absent)
    data                   the tensors, each padded to the alignment

A model may be cut into files `name-00001-of-00003.gguf` ...; the keys `split.no` (from 0),
`split.count` and `split.tensors.count` (over all files) tie them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from math import prod

import numpy as np

from weft.dtype import DType
from weft.errors import FormatError, GraphError
from weft.records import dataclass

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32

MIN_ALIGNMENT = 8  # the specification's; below it, mapped f64 and i64 tensors would be misaligned
MAX_ALIGNMENT = 1 << 21  # a huge page; anything more is a damaged file
MAX_DIMS = 4
MAX_NAME = 65535  # bytes of a key or tensor name; ggml itself stops at 63 for tensors
MAX_DEPTH = 4  # arrays inside arrays
# A sparse file of terabytes costs its sender nothing, so opening one must not cost us much either.
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 18
MAX_WORK = 1 << 25  # in all: strings and bools in arrays, bytes of names, 16 for a nested array

_I2_S_TAIL = 32  # bytes after the weights of an i2_s tensor; the first four are its f32 scale


class ValueType(IntEnum):
    """The type of a metadata value, as files number it."""

    U8 = 0
    I8 = 1
    U16 = 2
    I16 = 3
    U32 = 4
    I32 = 5
    F32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    U64 = 10
    I64 = 11
    F64 = 12

    @property
    def label(self) -> str:
        """The name in messages and tables: `u32`, `string`, ..."""
        return self.name.lower()


SCALARS: dict[ValueType, np.dtype[np.generic]] = {
    ValueType.U8: np.dtype("u1"),
    ValueType.I8: np.dtype("i1"),
    ValueType.U16: np.dtype("<u2"),
    ValueType.I16: np.dtype("<i2"),
    ValueType.U32: np.dtype("<u4"),
    ValueType.I32: np.dtype("<i4"),
    ValueType.F32: np.dtype("<f4"),
    ValueType.BOOL: np.dtype("?"),
    ValueType.U64: np.dtype("<u8"),
    ValueType.I64: np.dtype("<i8"),
    ValueType.F64: np.dtype("<f8"),
}
"""Value types of a fixed size, with the NumPy dtype of their bytes."""

REMOVED_TYPES = {
    4: "q4_2", 5: "q4_3", 31: "q4_0_4_4", 32: "q4_0_4_8", 33: "q4_0_8_8", 36: "iq4_nl_4_4",
    37: "iq4_nl_4_8", 38: "iq4_nl_8_8",
}  # fmt: skip
"""Tensor types that files of some age use and ggml has since dropped; 36 is i2_s, too."""

IK_IDS = range(97, 400)
"""The numbers of types that ik_llama.cpp alone has."""

BITNET_TYPES = {38: "TL1", 39: "TL2"}
"""Tensor types of bitnet.cpp, under numbers that ggml uses for iq4_nl_8_8 and mxfp4."""

ROPE_HALVES = "weft.rope_halves"
"""A key of models that are not stored as GGUF: their queries and keys are in the order in which
halves of a head rotate, where GGUF files of the architecture have another."""

TOKENIZER_SETTINGS = "tokenizer.weft.settings"
"""A key with what a folder's tokenizer asks for and other keys cannot say, as JSON."""
WHOLE_TOKENIZER = "tokenizer.huggingface.json"
"""A key of the GGUF specification: a whole tokenizer.json, as text."""


@dataclass(frozen=True, slots=True)
class RawValue:
    """A metadata value as the file stores it: copied from file to file without decoding."""

    type: ValueType
    data: bytes
    """The bytes after the type id; an array's begin with its item type and count."""


def alignment_problem(alignment: int) -> str | None:
    """The fault of `alignment` as a value of `general.alignment`, or None."""
    if alignment & (alignment - 1) or not MIN_ALIGNMENT <= alignment <= MAX_ALIGNMENT:
        return (
            f"general.alignment is {alignment}; it must be a power of two from {MIN_ALIGNMENT} to "
            f"{MAX_ALIGNMENT} (most files use {DEFAULT_ALIGNMENT})"
        )
    return None


def tensor_bytes(dtype: DType, ne: Sequence[int]) -> int:
    """Bytes that a tensor of sizes `ne` (innermost first) takes in a file.

    An i2_s tensor has 32 bytes more than its blocks (bitnet.cpp). Raises FormatError when a row is
    not whole blocks."""
    inner = ne[0] if ne else 1
    try:
        row = dtype.row_bytes(inner)
    except GraphError as e:
        raise FormatError(str(e)) from None
    return row * prod(ne[1:]) + (_I2_S_TAIL if dtype.name == "i2_s" else 0)


def bitnet_bytes(id_: int, ne: Sequence[int]) -> int:
    """Bytes that bitnet.cpp's converter gives a tensor of `BITNET_TYPES`, before its padding.

    TL1 stores a weight in 2 bits. TL2 stores three weights in 5 bits, but in each row 256 weights
    as TL1 does. The scale is a tensor of its own, NAME_scale."""
    n, rows = prod(ne), prod(ne[1:])
    return n // 4 if id_ == 38 else (n - 256 * rows) // 3 * 5 // 8 + 64 * rows
