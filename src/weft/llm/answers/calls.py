"""Reads one tool call, a character at a time, after the text that announced it."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Generator, Mapping, Sequence
from typing import Any

from weft.llm.answers.json_text import (
    NoCallError,
    Reader,
    as_object,
    members,
    object_in,
    read_items,
    read_object,
)
from weft.llm.answers.markers import HOLE, CallMarkers, bare
from weft.llm.answers.values import element_values, typed_value
from weft.llm.sampling.schema import resolved


class Heard:
    """Takes the characters of a call in JSON while it is read."""

    def __init__(self, markers: CallMarkers) -> None:
        self.name: str | None = None
        """The name, once the arguments begin."""
        self.pieces: list[str] = []
        """The arguments since they were last taken, without the bracket that ends them."""
        self._keyed = markers.kind == "keyed"
        self._keys = markers.name, markers.arguments
        self._said: str | None = None
        self._key = ""
        self._word: list[str] = []
        self._depth = 0
        self._least = 1  # the depth around the arguments
        self._quoted = self._escaped = self._is_value = self._inside = False

    def arguments(self, char: str) -> None:
        """Takes a character of arguments that stand alone."""
        self._inside, self._least = True, 0
        self._take(char)

    def call(self, char: str) -> None:
        """Takes a character of an object with name and arguments."""
        self._take(char)

    def _take(self, char: str) -> None:
        if self._quoted:
            self._in_string(char)
        elif char == '"':
            self._quoted, self._word = True, []
        elif char in ":," and self._depth == 1:
            self._is_value = char == ":"
        elif char in "{[":
            self._depth += 1
            if self._depth == 2 and char == "{" and self.name is None:
                self._begin()
        elif char in "}]":
            self._depth -= 1
            if self._depth == self._least:
                self._inside = False
        if self._inside:
            self.pieces.append(char)

    def _in_string(self, char: str) -> None:
        ends = char == '"' and not self._escaped
        self._escaped = char == "\\" and not self._escaped
        if not ends:
            self._word.append(char)
            return
        self._quoted = False
        if self._depth != 1 or self._inside:
            return
        try:
            text = str(json.loads(f'"{"".join(self._word)}"'))
        except ValueError:
            text = ""
        if not self._is_value:
            self._key = text
        elif self._key == self._keys[0]:
            self._said = text

    def _begin(self) -> None:
        """The arguments begin, if this is their key and the name is known."""
        if self._keyed:
            self._said = self._key
        elif self._key not in (self._keys[1], "arguments", "parameters"):
            return
        if self._said is not None:
            self.name, self._inside = self._said, True


CallReader = Generator[None, str, tuple[str, str]]
"""Takes characters; returns name and arguments after the last one; raises NoCallError if the text
is not a call."""

MAX_NAME = 256
_NAME = re.compile(r"[\w.:/-]+")
_KEY = re.compile(r"[^\s<>]+")
"""The name of an argument between marks."""
_WORD = re.compile(r"[\w.:-]")
_Schemas = Mapping[str, Mapping[str, Any]]


def read_call(
    markers: CallMarkers, opening: str, tools: _Schemas, heard: Heard | None = None
) -> CallReader:
    """A reader of one call, which the text `opening` must precede. `tools` has the schemas of
    arguments by the name of their function. `heard` is told what is known before the end."""
    if opening:
        yield from _literal(opening)
    if markers.kind in ("object", "keyed"):
        watch = heard.call if heard else None
        char = yield
        while char.isspace():
            char = yield
        first = "" if is_list_of_calls(markers, char) else char
        return object_call((yield from read_object(first, watch)), markers, tools)
    if markers.kind == "named":
        return (yield from _read_named(markers, tools, heard))
    if markers.kind in ("python", "loose"):
        return (yield from _read_loose(markers, tools))
    if markers.kind == "elements":
        return (yield from _read_elements(markers, tools))
    return (yield from _read_tagged(markers, tools))


def is_list_of_calls(markers: CallMarkers, char: str) -> bool:
    """True if `char`, the first behind the mark of a call, begins a list of calls instead."""
    return char == "[" and markers.kind == "object" and bool(markers.close)


def object_call(text: str, markers: CallMarkers, tools: Collection[str] = ()) -> tuple[str, str]:
    """Name and arguments of a call that is a JSON object; raises NoCallError if it is none."""
    parts = members(text)
    if markers.kind == "keyed":
        if len(parts) != 1:
            raise NoCallError
        ((name, arguments),) = parts.items()
    else:
        name = json.loads(parts.get(markers.name, "null"))
        keys = (markers.arguments, "arguments", "parameters")
        arguments = next((parts[key] for key in keys if key in parts), "{}")
        arguments = "{}" if arguments == "null" else arguments
    if not isinstance(name, str) or not (name in tools or _NAME.fullmatch(name)):
        raise NoCallError
    if arguments.startswith('"'):  # the object is written as a JSON text
        arguments = object_in(json.loads(arguments))
    if as_object(arguments) is None:
        raise NoCallError
    return name, arguments


def _read_named(markers: CallMarkers, tools: _Schemas, heard: Heard | None) -> CallReader:
    stop = bare(markers.after_name)
    name, char = yield from _read_name(stop[:1] or "{", tools)
    if stop:
        yield from _literal(stop, char)
    if heard:
        heard.name = name
    watch = heard.arguments if heard else None
    arguments = yield from read_object("" if stop else char, watch)
    if as_object(arguments) is None:
        raise NoCallError
    return name, arguments


def _read_loose(markers: CallMarkers, tools: _Schemas) -> CallReader:
    """Kinds python and loose: the name, and pairs of keys and values in brackets."""
    open_, close, equals = ("(", ")", "=") if markers.kind == "python" else ("{", "}", ":")
    name, char = yield from _read_name(open_, tools)
    if char != open_:
        raise NoCallError
    text = yield from _read_bracket(close, markers.quote)
    keys = _properties(tools.get(name))
    return name, _json(read_items(text, markers.quote, equals, keys))


def _read_bracket(close: str, quote: str) -> Reader:
    """Reads up to the bracket that closes an open one, past those in quotes."""
    text: list[str] = []
    stack, quoted, escaped = [close], "", False
    pairs = {"(": ")", "[": "]", "{": "}"}
    while stack:
        char = yield
        text.append(char)
        if quoted:
            ends = "".join(text[-len(quoted) :]) == quoted and not escaped
            escaped = char == "\\" and not escaped and len(quoted) == 1
            quoted = "" if ends else quoted
        elif quote and "".join(text[-len(quote) :]) == quote:
            quoted = quote
        elif char in "'\"" and not (quote and char in quote):
            quoted = char
        elif char in pairs:
            stack.append(pairs[char])
        elif char == stack[-1]:
            stack.pop()
        elif char in pairs.values():
            raise NoCallError
        if len(stack) > 100:
            raise NoCallError
    return "".join(text[:-1])


def _read_elements(markers: CallMarkers, tools: _Schemas) -> CallReader:
    stop = bare(markers.after_name)
    name, char = yield from _read_name(stop[:1], tools)
    yield from _literal(stop, char)
    text = yield from _until(markers.close)
    return name, _json(element_values(text, markers.quote, tools.get(name, {})))


def _read_tagged(markers: CallMarkers, tools: _Schemas) -> CallReader:
    starts = bare(markers.after_name), bare(markers.key_open), bare(markers.close)
    name, char = yield from _read_name("".join(start[:1] for start in starts), tools)
    if starts[0]:
        yield from _literal(starts[0], char)
        char = ""
    root = tools.get(name, {})
    types = _properties(root)
    arguments: dict[str, Any] = {}
    which = yield from _either(starts[1:], char)
    while which == 0:
        key, first = yield from _read_name(bare(markers.value_open)[0], types, _KEY)
        word = yield from _literal(markers.value_open, first)
        text, which = yield from _until_either(markers.value_close, starts[1:])
        text = text.removeprefix(markers.padding).removesuffix(markers.padding)
        is_text = bool(markers.text_mark) and word == markers.text_mark
        arguments[key] = text if is_text else typed_value(text, types.get(key), root)
    return name, _json(arguments)


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:  # a number that is too large
        raise NoCallError from None


def _properties(schema: Any) -> Mapping[str, Any]:
    """The schemas of arguments by name."""
    whole = resolved(schema, schema)
    own = whole.get("properties") if isinstance(whole, Mapping) else None
    return own if isinstance(own, Mapping) else {}


def _read_name(
    stops: str, known: Collection[str] = (), form: re.Pattern[str] = _NAME
) -> Generator[None, str, tuple[str, str]]:
    """Reads a name, and the first character behind it. It is one of `known`, which may have any
    characters, or of this form."""
    text: list[str] = []
    while len(text) < MAX_NAME:
        char = yield
        if char.isspace() and not text:
            continue
        name = "".join(text)
        ends = char in stops or char.isspace()
        if ends and (name in known or not any(one.startswith(name + char) for one in known)):
            while char.isspace():
                char = yield
            if name not in known and not form.fullmatch(name):
                break
            return name, char
        text.append(char)
    raise NoCallError


def _literal(text: str, first: str = "") -> Generator[None, str, str]:
    """Reads exactly `text`, ignoring white space; returns the word in the place of its hole. No
    letter may follow a hole."""
    text = bare(text)
    before, hole, behind = text.partition(HOLE)
    if before:
        yield from _either((before,), first)
        first = ""
    if not hole:
        return ""
    word: list[str] = []
    while len(word) < MAX_NAME:
        char = first or (yield)
        first = ""
        if not _WORD.fullmatch(char):
            break
        word.append(char)
    while char.isspace():
        char = yield
    if behind:
        yield from _literal(behind, char)
    return "".join(word)


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


_GAP = 64
"""Maximum number of characters of white space between the marks behind a value."""


def _until_either(end: str, texts: Sequence[str]) -> Generator[None, str, tuple[str, int]]:
    """Reads up to `end` with one of `texts` behind it; returns the text before it and the index.
    An `end` that none of them follows is a part of the text."""
    loose = [r"\s*".join(map(re.escape, text)) for text in texts]
    patterns = [re.compile(rf"{re.escape(end)}\s{{0,{_GAP}}}{text}\Z") for text in loose]
    reach = [len(end) + 2 * _GAP + len(text) for text in texts]
    read: list[str] = []
    while True:
        read.append((yield))
        for i, text in enumerate(texts):
            if read[-1] != text[-1:]:
                continue
            tail = "".join(read[-reach[i] :])
            if match := patterns[i].search(tail):
                return "".join(read[: len(read) - len(tail) + match.start()]), i
