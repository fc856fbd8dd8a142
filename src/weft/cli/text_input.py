"""Reads the text for a command: from its line, a file, or standard input."""

from __future__ import annotations

import os
import re
import select
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from weft.cli.console import note
from weft.errors import ContextError
from weft.files import MOST_BYTES

_PATIENCE = 2.0
"""Seconds without standard input until a note says that it is awaited."""


def read_text(text: str | None, file: Path | None) -> str:
    """The `text`, or the contents of `file`; without both, or for `-`, all of standard input.

    Raises ContextError if both are given or the file cannot be read."""
    if text is not None and file is not None:
        raise ContextError("give a text or --file, not both")
    if file is not None and str(file) != "-":
        return read_file(file)
    if text is not None and text != "-":
        return text
    return _decoded(_bounded(sys.stdin.buffer, "standard input"), "standard input")


def read_bytes(file: Path | None) -> bytes:
    """The bytes of `file`, or of standard input for None and `-`.

    Raises ContextError if it cannot be read or has more than `MOST_BYTES`."""
    if file is None or str(file) == "-":
        return _bounded(sys.stdin.buffer, "standard input")
    try:
        with file.open("rb") as opened:
            return _bounded(opened, str(file))
    except OSError as error:
        raise ContextError(f"{file}: {error.strerror or error}") from None


def read_file(file: Path) -> str:
    """Reads a UTF-8 file; lines may end as on any system. Raises ContextError if it cannot be read
    or has more than `MOST_BYTES`."""
    try:
        with file.open("rb") as opened:
            return _decoded(_bounded(opened, str(file)), str(file))
    except OSError as error:
        raise ContextError(f"{file}: {error.strerror or error}") from None


def read_line() -> str:
    """The next line of standard input with its end; empty at the end of the input.

    Raises ContextError for a line that is too long or not UTF-8."""
    try:
        line = sys.stdin.readline(MOST_BYTES)
        line.encode()  # raises for lone surrogates, which stand for bytes that are not UTF-8
    except UnicodeError:
        raise ContextError("standard input: a line is no UTF-8; convert the text first") from None
    if len(line) == MOST_BYTES:
        raise ContextError(f"standard input: a line of more than {MOST_BYTES >> 20} MiB")
    return line


def unescaped(text: str) -> str:
    r"""Replaces `\n`, `\t`, `\r`, `\\`, `\'`, `\"` and `\x41` by the characters they stand for."""
    short = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}
    return re.sub(
        r"\\(?:x([0-9a-fA-F]{2})|([ntr\\'\"]))",
        lambda match: chr(int(match[1], 16)) if match[1] else short[match[2]],
        text,
    )


def unescaped_texts(texts: Sequence[str] | None, escape: bool | None) -> list[str]:
    """Texts of the command line, unescaped unless `escape` is False."""
    return [text if escape is False else unescaped(text) for text in texts or ()]


def system_text(text: str | None, file: Path | None, escape: bool | None) -> str | None:
    """The system message: `text`, unescaped unless `escape` is False, or the contents of `file`."""
    if text is not None and file is not None:
        raise ContextError("give the system message as text or with --system-prompt-file, not both")
    if file is not None:
        return read_file(file).removesuffix("\n")
    return text if text is None or escape is False else unescaped(text)


def with_input(prompt: str) -> str:
    """The prompt, followed by standard input if that is a file or a pipe, on a line of its own."""
    if not _is_piped():
        return prompt
    text = _decoded(_bounded(sys.stdin.buffer, "standard input"), "standard input")
    return "\n".join([prompt, text.removesuffix("\n")]) if text.strip() else prompt


def _is_piped() -> bool:
    """True if standard input is a file or a pipe. Notes that a pipe without a text is awaited."""
    try:
        number = sys.stdin.fileno()
        mode = os.fstat(number).st_mode
    except (OSError, ValueError):  # closed, or no file of the system
        return not sys.stdin.isatty() if not sys.stdin.closed else False
    if stat.S_ISFIFO(mode) and os.name == "posix":
        if not select.select([number], [], [], _PATIENCE)[0]:
            note("the prompt is followed by standard input, which is awaited; < /dev/null: by none")
    return stat.S_ISREG(mode) or stat.S_ISFIFO(mode)


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
