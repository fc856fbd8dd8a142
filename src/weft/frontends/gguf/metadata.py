"""The key-value section: found and checked when a file opens, decoded when a value is asked for.

Opening walks over the strings of an array without making them: a vocabulary of 128k tokens and
280k merges costs milliseconds, and no memory.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator, Mapping
from enum import Enum
from itertools import repeat
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from weft.errors import FormatError
from weft.frontends.gguf.filemap import BytesMap, Cursor, FileMap, quoted
from weft.frontends.gguf.format import MAX_DEPTH, SCALARS, RawValue, ValueType
from weft.records import dataclass

Value: TypeAlias = int | float | bool | str | NDArray[Any] | list[str] | list[Any]
"""A decoded value: a scalar, a NumPy array, a list of strings, or a list of arrays (nested)."""

_T = TypeVar("_T")
_U64 = struct.Struct("<Q")
_ARRAY_HEAD = 12  # bytes of an array's item type and count
_SCALAR_STRUCTS = {
    type_: struct.Struct("<" + code) for type_, code in zip(SCALARS, "BbHhIif?Qqd", strict=True)
}


class _Required(Enum):
    REQUIRED = 0


_REQUIRED = _Required.REQUIRED


@dataclass(frozen=True, slots=True)
class _Entry:
    """The place of a value: bytes [start, end) of the file, after the type id."""

    type: ValueType
    start: int
    end: int
    item: ValueType | None = None
    count: int = 0
    """The number of items of an array."""

    @property
    def label(self) -> str:
        """The type in words: `u32`, `array of string`."""
        return self.type.label if self.item is None else f"array of {self.item.label}"


class Metadata(Mapping[str, Value]):
    """The metadata of a file, in file order; values are decoded on first use, then kept.

    Integers are int, f32 and f64 float, bool is bool, string is str. Arrays of numbers are
    read-only NumPy arrays of their type, arrays of strings list[str], arrays of arrays lists. Bytes
    that are not UTF-8 become lone surrogates (`errors="surrogateescape"`), so nothing is lost;
    `get_bytes` and `get_bytes_list` return the bytes themselves. Do not change a returned list: the
    next caller gets the same one."""

    def __init__(self, map_: FileMap, entries: dict[str, _Entry]) -> None:
        self._map = map_
        self._entries = entries
        self._values: dict[str, Value] = {}

    def __getitem__(self, key: str) -> Value:
        if key not in self._values:
            entry = self._entries[key]
            self._values[key] = _decode(self._map, entry)
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __repr__(self) -> str:
        return f"<Metadata of {self._map.path}: {len(self)} keys>"

    def type_of(self, key: str) -> ValueType:
        """The type the file gives `key`; KeyError when there is no such key."""
        return self._entries[key].type

    def item_type_of(self, key: str) -> ValueType | None:
        """The item type of the array `key`, None when it is not an array."""
        return self._entries[key].item

    def count_of(self, key: str) -> int:
        """The items of the array `key` (known without decoding it); 1 when it is not an array."""
        entry = self._entries[key]
        return 1 if entry.item is None else entry.count

    def label_of(self, key: str) -> str:
        """The type of `key` in words: `u32`, `array of string`."""
        return self._entries[key].label

    def raw(self, key: str) -> RawValue:
        """The value of `key` as the file stores it, for copying into another file."""
        entry = self._entries[key]
        return RawValue(entry.type, self._map.buffer[entry.start : entry.end])

    def peek(self, key: str, items: int, string_bytes: int) -> Value:
        """The beginning of the value of `key`, decoding no more: the first `items` items of an
        array, the first `string_bytes` bytes of each string."""
        return _decode(self._map, self._entries[key], items, string_bytes)

    # The typed getters. Each returns `default` for a missing key, and raises FormatError when the
    # key is missing and no default was given, or has another type.

    def get_int(self, key: str, default: int | _T | _Required = _REQUIRED) -> int | _T:
        """An integer of any width."""
        return cast("int | _T", self._get(key, default, "an integer", int))

    def get_float(self, key: str, default: float | _T | _Required = _REQUIRED) -> float | _T:
        """A float; an integer is taken as one."""
        value: Any = self._get(key, default, "a float", (float, int))
        return float(value) if key in self else cast("float | _T", value)

    def get_bool(self, key: str, default: bool | _T | _Required = _REQUIRED) -> bool | _T:
        """A bool."""
        return cast("bool | _T", self._get(key, default, "a bool", bool))

    def get_str(self, key: str, default: str | _T | _Required = _REQUIRED) -> str | _T:
        """A string; bytes that are not UTF-8 are lone surrogates in it."""
        return cast("str | _T", self._get(key, default, "a string", str))

    def get_bytes(self, key: str, default: bytes | _T | _Required = _REQUIRED) -> bytes | _T:
        """The bytes of a string."""
        value = self._get(key, default, "a string", str)
        if isinstance(value, str) and key in self._entries:
            return value.encode("utf-8", "surrogateescape")
        return cast("bytes | _T", value)

    def get_array(
        self, key: str, default: NDArray[Any] | _T | _Required = _REQUIRED
    ) -> NDArray[Any] | _T:
        """An array of numbers or bools, as a read-only one-dimensional NumPy array."""
        value = self._get(key, default, "an array of numbers", np.ndarray)
        return cast("NDArray[Any] | _T", value)

    def get_str_list(
        self, key: str, default: list[str] | _T | _Required = _REQUIRED
    ) -> list[str] | _T:
        """An array of strings; bytes that are not UTF-8 are lone surrogates in it."""
        value = self._get(key, default, "an array of strings", list, ValueType.STRING)
        return cast("list[str] | _T", value)

    def get_bytes_list(
        self, key: str, default: list[bytes] | _T | _Required = _REQUIRED
    ) -> list[bytes] | _T:
        """The bytes of an array of strings, such as the pieces of a vocabulary."""
        entry = self._entries.get(key)
        if entry is None or entry.item is not ValueType.STRING:
            value = self._get(key, default, "an array of strings", list, ValueType.STRING)
            return cast("list[bytes] | _T", value)
        return _strings(self._map, entry.start + _ARRAY_HEAD, entry.count)[0]

    def _get(
        self,
        key: str,
        default: object,
        expected: str,
        types: type | tuple[type, ...],
        item: ValueType | None = None,
    ) -> object:
        entry = self._entries.get(key)
        if entry is None:
            if default is _REQUIRED:
                raise self._map.error(
                    f"the metadata key {quoted(key)} is missing, and {expected} is needed there; "
                    "convert the model again with a converter that writes it"
                )
            return default
        if item is not None and entry.item is not item:
            raise self._wrong_type(key, expected)
        value = self[key]
        # bool is a kind of int in Python, and not in a file.
        if not isinstance(value, types) or (isinstance(value, bool) and types is not bool):
            raise self._wrong_type(key, expected)
        return value

    def _wrong_type(self, key: str, expected: str) -> FormatError:
        return self._map.error(
            f"the metadata key {quoted(key)} has the type {self._entries[key].label}, and "
            f"{expected} is needed there; convert the model again with a converter that writes that"
        )


def made_metadata(path: Path, values: Mapping[str, RawValue]) -> Metadata:
    """Metadata that is in no file; errors name `path`."""
    entries: dict[str, _Entry] = {}
    at, parts = 0, []
    for key, raw in values.items():
        item, count = None, 0
        if raw.type is ValueType.ARRAY:
            number, count = struct.unpack_from("<IQ", raw.data)
            item = ValueType(number)
        entries[key] = _Entry(raw.type, at, at + len(raw.data), item, count)
        at += len(raw.data)
        parts.append(raw.data)
    return Metadata(BytesMap(path, b"".join(parts)), entries)


def read_metadata(cursor: Cursor, n: int) -> Metadata:
    """Walk over the `n` key-value pairs at `cursor` and check them; no array is decoded.

    Raises FormatError naming the key: bad or repeated keys, unknown types, lengths past the end of
    the file, bools other than 0 and 1, arrays nested deeper than MAX_DEPTH."""
    entries: dict[str, _Entry] = {}
    for i in range(n):
        key = cursor.name(f"the name of key {i}")
        if key in entries:
            raise cursor.map.error(
                f"the metadata key {quoted(key)} occurs twice (the second is key {i}); convert the "
                "model again, or remove one of them"
            )
        what = f"the value of {quoted(key)}"
        type_ = _value_type(cursor, what)
        start = cursor.at
        item, count = _skip_value(cursor, type_, what, 0)
        entries[key] = _Entry(type_, start, cursor.at, item, count)
    return Metadata(cursor.map, entries)


def _value_type(cursor: Cursor, what: str) -> ValueType:
    id_ = cursor.u32(f"the type of {what}")
    try:
        return ValueType(id_)
    except ValueError:
        raise cursor.map.error(
            f"{what} at byte {cursor.at - 4} has the type id {id_}, which GGUF does not define "
            f"(0 to {max(ValueType)} are); the file is damaged: download or copy it again"
        ) from None


def _skip_value(
    cursor: Cursor, type_: ValueType, what: str, depth: int
) -> tuple[ValueType | None, int]:
    """Steps over a value; returns the item type and the count of an array."""
    if type_ is ValueType.STRING:
        cursor.skip(cursor.u64(f"the length of {what}"), what)
        return None, 0
    if type_ is not ValueType.ARRAY:
        at = cursor.skip(SCALARS[type_].itemsize, what)
        if type_ is ValueType.BOOL:
            _check_bools(cursor.map, at, 1, what)
        return None, 0

    if depth == MAX_DEPTH:
        raise cursor.map.error(
            f"{what} nests arrays more than {MAX_DEPTH} deep at byte {cursor.at}; the file is "
            "damaged, or its converter must write a flat array"
        )
    item = _value_type(cursor, what)
    n = cursor.u64(f"the length of {what}")
    if item is ValueType.STRING:
        _skip_strings(cursor, n, what)
    elif item is ValueType.ARRAY:
        _need(cursor, n, _ARRAY_HEAD, what)
        cursor.spend(16 * n, what)
        for _ in repeat(None, n):
            _skip_value(cursor, item, what, depth + 1)
    else:
        at = cursor.skip(n * SCALARS[item].itemsize, what)
        if item is ValueType.BOOL:
            cursor.spend(n, what)
            _check_bools(cursor.map, at, n, what)
    return item, n


def _need(cursor: Cursor, n: int, least: int, what: str) -> None:
    """Raise FormatError unless `n` items of at least `least` bytes each can be in the file."""
    at = cursor.at
    cursor.skip(n * least, what)
    cursor.at = at


def _core() -> Any:
    """The native core, which reads strings ten times as fast, where something else has loaded it:
    whoever looks at files alone does without kernels."""
    return sys.modules.get("weft._native")


def _skip_strings(cursor: Cursor, n: int, what: str) -> None:
    _need(cursor, n, 8, what)
    cursor.spend(n, what)
    buffer, at = cursor.map.buffer, cursor.at
    length_at, core = _U64.unpack_from, _core()
    try:
        # The one hot loop of opening a file. A lying length sends `at` past the end of the file,
        # where the next read fails, or the check below does.
        if core is not None:
            at = core.strings_end(buffer, at, n)
        else:
            for _ in repeat(None, n):
                at += length_at(buffer, at)[0] + 8
    except (struct.error, OverflowError):
        at = cursor.map.size + 1
    if not 0 <= at <= cursor.map.size:
        raise cursor.map.error(
            f"{what}, an array of {n} strings at byte {cursor.at}, runs past the end of the file "
            f"at byte {cursor.map.size}; the file is cut short or damaged: download or copy it "
            "again"
        )
    cursor.at = at


def _check_bools(map_: FileMap, at: int, n: int, what: str) -> None:
    if n and int(map_.view(at, n).max()) > 1:
        raise map_.error(
            f"{what} at byte {at} holds a bool that is neither 0 nor 1; the file is damaged: "
            "download or copy it again"
        )


def _decode(
    map_: FileMap, entry: _Entry, items: int = sys.maxsize, string_bytes: int = sys.maxsize
) -> Value:
    """The value of a checked entry; see Metadata.peek for the limits."""
    if entry.type is ValueType.STRING:
        start = entry.start + 8
        return _text(map_.buffer[start : min(entry.end, start + string_bytes)])
    if entry.item is None:
        value = _SCALAR_STRUCTS[entry.type].unpack_from(map_.buffer, entry.start)[0]
        return cast("int | float | bool", value)
    if entry.item is ValueType.STRING:
        strings = _strings(map_, entry.start + _ARRAY_HEAD, min(entry.count, items), string_bytes)
        return [_text(s) for s in strings[0]]
    return _decode_array(map_, entry.start, items)[0]


def _decode_array(map_: FileMap, at: int, items: int = sys.maxsize) -> tuple[Value, int]:
    """The first `items` items of the array at byte `at`, and where they end."""
    item = ValueType(int.from_bytes(map_.buffer[at : at + 4], "little"))
    n = min(_U64.unpack_from(map_.buffer, at + 4)[0], items)
    at += _ARRAY_HEAD
    if item is ValueType.STRING:
        strings, at = _strings(map_, at, n)
        return [_text(s) for s in strings], at
    if item is ValueType.ARRAY:
        arrays: list[Value] = []
        for _ in repeat(None, n):
            value, at = _decode_array(map_, at)
            arrays.append(value)
        return arrays, at
    # A copy: small, aligned, and independent of the map.
    array = np.frombuffer(map_.buffer, SCALARS[item], n, at).copy()
    array.flags.writeable = False
    return array, at + array.nbytes


def _strings(map_: FileMap, at: int, n: int, most: int = sys.maxsize) -> tuple[list[bytes], int]:
    """The `n` checked strings at byte `at`, up to `most` bytes of each, and where they end."""
    buffer, length_at, core = map_.buffer, _U64.unpack_from, _core()
    if core is not None:
        return cast("tuple[list[bytes], int]", core.read_strings(buffer, at, n, most))
    strings = []
    if most == sys.maxsize:  # vocabularies have hundreds of thousands
        for _ in repeat(None, n):
            start = at + 8
            at = start + length_at(buffer, at)[0]
            strings.append(buffer[start:at])
        return strings, at
    for _ in repeat(None, n):
        start = at + 8
        at = start + length_at(buffer, at)[0]
        strings.append(buffer[start : min(at, start + most)])
    return strings, at


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
