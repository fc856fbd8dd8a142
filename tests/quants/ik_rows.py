"""Rows in the types of ik_llama.cpp's files, of which `tests/data/ik_rows.json` has the values.

    python tests/quants/ik_rows.py PATH/libggml.so tests/data/ik_rows.json

makes that file by `ggml_quantize_chunk` and `to_float` of ik_llama.cpp (commit of November 2026,
built for AVX2). It has checksums of the values of `random_rows` in each type, and for types whose
rows lie alone a row of `model_like` as that quantizes it, with a checksum of its values.

Where `to_float` does not give what products use, the values come from elsewhere: iq1_bn and iq2_bn
times the scale of the row, mxfp4_r8 of rows that it quantizes in the plain type, and those of
iq6_k, for scales of one, rounded to whole levels. bf16_r16, which has none, is not here.
"""

from __future__ import annotations

import base64
import ctypes
import json
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.dtype import DTYPES
from weft.frontends.gguf.row_forms import ROW_FORMS

COLUMNS = 256
ROWS = 16
PLAIN = ("q6_0", "iq2_k", "iq3_k", "iq4_k", "iq5_k", "iq6_k")
"""Types of which files have the blocks that memory has."""
IDS: dict[str, int] = {f.name: f.id for f in ROW_FORMS.values()} | {
    name: DTYPES[name].id for name in PLAIN
}
del IDS["bf16_r16"]


def random_rows(name: str, row_bytes: int) -> NDArray[np.uint8]:
    """`[16, row_bytes]` random bytes; with scales of one for iq6_k."""
    random = np.random.RandomState(IDS[name])
    rows = random.randint(0, 256, (ROWS, row_bytes)).astype(np.uint8)
    if name == "iq6_k":
        rows[:, :2] = (0, 0x3C)
        rows[:, 4:20] = 1
    return rows


def model_like(n: int) -> NDArray[np.float32]:
    """`[n, 256]` numbers like weights."""
    random = np.random.RandomState(21)
    x = random.standard_normal((ROWS, COLUMNS)) * 0.02
    x[:, ::37] *= 4
    return x[:n].astype(np.float32)


def checksum(values: NDArray[np.float32]) -> str:
    """Of float32 numbers, with one kind of zero and of NaN."""
    plain = np.where(np.isnan(values), np.float32(np.nan), values + np.float32(0))
    return sha256(np.ascontiguousarray(plain, np.float32).tobytes()).hexdigest()[:24]


class _Traits(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p), ("block", ctypes.c_int64), ("interleave", ctypes.c_int64),
        ("size", ctypes.c_size_t), ("is_quantized", ctypes.c_bool), ("to_float", ctypes.c_void_p),
        ("others", ctypes.c_void_p * 4), ("dot_type", ctypes.c_int), ("n", ctypes.c_int64 * 2),
        ("products", ctypes.c_void_p * 2), ("header", ctypes.c_int64),
    ]  # fmt: skip


class _Parameters(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t), ("memory", ctypes.c_void_p), ("no_alloc", ctypes.c_bool),
    ]  # fmt: skip


class _Ggml:
    def __init__(self, path: str) -> None:
        self._lib: Any = ctypes.CDLL(path)
        self._lib.ggml_init.argtypes = [_Parameters]
        self._lib.ggml_init.restype = ctypes.c_void_p
        self._lib.ggml_init(_Parameters(1 << 20, None, False))  # makes the table of f16
        self._lib.ggml_internal_get_type_traits.restype = _Traits
        self._lib.ggml_quantize_chunk.restype = ctypes.c_size_t

    def traits(self, id_: int) -> _Traits:
        traits: _Traits = self._lib.ggml_internal_get_type_traits(id_)
        return traits

    def row_bytes(self, id_: int) -> int:
        t = self.traits(id_)
        return int(t.header + COLUMNS // t.block * t.size)

    def quantize(self, id_: int, x: NDArray[np.float32]) -> NDArray[np.uint8]:
        out = np.zeros(len(x) * self.row_bytes(id_), np.uint8)
        weights = np.ones(COLUMNS, np.float32)
        n = self._lib.ggml_quantize_chunk(
            id_, _at(x), _at(out), ctypes.c_int64(0), ctypes.c_int64(len(x)),
            ctypes.c_int64(COLUMNS), _at(weights), None,
        )  # fmt: skip
        assert n == out.size
        return out.reshape(len(x), -1)

    def values(self, name: str, rows: NDArray[np.uint8]) -> NDArray[np.float32]:
        id_ = IDS[name]
        form = ROW_FORMS.get(id_)
        together = form.rows if form else 1
        skip = form.header if form and name in ("iq1_bn", "iq2_bn") else 0
        to_float = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(
            self.traits(id_).to_float
        )
        out = np.empty((len(rows), COLUMNS), np.float32)
        for start in range(0, len(rows), together):
            panel = np.ascontiguousarray(rows[start : start + together]).reshape(-1)[skip:].copy()
            to_float(panel.ctypes.data, out[start:].ctypes.data, together * COLUMNS)
        if skip:
            scales = np.ascontiguousarray(rows[:, :skip]).view("<f2" if skip == 2 else "<f4")
            out *= scales.astype(np.float32)
        return np.rint(out) if name == "iq6_k" else out


def _at(array: NDArray[Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _record(ggml: _Ggml, name: str) -> dict[str, str]:
    id_ = IDS[name]
    x = model_like(ROW_FORMS[id_].rows if id_ in ROW_FORMS else 1)
    assert ggml.traits(id_).name == name.encode()
    rows = ggml.quantize(id_, x)
    text = base64.b85encode(rows.tobytes()).decode()
    record = {"rows": text} if len(rows) == 1 or name == "mxfp4_r8" else {}
    if name == "mxfp4_r8":
        plain = DTYPES["mxfp4"].id
        values = np.empty(x.shape, np.float32)
        to_float = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(
            ggml.traits(plain).to_float
        )
        blocks = ggml.quantize(plain, x)
        to_float(blocks.ctypes.data, values.ctypes.data, values.size)
        return record | {"values": checksum(values)}
    if record and name != "iq6_k":
        record["values"] = checksum(ggml.values(name, rows))
    random = random_rows(name, rows.shape[1])
    return record | {"random": checksum(ggml.values(name, random))}


if __name__ == "__main__":
    library = _Ggml(sys.argv[1])
    records = {name: _record(library, name) for name in IDS}  # which prints in between
    Path(sys.argv[2]).write_text(json.dumps(records, indent=1) + "\n")
