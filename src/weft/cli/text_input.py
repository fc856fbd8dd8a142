"""Text for a command: from its line, a file, or standard input."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import BinaryIO

from weft.errors import ContextError
from weft.files import MOST_BYTES

__all__ = ["read_file", "read_line", "read_text", "unescaped"]


def read_text(text: str | None, file: Path | None) -> str:
    """`text`, or what `file` holds; without both, or for `-`, standard input, to its end.

    Raises ContextError for both at once and for a file that cannot be read."""
    if text is not None and file is not None:
        raise ContextError("give a text or --file, not both")
    if file is not None and str(file) != "-":
        return read_file(file)
    if text is not None and text != "-":
        return text
    return _decoded(_bounded(sys.stdin.buffer, "standard input"), "standard input")


def read_file(file: Path) -> str:
    """The text of a file, UTF-8, with line ends of any system as `\\n`; raises ContextError where
    there is none, or more than `MOST_BYTES`."""
    try:
        with file.open("rb") as opened:
            return _decoded(_bounded(opened, str(file)), str(file))
    except OSError as error:
        raise ContextError(f"{file}: {error.strerror or error}") from None


def read_line() -> str:
    """The next line of standard input with what ends it, empty at its end.

    Raises ContextError for one that is too long or no UTF-8."""
    try:
        line = sys.stdin.readline(MOST_BYTES)
        line.encode()  # lone surrogates stand for bytes that are none
    except UnicodeError:
        raise ContextError("standard input: a line is no UTF-8; convert the text first") from None
    if len(line) == MOST_BYTES:
        raise ContextError(f"standard input: a line of more than {MOST_BYTES >> 20} MiB")
    return line


def unescaped(text: str) -> str:
    r"""A text whose `\n`, `\t`, `\r`, `\\`, `\'`, `\"` and `\x41` stand for one character each."""
    short = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}
    return re.sub(
        r"\\(?:x([0-9a-fA-F]{2})|([ntr\\'\"]))",
        lambda found: chr(int(found[1], 16)) if found[1] else short[found[2]],
        text,
    )


def _bounded(stream: BinaryIO, where: str) -> bytes:
    data = stream.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ContextError(f"{where}: more than {MOST_BYTES >> 20} MiB of text; give it in parts")
    return data


def _decoded(data: bytes, where: str) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ContextError(
            f"{where}: byte {error.start} is no UTF-8; convert the text first"
        ) from None
    return text.replace("\r\n", "\n")
