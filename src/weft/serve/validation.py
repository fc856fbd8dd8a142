"""Checks of a body's fields: errors as sentences that name the field as the client wrote it, and
fields of other servers that narrow an answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from annotated_types import Ge, Le
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from weft.serve.errors import ApiError

_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "finite": "a finite number",
    "bool": "true or false",
    "string": "a text",
    "list": "a list",
    "dict": "an object",
    "model": "an object",
}
"""Descriptions of types, by the first word of pydantic's names of errors."""
_SHOWN = 60
"""Maximum number of characters of a value that an error repeats."""


def problem_of(error: ValidationError, body: type[BaseModel], data: Any) -> ApiError:
    """The first error in `data`, which is not a valid `body`."""
    if not isinstance(data, dict):
        return ApiError(
            400, "the body is no JSON object; send one, with Content-Type: application/json"
        )
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][0]) if first["loc"] else "the body"
    if first["type"] == "missing":
        whole = ".".join(map(str, first["loc"]))
        return ApiError(400, f"{whole} is missing; {_must(first, body)}", whole)
    if first["type"] == "value_error":
        where, why = ".".join(map(str, first["loc"])), str(first["ctx"]["error"])
        return ApiError(400, why if why.startswith(where) else f"{where}: {why}", where)
    field = body.model_fields.get(name)
    if field is not None and field.description:  # pydantic has an error for each form of the field
        text = f"{name} is {shown(data[name])}; it must be {field.description}"
        return ApiError(400, text, name)
    where = ".".join(map(str, first["loc"]))
    return ApiError(400, f"{where} is {shown(first['input'])}; {_must(first, body)}", where)


def shown(value: Any) -> str:
    """A value as JSON, shortened."""
    if isinstance(value, list | str):
        value = value[:_SHOWN]
    elif isinstance(value, dict):
        value = dict(islice(value.items(), _SHOWN))
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 4]} ..."


def _must(first: ErrorDetails, body: type[BaseModel]) -> str:
    """Says what the value must be."""
    kind = first["type"]
    if kind in ("greater_than_equal", "less_than_equal"):
        return f"it must be {_range(first, body)}"
    if kind == "literal_error":
        return f"it must be {first['ctx']['expected']}"
    field = body.model_fields.get(str(first["loc"][0])) if first["loc"] else None
    if kind == "missing" and field is not None and field.description:
        return f"it must be {field.description}"
    if kind == "missing":
        return "it must be given"
    return f"it must be {_KINDS.get(kind.partition('_')[0], 'something else')}"


def _range(first: ErrorDetails, body: type[BaseModel]) -> str:
    """The allowed range, such as `0 to 2` or `1 or more`."""
    context = first["ctx"]
    low, high = context.get("ge"), context.get("le")
    for bound in _bounds(body, first["loc"]):
        low = bound.ge if low is None and isinstance(bound, Ge) else low
        high = bound.le if high is None and isinstance(bound, Le) else high
    if high is None:
        return f"{low:g} or more"
    return f"{high:g} or less" if low is None else f"{low:g} to {high:g}"


def _bounds(body: type[BaseModel], place: Sequence[int | str]) -> Iterator[Any]:
    """The bounds of a field's values, in its type or in the parts of its type."""
    field = body.model_fields[str(place[0])]
    stack = [*field.metadata, field.annotation]
    while stack:
        part = stack.pop()
        if isinstance(part, Ge | Le):
            yield part
        stack += getattr(part, "__metadata__", ())
        stack += getattr(part, "metadata", ())
        if hasattr(part, "__args__"):
            stack += part.__args__


IDLE = frozenset(("guided_decoding_backend", "guided_whitespace_pattern"))
"""Fields about how a constraint is computed, which do not change what satisfies it."""
_STRUCTURED = {
    "json": "guided_json",
    "regex": "guided_regex",
    "choice": "guided_choice",
    "grammar": "guided_grammar",
}
"""The fields of vLLM's `structured_outputs`, and vLLM's older names for them."""
_INSTEAD = {
    "bad_words": "give logit_bias",
    "allowed_token_ids": "give grammar or regex",
    "structural_tag": "give grammar",
    "functions": "it is the older form of tools; give tools",
    "grammar_lazy": "give tools, or grammar without it",
}
"""Fields that narrow an answer and are not supported, and what to send instead."""
_MARKS = re.compile(r"[\\.+*?()|\[\]{}^$&~#-]")


def with_constraints(body: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """A body in which `structured_outputs` are fields of their own and `guided_choice` is a regular
    expression. Fields of `known` stay. Raises ApiError for those that cannot be held."""
    made = dict(body)
    structured = made.get("structured_outputs")
    if structured is not None:
        del made["structured_outputs"]
        made |= _structured(structured)
    for name, instead in _INSTEAD.items():
        if name not in known and made.get(name) not in (None, False, [], {}, ""):
            raise ApiError(400, f"{name} is not held here; {instead}", name, "unsupported")
    if isinstance(made.get("guided_choice"), list):
        made["guided_choice"] = _choice(made["guided_choice"])
    return made


def _structured(given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise ApiError(
            400, "structured_outputs is an object with json, regex, choice or grammar",
            "structured_outputs",
        )  # fmt: skip
    made: dict[str, Any] = {}
    for name, value in given.items():
        if name in _STRUCTURED:
            made[_STRUCTURED[name]] = value
        elif name == "json_object":
            made |= {"guided_json": {"type": "object"}} if value else {}
        elif value not in (None, False) and not name.startswith("disable_"):
            where = f"structured_outputs.{name[:60]}"
            raise ApiError(
                400, f"{where} is not held here; there are json, json_object, regex, choice and "
                "grammar", where, "unsupported",
            )  # fmt: skip
    return made


def _choice(texts: list[Any]) -> str:
    """A regular expression of these texts."""
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise ApiError(400, "guided_choice is a list of texts, none empty", "guided_choice")
    return "|".join(_MARKS.sub(r"\\\g<0>", text) for text in texts)
