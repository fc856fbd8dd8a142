"""Reads the parts of a .pte file that describe it, without ExecuTorch's exporter.

A .pte is a FlatBuffer of ExecuTorch's schema `program.fbs`, followed by the segments with the
delegates' data. The numbers below are places of fields in that schema, which only ever grows.
Importing the exporter, which has a reader too, takes seconds and prints warnings.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatbuffers import encode
from flatbuffers.number_types import Int32Flags, Uint8Flags, Uint32Flags, Uint64Flags
from flatbuffers.packer import uoffset
from flatbuffers.table import Table

from weft.errors import FormatError

__all__ = ["Delegate", "Method", "read_pte"]

_HEAD = 8
"""The bytes before the extended header, which are the root's offset and the identifier."""
_KERNEL_CALL, _DELEGATE_CALL = 1, 2
_INLINE = 0


@dataclass(frozen=True, slots=True)
class Delegate:
    """A part of a method that a backend runs."""

    backend: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Method:
    """The delegates and the operators that a method calls."""

    name: str
    kernels: list[str]
    """Operators of ExecuTorch's own kernels, one entry a call."""
    delegate_calls: int
    delegates: list[Delegate]


def read_pte(path: str | Path) -> tuple[int, list[Method]]:
    """The bytes of a file, and its methods; raises FormatError for a file that is not a .pte."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror or error}") from None
    if data[4:6] != b"ET":
        raise FormatError(f"{path} is not a .pte file: it does not begin as ExecuTorch programs do")
    try:
        return len(data), _methods(data)
    except (struct.error, IndexError, TypeError, ValueError, UnicodeError, RecursionError) as error:
        raise FormatError(f"{path} is a damaged .pte file: {error}") from None


def _methods(data: bytes) -> list[Method]:
    program = Table(data, encode.Get(uoffset, data, 0))
    segments = list(_tables(program, 4))
    inline = list(_tables(program, 3))
    base = _segment_base(data)

    def blob(delegate: Table) -> bytes:
        reference = _table(delegate, 1)
        index = _number(reference, 1, Uint32Flags)
        if _number(reference, 0, Uint8Flags) == _INLINE:
            return _bytes(inline[index], 0)
        begin = base + _number(segments[index], 0, Uint64Flags)
        end = begin + _number(segments[index], 1, Uint64Flags)
        if end > len(data):
            raise ValueError(f"a segment ends at byte {end:,} of {len(data):,}")
        return data[begin:end]

    return [_method(plan, blob) for plan in _tables(program, 1)]


def _method(plan: Table, blob: Any) -> Method:
    operators = ["".join(_operator(op)) for op in _tables(plan, 6)]
    kernels: list[str] = []
    calls = 0
    for chain in _tables(plan, 5):
        for instruction in _tables(chain, 2):
            kind = _number(instruction, 0, Uint8Flags)
            if kind == _KERNEL_CALL:
                kernels.append(operators[_number(_table(instruction, 1), 0, Int32Flags)])
            calls += kind == _DELEGATE_CALL
    delegates = [Delegate(_string(d, 0), blob(d)) for d in _tables(plan, 7)]
    return Method(_string(plan, 0), kernels, calls, delegates)


def _operator(op: Table) -> Iterator[str]:
    yield _string(op, 0)
    overload = _string(op, 1)
    if overload:
        yield f".{overload}"


def _segment_base(data: bytes) -> int:
    """The offset at which segments begin; 0 without the extended header that contains it."""
    magic, _, _, base = struct.unpack_from("<4sIQQ", data, _HEAD)
    return int(base) if magic == b"eh00" else 0


# ---- FlatBuffers ---------------------------------------------------------------------------------


def _place(table: Table, field: int) -> int:
    """The place of a field; 0 where it is absent."""
    offset = table.Offset(4 + 2 * field)
    return int(table.Pos + offset) if offset else 0


def _number(table: Table, field: int, flags: Any) -> int:
    at = _place(table, field)
    return int(table.Get(flags, at)) if at else 0


def _table(table: Table, field: int) -> Table:
    at = _place(table, field)
    if not at:
        raise ValueError(f"field {field} of a table is missing")
    return Table(table.Bytes, table.Indirect(at))


def _tables(table: Table, field: int) -> Iterator[Table]:
    offset = table.Offset(4 + 2 * field)
    if not offset:
        return
    start, n = table.Vector(offset), table.VectorLen(offset)
    if start + 4 * n > len(table.Bytes):
        raise ValueError(f"a list of {n} entries is longer than the file")
    for i in range(n):
        yield Table(table.Bytes, table.Indirect(start + 4 * i))


def _string(table: Table, field: int) -> str:
    at = _place(table, field)
    return table.String(at).decode() if at else ""


def _bytes(table: Table, field: int) -> bytes:
    offset = table.Offset(4 + 2 * field)
    if not offset:
        return b""
    start, n = table.Vector(offset), table.VectorLen(offset)
    return bytes(table.Bytes[start : start + n])
