"""Reads JSON within other text, a character at a time, and keeps it as it was written."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator
from json.decoder import scanstring  # type: ignore[attr-defined]

__all__ = ["Reader", "as_object", "members", "read_object"]

Reader = Generator[None, str, str]
"""Takes a character with each `send`; returns the text after the last one."""

MAX_DEPTH = 100
"""Deepest nesting of brackets in the arguments of a call."""

_SPACE = re.compile(r"[ \t\r\n]*")


class NoCallError(Exception):
    """The text is no call."""


def read_object(first: str = "", watch: Callable[[str], None] | None = None) -> Reader:
    """Reads the text of an object. `first` is a character that was read before; `watch` is called
    with every character of the object."""
    char = first or (yield)
    while char.isspace():
        char = yield
    if char != "{":
        raise NoCallError
    text, depth, quoted, escaped = [char], 1, False, False
    if watch is not None:
        watch(char)
    while depth:
        char = yield
        text.append(char)
        if watch is not None:
            watch(char)
        if quoted:
            quoted = escaped or char != '"'
            escaped = char == "\\" and not escaped
        elif char == '"':
            quoted = True
        elif char in "{[":
            depth += 1
        elif char in "}]":
            depth -= 1
        if depth > MAX_DEPTH:
            raise NoCallError
    return "".join(text)


def as_object(text: str) -> dict[str, object] | None:
    """Parses a JSON object; None: the text is none."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def members(text: str) -> dict[str, str]:
    """The values of an object by key, each as it was written. Raises NoCallError if the text is
    not a JSON object."""
    if as_object(text) is None:
        raise NoCallError
    decoder = json.JSONDecoder()
    values: dict[str, str] = {}
    at = _after_space(text, 1)
    while text[at] != "}":
        key, at = scanstring(text, at + 1)
        start = _after_space(text, _after_space(text, at) + 1)
        _, at = decoder.raw_decode(text, start)
        values[key] = text[start:at]
        at = _after_space(text, at)
        if text[at] == ",":
            at = _after_space(text, at + 1)
    return values


def _after_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
