"""Rules of a grammar for calls whose arguments are not one JSON object."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from weft.llm.answers.markers import HOLE, CallMarkers
from weft.llm.answers.terminals import Terminals, json_rule
from weft.llm.answers.values import listed_in, types_of
from weft.llm.sampling.schema import resolved

__all__ = ["argument_rules"]

_LONGEST = 4096
"""Most characters that a length in a schema is followed to."""


def argument_rules(
    markers: CallMarkers, text: Terminals, number: int, name: str, schema: Mapping[str, Any]
) -> list[str]:
    """The rule `call{number}` of a call of the tool `name`, and those of its arguments. Required
    arguments come first, in the order of the schema, then others."""
    properties = schema.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    required = [key for key in schema.get("required") or () if key in properties]
    keys = [*required, *(key for key in properties if key not in required)]
    rules: list[str] = []
    for i, key in enumerate(keys):
        rules += _argument(markers, text, f"call{number}arg{i}", key, properties[key], schema)
    brackets = {"python": ('"("', '")"'), "loose": ('"{"', '"}"')}.get(markers.kind, ("", ""))
    start = f"{_quoted(name)} {text(markers.after_name)} {brackets[0]}"
    n = len(required)
    parts = [f"call{number}arg{i}" for i in range(len(keys))]
    if not brackets[0]:
        inner = " ".join(
            f"space {part}" if i < n else f"(space {part})?" for i, part in enumerate(parts)
        )
        return [f"call{number}: {start} {inner}", *rules]
    return [f"call{number}: {start} {_listed(parts, n)} {brackets[1]}", *rules]


def _listed(parts: list[str], n_required: int) -> str:
    """Parts with commas between them; those behind the first `n_required` may be missing."""
    if n_required:
        written = ' "," space '.join(parts[:n_required])
        return " ".join([written, *(f'("," space {part})?' for part in parts[n_required:])])
    # each may be the first: the alternatives differ in that
    ways = [
        " ".join([part, *(f'("," space {other})?' for other in parts[i + 1 :])])
        for i, part in enumerate(parts)
    ]
    return f"({' | '.join(ways)})?" if ways else ""


def _argument(
    markers: CallMarkers, text: Terminals, rule: str, key: str, schema: Any, root: Any
) -> list[str]:
    """The rule of one argument; `root` is the schema of all of them."""
    schema = resolved(schema, root)
    schema = schema if isinstance(schema, Mapping) else {}
    values = _texts(schema)
    is_text = bool(values) or schema.get("type") == "string"
    if markers.kind == "python":
        start = f'{rule}: {_quoted(key)} "="'
        if not is_text:
            return [f"{start} {json_rule(schema, root)}"]
        return [f"{start} {_either(list(map(_python, values))) if values else _PYTHON_TEXT}"]
    if markers.kind == "loose":
        start = f'{rule}: {_quoted(key)} ":"'
        if not is_text:
            return [f"{start} {json_rule(schema, root)}"]
        opening = f'{_quoted(key)} ":" {text(markers.quote)}'
        return _value(text, rule, opening, markers.quote, schema, root)
    if markers.kind == "elements":
        opening = text.exact(f"{markers.quote}<{key}>")
        closing = f"{markers.quote}</{key}>"
        return _value(text, rule, opening, closing, schema, root)
    value_open = markers.value_open.replace(HOLE, _mark(markers, schema, root))
    opening = (
        f"{text(markers.key_open)} {_quoted(key)} {text(value_open)} "
        f"{_quoted(markers.padding) if markers.padding else ''}"
    )
    return _value(text, rule, opening, markers.padding + markers.value_close, schema, root)


def _value(
    text: Terminals, rule: str, opening: str, closing: str, schema: Mapping[str, Any], root: Any
) -> list[str]:
    """A rule of a value between `opening`, which is terminals, and the text `closing`."""
    values = _texts(schema)
    if values:
        return [f"{rule}: {opening} {_either(values)} {text.exact(closing)}"]
    if _is_text(schema, root):
        return [
            f"{rule}: {opening} {rule}v {text.behind(closing)}",
            text.until(f"{rule}v", closing, *_lengths(schema)),
        ]
    return [f"{rule}: {opening} {json_rule(schema, root)} {text.exact(closing)}"]


def _lengths(schema: Mapping[str, Any]) -> tuple[int, int | None]:
    """The least and the most characters of a text; None: any number."""
    least, most = schema.get("minLength"), schema.get("maxLength")
    low = least if isinstance(least, int) and 0 <= least <= _LONGEST else 0
    high = most if isinstance(most, int) and low <= most <= _LONGEST else None
    return low, high


def _mark(markers: CallMarkers, schema: Mapping[str, Any], root: Any) -> str:
    """The word in front of a value that says whether it is text."""
    kind = schema.get("type")
    if _texts(schema) or _is_text(schema, root):
        return markers.text_mark
    if markers.text_mark == "true":
        return "false"
    return "number" if kind == "integer" else str(kind)


_OTHERS = ("enum", "const", "anyOf", "oneOf", "allOf", "$ref")
"""What says of a schema without a type that its values are not just any text."""


def _is_text(schema: Mapping[str, Any], root: Any) -> bool:
    """True if a value without quotes may be any text."""
    kinds = types_of(schema, root)
    if not kinds:
        return not any(name in schema for name in _OTHERS)
    return "string" in kinds and not listed_in(schema, root)


def _texts(schema: Mapping[str, Any]) -> list[str]:
    """The texts that a schema lists; empty: it lists none, or other values too."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list) and values and all(isinstance(v, str) for v in values):
        return values
    return []


_PYTHON_TEXT = r"""/'([^'\\\n]|\\[\\'"nrt])*'/"""
"""A string in single quotes."""


def _python(text: str) -> str:
    """A text as a literal in single quotes."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"'{escaped}'"


def _either(values: list[str]) -> str:
    return f"({' | '.join(map(_quoted, values))})"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
