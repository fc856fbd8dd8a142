"""Reads JSON within other text, a character at a time, and keeps it as it was written; reads values
that are written nearly as JSON: as Python's literals, or with other quotes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterable
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

Reader = Generator[None, str, str]
"""Takes a character with each `send`; returns the text after the last one."""

MAX_DEPTH = 100
"""Maximum nesting of brackets in the arguments of a call."""

_SPACE = re.compile(r"[ \t\r\n]*")


class NoCallError(Exception):
    """The text is not a call."""


def read_object(first: str = "", watch: Callable[[str], None] | None = None) -> Reader:
    """Reads the text of an object. `first` is a character that was read before; `watch` is called
    with every character of the object. Models write line ends and tabs in strings as they are:
    these are escaped here, so that the text is JSON."""
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
        written = char
        if quoted and char < " ":
            written = json.dumps(char)[2 if escaped else 1 : -1]
        text.append(written)
        if watch is not None:
            for one in written:
                watch(one)
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


def object_in(text: str) -> str:
    """The object that a text is, as `read_object` reads it. Raises NoCallError if it is none."""
    reader = read_object()
    next(reader)
    for at, char in enumerate(text):
        try:
            reader.send(char)
        except StopIteration as stop:
            if text[at + 1 :].strip():
                break
            return str(stop.value)
    raise NoCallError


def as_object(text: str) -> dict[str, object] | None:
    """Parses a JSON object; None: the text is not one."""
    try:
        value = json.loads(text, parse_constant=refuse)
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


def refuse(name: str) -> None:
    """Raises ValueError for NaN and Infinity, which Python reads and JSON does not have."""
    raise ValueError(f"{name} is not JSON")


_ANY_SPACE = re.compile(r"\s*")
_NUMBER = re.compile(r"-?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?")
_WORD = re.compile(r"[\w.$-]+")
_CONSTANTS = {"true": True, "True": True, "false": False, "False": False, "null": None,
              "None": None, "none": None}  # fmt: skip
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "\n": ""}
_CODES = {"x": 2, "u": 4, "U": 8}


def read_value(text: str, quote: str = "") -> Any:
    """The value that `text` is; `quote` is a mark around strings besides quotes. Raises NoCallError
    if it is none."""
    reader = _Reader(text, quote)
    value = reader.value(0)
    reader.finish()
    return value


def read_items(
    text: str, quote: str = "", equals: str = ":", keys: Iterable[str] = ()
) -> dict[str, Any]:
    """The values of `key: value, ...` by key, with `equals` in place of the colon; `keys` are known
    ones, which may have any characters. Raises NoCallError for other text."""
    reader = _Reader(text, quote, keys)
    items = reader.items("", equals, 0)
    reader.finish()
    return items


class _Reader:
    def __init__(self, text: str, quote: str, keys: Iterable[str] = ()) -> None:
        self._text, self._quote, self._at = text, quote, 0
        odd = sorted((key for key in keys if not _WORD.fullmatch(key)), key=len, reverse=True)
        self._odd = odd  # keys that no pattern knows

    def finish(self) -> None:
        """Raises NoCallError if text is left."""
        self._space()
        if self._at != len(self._text):
            raise NoCallError

    def value(self, depth: int) -> Any:
        """Reads one value."""
        if depth > MAX_DEPTH:
            raise NoCallError
        self._space()
        char = self._text[self._at : self._at + 1]
        if self._quote and self._takes(self._quote):
            return self._until(self._quote)
        if char in ("'", '"') and char:
            return self._string(char)
        if self._takes("{"):
            return self.items("}", ":", depth + 1)
        for open_, close in ("[]", "()"):
            if self._takes(open_):
                return self._list(close, depth + 1)
        return self._plain()

    def items(self, close: str, equals: str, depth: int) -> dict[str, Any]:
        """Reads pairs up to `close`, or to the end of the text."""
        values: dict[str, Any] = {}
        while not self._ends(close):
            key = self._key()
            self._space()
            if not self._takes(equals):
                raise NoCallError
            values[key] = self.value(depth)
            self._comma(close)
        return values

    def _list(self, close: str, depth: int) -> list[Any]:
        values = []
        while not self._ends(close):
            values.append(self.value(depth))
            self._comma(close)
        return values

    def _ends(self, close: str) -> bool:
        self._space()
        return self._takes(close) if close else self._at == len(self._text)

    def _comma(self, close: str) -> None:
        """Reads a comma, unless the end is next."""
        self._space()
        ends = self._text.startswith(close, self._at) if close else self._at == len(self._text)
        if not ends and not self._takes(","):
            raise NoCallError

    def _key(self) -> str:
        self._space()
        if self._quote and self._takes(self._quote):
            return self._until(self._quote)
        char = self._text[self._at : self._at + 1]
        if char in ("'", '"') and char:
            return self._string(char)
        odd = next((key for key in self._odd if key and self._takes(key)), None)
        return self._match(_WORD) if odd is None else odd

    def _plain(self) -> Any:
        number = _NUMBER.match(self._text, self._at)
        word = _WORD.match(self._text, self._at)
        if number and not (word and word.end() > number.end()):
            self._at = number.end()
            try:
                return json.loads(number[0])
            except ValueError:  # a point without digits, or too many of them
                return float(number[0])
        name = self._match(_WORD)
        if name not in _CONSTANTS:
            raise NoCallError
        return _CONSTANTS[name]

    def _string(self, quote: str) -> str:
        """A string with the escapes of Python and JSON."""
        self._at += 1
        parts: list[str] = []
        while True:
            char = self._text[self._at : self._at + 1]
            self._at += 1
            if not char:
                raise NoCallError
            if char == quote:
                text = "".join(parts)
                return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            parts.append(self._escape() if char == "\\" else char)

    def _escape(self) -> str:
        char = self._text[self._at : self._at + 1]
        self._at += 1
        if char not in _CODES or not char:
            return _ESCAPES.get(char, char if char in "'\"\\/" else "\\" + char)
        digits = self._text[self._at : self._at + _CODES[char]]
        if (
            not re.fullmatch(rf"[0-9a-fA-F]{{{_CODES[char]}}}", digits)
            or int(digits, 16) > 0x10FFFF
        ):
            raise NoCallError
        self._at += len(digits)
        return chr(int(digits, 16))

    def _until(self, end: str) -> str:
        at = self._text.find(end, self._at)
        if at < 0:
            raise NoCallError
        text = self._text[self._at : at]
        self._at = at + len(end)
        return text

    def _takes(self, text: str) -> bool:
        if not self._text.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _match(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._at)
        if match is None:
            raise NoCallError
        self._at = match.end()
        return match[0]

    def _space(self) -> None:
        match = _ANY_SPACE.match(self._text, self._at)
        self._at = match.end() if match else self._at
