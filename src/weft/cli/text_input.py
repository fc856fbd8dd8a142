"""Text for a command: from its line, a file, or standard input."""

from __future__ import annotations

import sys
from pathlib import Path

from weft.errors import ContextError

__all__ = ["read_file", "read_text"]


def read_text(text: str | None, file: Path | None) -> str:
    """`text`, or what `file` holds; without both, or for `-`, standard input, to its end.

    Raises ContextError for both at once and for a file that cannot be read."""
    if text is not None and file is not None:
        raise ContextError("give a text or --file, not both")
    if file is not None and str(file) != "-":
        return read_file(file)
    if text is not None and text != "-":
        return text
    return _decoded(sys.stdin.buffer.read(), "standard input")


def read_file(file: Path) -> str:
    """The text of a file, UTF-8; raises ContextError where there is none."""
    try:
        return _decoded(file.read_bytes(), str(file))
    except OSError as error:
        raise ContextError(f"{file}: {error.strerror or error}") from None


def _decoded(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ContextError(
            f"{where}: byte {error.start} is no UTF-8; convert the text first"
        ) from None
