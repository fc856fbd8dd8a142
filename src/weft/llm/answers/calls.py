"""Reads one tool call, a character at a time, after the text that announced it."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from weft.llm.answers.json_text import NoCallError, Reader, as_object, members, read_object
from weft.llm.answers.markers import CallMarkers, bare

__all__ = ["CallReader", "read_call"]

CallReader = Generator[None, str, tuple[str, str]]
"""Takes characters; returns name and arguments after the last one; raises NoCallError if the text
is no call."""

MAX_NAME = 256
_NAME = re.compile(r"[\w.:/-]+")


def read_call(
    markers: CallMarkers, opening: str, tools: Mapping[str, Mapping[str, Any]]
) -> CallReader:
    """A reader of one call, which the text `opening` must precede. `tools` has the schemas of
    arguments by the name of their function."""
    yield from _literal(opening)
    if markers.kind == "object":
        return (yield from _read_json(markers))
    if markers.kind == "named":
        return (yield from _read_named(markers))
    return (yield from _read_tagged(markers, tools))


def _read_json(markers: CallMarkers) -> CallReader:
    return object_call((yield from read_object()), markers)


def object_call(text: str, markers: CallMarkers) -> tuple[str, str]:
    """Name and arguments of a call that is a JSON object; raises NoCallError if it is none."""
    parts = members(text)
    name = json.loads(parts.get(markers.name, "null"))
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise NoCallError
    keys = (markers.arguments, "arguments", "parameters")
    arguments = next((parts[key] for key in keys if key in parts), "{}")
    if arguments.startswith('"'):  # the object is written as a JSON text
        arguments = json.loads(arguments)
    if as_object(arguments) is None:
        raise NoCallError
    return name, arguments


def _read_named(markers: CallMarkers) -> CallReader:
    stop = bare(markers.after_name)
    name, char = yield from _read_name(stop[:1] or "{")
    yield from _literal(stop, char)
    arguments = yield from read_object("" if stop else char)
    if as_object(arguments) is None:
        raise NoCallError
    return name, arguments


def _read_tagged(markers: CallMarkers, tools: Mapping[str, Mapping[str, Any]]) -> CallReader:
    starts = bare(markers.after_name), bare(markers.key_open), bare(markers.close)
    name, char = yield from _read_name("".join(start[:1] for start in starts))
    if starts[0]:
        yield from _literal(starts[0], char)
        char = ""
    types = tools.get(name, {}).get("properties", {})
    arguments: dict[str, Any] = {}
    while (yield from _either(starts[1:], char)) == 0:
        char = ""
        key, first = yield from _read_name(bare(markers.value_open)[0])
        yield from _literal(bare(markers.value_open), first)
        text = yield from _until(markers.value_close)
        arguments[key] = _value(_unpadded(text, markers.padding), types.get(key))
    return name, json.dumps(arguments, ensure_ascii=False)


def _read_name(stops: str) -> Generator[None, str, tuple[str, str]]:
    """Reads a name, and the first character behind it."""
    text: list[str] = []
    while len(text) < MAX_NAME:
        char = yield
        if char.isspace() and not text:
            continue
        if char in stops or char.isspace():
            while char.isspace():
                char = yield
            name = "".join(text)
            if not _NAME.fullmatch(name):
                break
            return name, char
        text.append(char)
    raise NoCallError


def _literal(text: str, first: str = "") -> Generator[None, str, None]:
    """Reads exactly `text`, ignoring white space."""
    if text:
        yield from _either((bare(text),), first)


def _either(texts: Sequence[str], first: str = "") -> Generator[None, str, int]:
    """Reads one of `texts`, ignoring white space; returns its index."""
    word = ""
    while True:
        char = first or (yield)
        first = ""
        if char.isspace():
            continue
        word += char
        if word in texts:
            return texts.index(word)
        if not any(text.startswith(word) for text in texts):
            raise NoCallError


def _until(end: str) -> Reader:
    """Reads up to `end` and returns the text before it."""
    text: list[str] = []
    while True:
        text.append((yield))
        if text[-1] == end[-1] and "".join(text[-len(end) :]) == end:
            return "".join(text[: -len(end)])


def _unpadded(text: str, padding: str) -> str:
    return text.removeprefix(padding).removesuffix(padding) if padding else text


def _value(text: str, schema: Any) -> Any:
    """The value of an argument that was written without quotes, by the type of its schema."""
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    if kind == "string":
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return text if isinstance(value, float) and value - value != 0 else value  # NaN, infinity
