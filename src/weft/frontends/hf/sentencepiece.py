"""Reads the pieces of tokenizer.model, a protocol buffer of SentencePiece.

    ModelProto { repeated SentencePiece pieces = 1; TrainerSpec = 2; NormalizerSpec = 3; ... }
    SentencePiece { string piece = 1; float score = 2; Type type = 3; }

Source: sentencepiece_model.proto of SentencePiece. Three fields of two messages are read; the
library would be a dependency of every run for them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from weft.errors import FormatError

__all__ = ["Piece", "read_normalizer", "read_pieces"]

Piece = tuple[str, float, int]
"""A token's text, score and kind."""
MAX_BYTES = 256 << 20

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def read_pieces(path: Path) -> list[Piece]:
    """The pieces of a model, by id. Raises FormatError if the file is not one."""
    pieces: list[Piece] = []
    for field, value in _message(path):
        if field == 1 and isinstance(value, bytes):
            text, score, kind = "", 0.0, 1
            for inner, content in _fields(path, value):
                if inner == 1 and isinstance(content, bytes):
                    text = _utf8(path, content)
                elif inner == 2 and isinstance(content, bytes):
                    (score,) = struct.unpack("<f", content)
                elif inner == 3 and isinstance(content, int):
                    kind = content
            pieces.append((text, score, kind))
    if not pieces:
        raise FormatError(f"{path}: no tokens; this is not a SentencePiece model")
    return pieces


def read_normalizer(path: Path) -> dict[int, bytes | int]:
    """The fields of the message `normalizer_spec` by number: 2 is the table of characters, 3 is 1
    for a space in front of texts, 4 is 1 if repeated white space is removed."""
    for field, value in _message(path):
        if field == 3 and isinstance(value, bytes):
            return dict(_fields(path, value))
    return {}


def _message(path: Path) -> Iterator[tuple[int, bytes | int]]:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise FormatError(f"{path}: larger than {MAX_BYTES >> 20} MiB: not a tokenizer")
        return _fields(path, path.read_bytes())
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror or error}") from None


def _fields(path: Path, data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Numbers and contents of the fields of a message; 32-bit numbers are their four bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(path, data, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = _varint(path, data, at)
            yield key >> 3, value
            continue
        n = {_FIXED64: 8, _FIXED32: 4}.get(kind)
        if kind == _BYTES:
            n, at = _varint(path, data, at)
        if n is None or at + n > len(data):
            raise FormatError(f"{path}: not a SentencePiece model, or cut short at byte {at}")
        yield key >> 3, data[at : at + n]
        at += n


def _varint(path: Path, data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise FormatError(f"{path}: not a SentencePiece model, or cut short at byte {at}")


def _utf8(path: Path, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise FormatError(f"{path}: a token is not UTF-8; download the file again") from None
