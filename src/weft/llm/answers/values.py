"""The values of arguments that are written without quotes, by the schemas of tools."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from weft.llm.answers.json_text import MAX_DEPTH, NoCallError
from weft.llm.answers.loose import read_value

__all__ = ["element_values", "typed_value"]

_CDATA = "<![CDATA[", "]]>"


def typed_value(text: str, schema: Any) -> Any:
    """The value of an argument that was written without quotes, by the type of its schema: text
    that is neither JSON nor a literal of Python is itself."""
    if text.startswith(_CDATA[0]) and text.endswith(_CDATA[1]):
        return text[len(_CDATA[0]) : -len(_CDATA[1])]
    kinds = _types(schema)
    if kinds == {"string"}:
        return text
    try:
        value = json.loads(text, parse_constant=_refused)
    except (ValueError, RecursionError):
        if "string" in kinds or text.strip()[:1] not in ("{", "[", "(", "T", "F", "N"):
            return text
        try:
            return read_value(text)
        except (NoCallError, ValueError):
            return text
    if isinstance(value, float) and value - value != 0:  # too large for a number
        return text
    return value


def _refused(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _types(schema: Any) -> set[str]:
    """The types that a schema allows; empty: it does not say."""
    if not isinstance(schema, Mapping):
        return set()
    kind = schema.get("type")
    if isinstance(kind, str):
        return {kind}
    if isinstance(kind, list):
        return {k for k in kind if isinstance(k, str)}
    values = schema.get("enum")
    if isinstance(values, list) and values and all(isinstance(v, str) for v in values):
        return {"string"}
    return set()


def element_values(text: str, mark: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call whose text is elements, `mark<key>value mark</key>`. Raises
    NoCallError if elements are not closed."""
    pieces = re.split(rf"{re.escape(mark)}<(/?)([\w.:-]+)>", text)
    value = _element(iter(_tokens(pieces)), "", schema, 0)
    return value if isinstance(value, dict) else {}


def _tokens(pieces: list[str]) -> list[tuple[str, str]]:
    """(kind, text) of a split text: kind is "" for text, "<" and "</" for tags."""
    tokens = [("", pieces[0])]
    for i in range(1, len(pieces), 3):
        tokens += [("<" + pieces[i], pieces[i + 1]), ("", pieces[i + 2])]
    return tokens


def _element(tokens: Any, name: str, schema: Any, depth: int) -> Any:
    """The value of the element `name`, whose opening tag was read."""
    if depth > MAX_DEPTH:
        raise NoCallError
    said: list[str] = []
    parts: list[tuple[str, Any]] = []
    closed = not name
    for kind, text in tokens:
        if kind == "":
            said.append(text)
        elif kind == "<":
            parts.append((text, _element(tokens, text, _inner(schema, text), depth + 1)))
        elif text == name:
            closed = True
            break
        else:
            raise NoCallError
    if not closed:
        raise NoCallError
    if parts or not name:
        if "".join(said).strip():
            raise NoCallError
        is_list = bool(name) and all(key == "item" for key, _ in parts)
        return [value for _, value in parts] if is_list else dict(parts)
    written = "".join(said)
    kinds = _types(schema)
    if not written.strip() and kinds and "string" not in kinds:
        return {"array": [], "object": {}}.get(next(iter(kinds)))
    return typed_value(written, schema)


def _inner(schema: Any, key: str) -> Any:
    if not isinstance(schema, Mapping):
        return None
    if key == "item" and "items" in schema:
        return schema["items"]
    properties = schema.get("properties")
    return properties.get(key) if isinstance(properties, Mapping) else None
