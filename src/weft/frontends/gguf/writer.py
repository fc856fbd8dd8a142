"""Writes GGUF files.

It does not use the PyPI package's GGUFWriter, which cannot name a type outside its own enum (i2_s),
cannot copy a metadata value without decoding it, and handles every token in Python.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np

from weft.dtype import DType, find_dtype
from weft.errors import FormatError
from weft.files import replacing
from weft.frontends.gguf.format import (
    DEFAULT_ALIGNMENT,
    MAGIC,
    MAX_DIMS,
    MAX_KEYS,
    MAX_NAME,
    MAX_TENSORS,
    SCALARS,
    VERSIONS,
    RawValue,
    ValueType,
    alignment_problem,
    tensor_bytes,
)
from weft.frontends.gguf.metadata import Metadata
from weft.records import dataclass

Data: TypeAlias = np.ndarray[Any, Any] | bytes | bytearray | memoryview
TensorSource: TypeAlias = tuple[str, DType | str, Sequence[int], Data | Callable[[], Data]]
"""Name, type, `ne` (sizes, innermost first, one to four; trailing ones are not stored), and the
stored bytes: a C-contiguous buffer, or a function that returns it when it is written, so that a
model need not be in memory."""

_TYPE_OF_DTYPE = {dtype: type_ for type_, dtype in SCALARS.items()}


def write_gguf(
    path: str | os.PathLike[str],
    metadata: Mapping[str, object],
    tensors: Iterable[TensorSource],
    *,
    version: int = 3,
    all_sizes: bool = False,
) -> None:
    """Write a GGUF file; `path` is replaced at the end, in one step, or not at all.

    `metadata` values: RawValue (as stored in another file; a `Metadata` is copied so), bool, str,
    bytes, NumPy scalars and one-dimensional arrays (of exactly their type), int (u32, or i32 when
    negative), float (f32), and non-empty lists of bool, int (i32), float (f32), str or bytes; what
    does not fit 32 bits takes 64. `general.alignment` in it, default 32, aligns the tensors.
    `all_sizes` stores trailing sizes of 1 too, as the reference's converter does.

    Raises FormatError naming the key or tensor when something cannot be written, and when the file
    system refuses."""
    target = Path(path)
    layout = lay_out(target, metadata, tensors, version=version, all_sizes=all_sizes)
    with replacing(target) as file:
        file.write(layout.head)
        for row, at in zip(layout.rows, layout.starts, strict=True):
            _pad(file, at)
            file.write(row.bytes())
        _pad(file, layout.size)


@dataclass(frozen=True, slots=True)
class Row:
    """A tensor that will be written."""

    name: str
    dtype: DType
    ne: tuple[int, ...]
    source: Data | Callable[[], Data]

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        return tensor_bytes(self.dtype, self.ne)

    def bytes(self) -> memoryview:
        """The bytes of the tensor. Raises FormatError if there are too few or too many."""
        data = self.source() if callable(self.source) else self.source
        return _checked(self.name, self.dtype, self.ne, data)


@dataclass(frozen=True, slots=True)
class Layout:
    """A file as it will be written."""

    head: bytes
    """Everything before the first tensor."""
    rows: Sequence[Row]
    starts: Sequence[int]
    """Byte offset at which each tensor begins; zeros lie between tensors."""
    size: int
    """Bytes of the whole file."""


def lay_out(
    target: Path,
    metadata: Mapping[str, object],
    tensors: Iterable[TensorSource],
    *,
    version: int = 3,
    all_sizes: bool = False,
) -> Layout:
    """The layout and bytes that `write_gguf` writes; same errors, which name `target`."""
    if version not in VERSIONS:
        raise FormatError(f"{target}: cannot write GGUF version {version}; choose 2 or 3")
    if isinstance(metadata, Metadata):
        values = {key: metadata.raw(key) for key in metadata}
    else:
        values = {key: encode_value(key, value) for key, value in metadata.items()}
    alignment = _alignment(values)
    rows = [Row(name, find_dtype(dtype), tuple(ne), data) for name, dtype, ne, data in tensors]
    for row in rows:
        if row.dtype.only_in_memory:
            raise FormatError(
                f"{target}: tensor {row.name} has ik_llama.cpp's type {row.dtype.name}, which weft "
                "reads and does not write; choose another type for it, such as q4_K"
            )
    head, offsets = _header(version, values, rows, alignment, all_sizes)
    starts = [len(head) + offset for offset in offsets]
    end = starts[-1] + rows[-1].nbytes if rows else len(head)
    return Layout(head, rows, starts, -(-end // alignment) * alignment)


def encode_value(key: str, value: object) -> RawValue:
    """The stored form of a metadata value; see `write_gguf` for the types."""
    if isinstance(value, RawValue):
        return value
    if isinstance(value, (str, bytes)):
        return RawValue(ValueType.STRING, _string(value))
    if isinstance(value, (list, tuple)):
        return _encode_list(key, value)
    array = _as_typed(key, value)
    type_ = _TYPE_OF_DTYPE.get(array.dtype.newbyteorder("<"))
    if type_ is None or array.ndim > 1:
        raise FormatError(
            f"metadata key {key!r}: GGUF has no type for {array.dtype} {list(array.shape)}; use "
            "integers, float32, float64 or bool in one dimension, or a list of str"
        )
    data = array.astype(SCALARS[type_], copy=False).tobytes()
    if array.ndim == 0:
        return RawValue(type_, data)
    return RawValue(ValueType.ARRAY, struct.pack("<IQ", type_, array.size) + data)


def _encode_list(key: str, value: Sequence[object]) -> RawValue:
    if not value:
        raise FormatError(
            f"metadata key {key!r}: an empty list has no type; give an empty NumPy array"
        )
    if all(isinstance(v, (str, bytes)) for v in value):
        head = struct.pack("<IQ", ValueType.STRING, len(value))
        return RawValue(
            ValueType.ARRAY,
            head + b"".join(_string(v) for v in value if isinstance(v, (str, bytes))),
        )
    kinds = {type(v) for v in value}
    if kinds == {int}:
        fits = all(-(1 << 31) <= v < 1 << 31 for v in value if isinstance(v, int))
        return encode_value(key, _array(key, value, "<i4" if fits else "<i8"))
    if kinds == {bool}:
        return encode_value(key, _array(key, value, "?"))
    if kinds <= {int, float}:
        return encode_value(key, np.asarray(value, _float_type(*value)))
    raise FormatError(
        f"metadata key {key!r}: a list of {', '.join(sorted(k.__name__ for k in kinds))} cannot be "
        "stored; use one of bool, int, float or str, or a NumPy array"
    )


def _as_typed(key: str, value: object) -> np.ndarray[Any, Any]:
    """A number or array as an array of the type to store."""
    if isinstance(value, bool):
        return np.asarray(value)
    if isinstance(value, int):
        narrow, wide = ("<u4", "<u8") if value >= 0 else ("<i4", "<i8")
        fits = np.iinfo(narrow).min <= value <= np.iinfo(narrow).max
        return _array(key, value, narrow if fits else wide)
    if isinstance(value, float) and not isinstance(value, np.floating):
        return np.asarray(value, _float_type(value))
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value)
    raise FormatError(
        f"metadata key {key!r}: a {type(value).__name__} cannot be stored; use bool, int, float, "
        "str, bytes, a list of these or a NumPy array"
    )


def _array(key: str, value: object, dtype: str) -> np.ndarray[Any, Any]:
    try:
        return np.asarray(value, dtype)
    except OverflowError:
        raise FormatError(
            f"metadata key {key!r}: {value!r} does not fit into 64 bits; store it as a string"
        ) from None


def _float_type(*values: Any) -> str:
    """f32, or f64 when a value is beyond its range."""
    most = float(np.finfo("f4").max)
    return "<f8" if any(most < abs(v) < math.inf for v in values) else "<f4"


def _string(text: str | bytes) -> bytes:
    data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def _name(name: str, what: str) -> bytes:
    try:
        data = name.encode()
    except UnicodeEncodeError:
        raise FormatError(f"{what} {name!r} cannot be written as UTF-8; rename it") from None
    if not 1 <= len(data) <= MAX_NAME:
        raise FormatError(f"{what} {name[:64]!r} has {len(data)} bytes; use 1 to {MAX_NAME}")
    return struct.pack("<Q", len(data)) + data


def _alignment(values: Mapping[str, RawValue]) -> int:
    raw = values.get("general.alignment")
    if raw is None:
        return DEFAULT_ALIGNMENT
    if raw.type is not ValueType.U32:
        raise FormatError(f"general.alignment must be u32, not {raw.type.label}")
    alignment = int.from_bytes(raw.data, "little")
    problem = alignment_problem(alignment)
    if problem is not None:
        raise FormatError(problem)
    return alignment


def _header(
    version: int,
    values: Mapping[str, RawValue],
    rows: Sequence[Row],
    alignment: int,
    all_sizes: bool,
) -> tuple[bytes, list[int]]:
    """Everything up to the data section, padded; and the offset of each tensor in that section."""
    if len(values) > MAX_KEYS or len(rows) > MAX_TENSORS:
        raise FormatError(
            f"{len(values)} keys and {len(rows)} tensors; a file holds at most {MAX_KEYS} and "
            f"{MAX_TENSORS}"
        )
    out = [MAGIC, struct.pack("<IQQ", version, len(rows), len(values))]
    for key, raw in values.items():
        out += [_name(key, "metadata key"), struct.pack("<I", raw.type), raw.data]
    offsets: list[int] = []
    offset = 0
    names: set[str] = set()
    for row in rows:
        name, dtype, ne = row.name, row.dtype, row.ne
        if name in names:
            raise FormatError(f"two tensors are called {name!r}; names must differ")
        names.add(name)
        if not 1 <= len(ne) <= MAX_DIMS or min(ne) < 1:
            raise FormatError(
                f"tensor {name!r} has the sizes {list(ne)}; give 1 to {MAX_DIMS} sizes of 1 or more"
            )
        try:
            nbytes = tensor_bytes(dtype, ne)
        except FormatError as e:
            raise FormatError(f"tensor {name!r}: {e}") from None
        n_dims = max((i for i, n in enumerate(ne, start=1) if n > 1 or all_sizes), default=1)
        sizes = struct.pack(f"<I{n_dims}Q", n_dims, *ne[:n_dims])
        out += [_name(name, "tensor"), sizes, struct.pack("<IQ", dtype.id, offset)]
        offsets.append(offset)
        offset = -(-(offset + nbytes) // alignment) * alignment
    header = b"".join(out)
    return header.ljust(-(-len(header) // alignment) * alignment, b"\0"), offsets


def _checked(name: str, dtype: DType, ne: tuple[int, ...], data: Data) -> memoryview:
    """The bytes of `data`; raises FormatError unless there are as many as the type and sizes
    need."""
    if isinstance(data, np.ndarray):
        if not data.flags.c_contiguous or data.dtype.newbyteorder("<") != data.dtype:
            raise FormatError(
                f"tensor {name!r}: the data must be C-contiguous and little endian; pass "
                "np.ascontiguousarray of it"
            )
        data = data.reshape(-1).view(np.uint8).data
    view = memoryview(data)
    need = tensor_bytes(dtype, ne)
    if view.nbytes != need:
        raise FormatError(
            f"tensor {name!r} ({dtype.name} {list(ne[::-1])}) has {view.nbytes} bytes of data, "
            f"and needs {need}"
        )
    return view


def _pad(file: IO[bytes], to: int) -> None:
    file.write(bytes(to - file.tell()))
