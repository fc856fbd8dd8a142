"""Element and block types as one table: GGUF id, block length, block bytes.

Ids, block lengths and sizes follow the GGUF specification (ggml's `enum ggml_type`); `i2_s`
is bitnet.cpp's own type and uses the id its files carry. The ids from 133 on are ik_llama.cpp's.
"""

from __future__ import annotations

import numpy as np

from weft.errors import GraphError
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class DType:
    """One row of the type table."""

    name: str
    """ggml's name, e.g. `q4_K`."""
    id: int
    """The number that GGUF files store."""
    block: int
    """Elements in a block; 1 for plain element types."""
    bytes: int
    """Bytes of a block."""
    numpy: str | None = None
    """NumPy dtype of one element; None for block types (their storage is uint8)."""
    tail: int = 0
    """Bytes that follow the last block of a whole tensor, such as a scale for all of it."""
    only_in_memory: bool = False
    """Files have the same values in another form (`weft.frontends.gguf.row_forms`)."""

    @property
    def is_quantized(self) -> bool:
        """True if several elements share a block."""
        return self.block > 1

    @property
    def bits_per_weight(self) -> float:
        """Storage bits per element."""
        return 8.0 * self.bytes / self.block

    @property
    def storage(self) -> np.dtype[np.generic]:
        """NumPy dtype of the stored memory: the element type, or uint8 for block types.

        bf16 is stored as its uint16 bit pattern."""
        return np.dtype(self.numpy if self.numpy is not None else "u1")

    def row_bytes(self, n: int) -> int:
        """Bytes of a row of `n` elements.

        Raises GraphError if `n` is not a multiple of the block length."""
        if n % self.block:
            raise GraphError(
                f"a row of {n} elements is not a multiple of the {self.block}-element blocks of "
                f"{self.name}; pad the row or choose another type"
            )
        return n // self.block * self.bytes

    def __repr__(self) -> str:
        return f"dtype({self.name})"


def _table(*rows: tuple[str, int, int, int, str | None]) -> dict[str, DType]:
    tails = {"i2_s": 32}
    return {
        name: DType(name, id_, block, size, np_, tails.get(name, 0), name in _WITH_SCALE_OF_ROW)
        for name, id_, block, size, np_ in rows
    }


_WITH_SCALE_OF_ROW = (
    "iq2_bn", "iq2_ks", "iq3_ks", "iq4_ks", "iq5_ks", "iq2_kl", "iq1_kt", "iq2_kt", "iq3_kt",
    "iq4_kt", "q8_KV", "iq1_m_r4",
)  # fmt: skip
"""Types whose scale files store once in front of a row. In memory each block begins with it."""


# fmt: off
DTYPES: dict[str, DType] = _table(
    # name     id  block bytes numpy
    ("f32",     0,    1,   4, "<f4"),
    ("f16",     1,    1,   2, "<f2"),
    ("bf16",   30,    1,   2, "<u2"),
    ("f64",    28,    1,   8, "<f8"),
    ("i8",     24,    1,   1, "i1"),
    ("i16",    25,    1,   2, "<i2"),
    ("i32",    26,    1,   4, "<i4"),
    ("i64",    27,    1,   8, "<i8"),
    ("q4_0",    2,   32,  18, None),
    ("q4_1",    3,   32,  20, None),
    ("q5_0",    6,   32,  22, None),
    ("q5_1",    7,   32,  24, None),
    ("q8_0",    8,   32,  34, None),
    ("q8_1",    9,   32,  36, None),
    ("q2_K",   10,  256,  84, None),
    ("q3_K",   11,  256, 110, None),
    ("q4_K",   12,  256, 144, None),
    ("q5_K",   13,  256, 176, None),
    ("q6_K",   14,  256, 210, None),
    ("q8_K",   15,  256, 292, None),
    ("iq2_xxs", 16, 256,  66, None),
    ("iq2_xs", 17,  256,  74, None),
    ("iq3_xxs", 18, 256,  98, None),
    ("iq1_s",  19,  256,  50, None),
    ("iq4_nl", 20,   32,  18, None),
    ("iq3_s",  21,  256, 110, None),
    ("iq2_s",  22,  256,  82, None),
    ("iq4_xs", 23,  256, 136, None),
    ("iq1_m",  29,  256,  56, None),
    ("tq1_0",  34,  256,  54, None),
    ("tq2_0",  35,  256,  66, None),
    # bitnet.cpp: 128 ternary weights in 32 bytes (x86 layout). 32 more bytes follow the last block;
    # the first four are the tensor's float32 scale.
    ("i2_s",   36,  128,  32, None),
    ("mxfp4",  39,   32,  17, None),
    ("nvfp4",  40,   64,  36, None),
    ("q1_0",   41,  128,  18, None),
    ("q2_0",   42,   64,  18, None),
    ("q6_0",  133,   32,  26, None),
    ("iq2_bn", 135,  64,  20, None),
    ("iq2_k", 137,  256,  76, None),
    ("iq3_k", 138,  256, 110, None),
    ("iq4_k", 139,  256, 144, None),
    ("iq5_k", 140,  256, 176, None),
    ("iq6_k", 141,  256, 212, None),
    ("iq4_ks", 144, 256, 140, None),
    ("iq2_ks", 145, 256,  72, None),
    ("q8_KV", 151,   32,  36, None),
    ("iq5_ks", 152, 256, 172, None),
    ("iq2_kt", 153, 256,  72, None),
    ("iq3_kt", 154, 256, 104, None),
    ("iq4_kt", 155, 256, 132, None),
    ("iq3_ks", 156, 256, 104, None),
    ("iq2_kl", 157, 256,  88, None),
    ("iq1_kt", 158, 256,  60, None),
    ("iq1_m_r4", 229, 256, 58, None),
)
# fmt: on

_BY_ID = {d.id: d for d in DTYPES.values()}
_BY_FOLDED_NAME = {d.name.lower(): d for d in DTYPES.values()} | {
    "float32": DTYPES["f32"],
    "float16": DTYPES["f16"],
    "bfloat16": DTYPES["bf16"],
    "float64": DTYPES["f64"],
    "int8": DTYPES["i8"],
    "int16": DTYPES["i16"],
    "int32": DTYPES["i32"],
    "int64": DTYPES["i64"],
}


def find_dtype(name: str | DType) -> DType:
    """Looks up the type called `name`; upper and lower case are the same (`Q4_K`, `q4_k`).

    NumPy's names, such as `float32`, are accepted too. A DType is returned as it is. Raises
    GraphError, which lists the known names, when there is no such type."""
    if isinstance(name, DType):
        return name
    dtype = _BY_FOLDED_NAME.get(name.lower()) if isinstance(name, str) else None
    if dtype is None:
        raise GraphError(f"unknown type {name!r}; known types: {', '.join(DTYPES)}")
    return dtype


def dtype_from_id(id_: int) -> DType | None:
    """The type with GGUF id `id_`, or None when the table has no such type."""
    return _BY_ID.get(id_)
