"""The values of arguments that are written without quotes, by the schemas of tools."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from weft.llm.answers.json_text import MAX_DEPTH, NoCallError, read_value, refuse
from weft.llm.sampling.schema import resolved

_CDATA = "<![CDATA[", "]]>"


def typed_value(text: str, schema: Any, root: Any = None) -> Any:
    """The value of an argument that was written without quotes, by its schema, which may refer to
    others of `root`. Where text is allowed it is text, unless the schema lists the value itself;
    what is neither JSON nor a literal of Python is text, too."""
    if text.startswith(_CDATA[0]) and text.endswith(_CDATA[1]):
        return text[len(_CDATA[0]) : -len(_CDATA[1])]
    listed = listed_in(schema, root)
    kinds = types_of(schema, root)
    if text in listed or (not listed and "string" in kinds and not _is_null(text, kinds)):
        return text
    try:
        value = json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError):
        if "string" in kinds or text.strip()[:1] not in ("{", "[", "(", "T", "F", "N"):
            return text
        try:
            return read_value(text)
        except (NoCallError, ValueError):
            return text
    if listed and "string" in kinds and value not in listed:
        return text
    if isinstance(value, float) and value - value != 0:  # too large for a number
        return text
    return value


def _is_null(text: str, kinds: set[str]) -> bool:
    """True for null where a text or null may stand: nobody means the word."""
    return text.strip() in ("null", "None") and "null" in kinds


_DEPTH = 16
"""Maximum nesting of schemas in which types are looked for."""
_NAMES = {str: "string", bool: "boolean", type(None): "null", list: "array", dict: "object"}


def types_of(schema: Any, root: Any = None, depth: int = 0) -> set[str]:
    """The types that a schema allows; empty: it does not say."""
    schema = resolved(schema, root)
    if not isinstance(schema, Mapping) or depth > _DEPTH:
        return set()
    null = {"null"} if schema.get("nullable") is True else set()
    kind = schema.get("type")
    if isinstance(kind, str):
        return {kind} | null
    if isinstance(kind, list):
        return {k for k in kind if isinstance(k, str)} | null
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list) and values:
        return {_NAMES.get(type(value), "number") for value in values} | null
    for name in ("anyOf", "oneOf"):
        branches = schema.get(name)
        if isinstance(branches, list) and branches:
            kinds = [types_of(one, root, depth + 1) for one in branches]
            return set().union(*kinds) | null if all(kinds) else set()
    if not {"pattern", "minLength", "maxLength"}.isdisjoint(schema):
        return {"string"} | null
    every = schema.get("allOf")
    kinds = [types_of(one, root, depth + 1) for one in every] if isinstance(every, list) else []
    said = [kind for kind in kinds if kind]
    return set.intersection(*said) if said else set()


def listed_in(schema: Any, root: Any = None, depth: int = 0) -> list[Any]:
    """The values that a schema lists, in alternatives too; empty: it allows others."""
    schema = resolved(schema, root)
    if not isinstance(schema, Mapping) or depth > _DEPTH:
        return []
    if "const" in schema:
        return [schema["const"]]
    if isinstance(schema.get("enum"), list):
        return list(schema["enum"])
    if schema.get("type") == "null":
        return [None]
    for name in ("anyOf", "oneOf"):
        branches = schema.get(name)
        if isinstance(branches, list) and branches:
            lists = [listed_in(one, root, depth + 1) for one in branches]
            return [value for one in lists for value in one] if all(lists) else []
    return []


def element_values(text: str, mark: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call whose text is elements, `mark<key>value mark</key>`. Raises
    NoCallError if elements are not closed."""
    odd = sorted(_odd_keys(schema, 0), key=len, reverse=True)
    names = "|".join([*map(re.escape, odd), r"[\w.:-]+"])
    pieces = re.split(rf"{re.escape(mark)}<(/?)({names})>", text)
    value = _element(iter(_tokens(pieces)), "", resolved(schema, schema), 0, schema)
    return value if isinstance(value, dict) else {}


def _odd_keys(schema: Any, depth: int) -> set[str]:
    """The names of properties that are no plain words."""
    if isinstance(schema, list):
        return {key for one in schema for key in _odd_keys(one, depth + 1)}
    if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
        return set()
    own = schema.get("properties")
    odd = (
        {key for key in own if not re.fullmatch(r"[\w.:-]+", key)}
        if isinstance(own, Mapping)
        else set()
    )
    return odd.union(*(_odd_keys(one, depth + 1) for one in schema.values())) - {""}


def _tokens(pieces: list[str]) -> list[tuple[str, str]]:
    """(kind, text) of a split text: kind is "" for text, "<" and "</" for tags."""
    tokens = [("", pieces[0])]
    for i in range(1, len(pieces), 3):
        tokens += [("<" + pieces[i], pieces[i + 1]), ("", pieces[i + 2])]
    return tokens


def _element(tokens: Any, name: str, schema: Any, depth: int, root: Any = None) -> Any:
    """The value of the element `name`, whose opening tag was read; `root` is the whole schema."""
    if depth > MAX_DEPTH:
        raise NoCallError
    said: list[str] = []
    parts: list[tuple[str, Any]] = []
    closed = not name
    for kind, text in tokens:
        if kind == "":
            said.append(text)
        elif kind == "<":
            inner = resolved(_inner(schema, text), root)
            parts.append((text, _element(tokens, text, inner, depth + 1, root)))
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
    kinds = types_of(schema, root)
    if not written.strip() and kinds and "string" not in kinds:
        return {"array": [], "object": {}}.get(next(iter(kinds)))
    return typed_value(written, schema, root)


def _inner(schema: Any, key: str) -> Any:
    if not isinstance(schema, Mapping):
        return None
    if key == "item" and "items" in schema:
        return schema["items"]
    properties = schema.get("properties")
    return properties.get(key) if isinstance(properties, Mapping) else None
