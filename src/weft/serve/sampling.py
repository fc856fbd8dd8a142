"""Turns the fields of a request into `SamplingParams`.

Fields are those of the OpenAI API, and all options of `SamplingParams` by llama.cpp's names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from weft.errors import ContextError
from weft.llm import SamplingParams
from weft.llm.sampling import SAMPLING_OPTIONS
from weft.serve.errors import ApiError
from weft.serve.schema import SAMPLING_FIELDS, ChatBody, Generation

CONSTRAINTS = ("grammar", "json_schema", "regex")
MOST_STRINGS = 64
"""Maximum number of strings in `stop` or `dry_sequence_breakers` of a request."""
MOST_CHARACTERS = 8192
"""Maximum number of characters of all these strings together."""

_WHOLE_API = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repeat_last_n": -1}
"""The defaults of the OpenAI API that differ from those of the command line: all tokens can be
drawn, and penalties apply to the whole answer."""
_CUTS = frozenset(("temperature", "top_k", "top_p", "min_p"))
"""Options that decide which tokens can be drawn. A request that names none of them gets weft's own
values, because small models draw nonsense from the whole vocabulary."""


def looks_at_prompt(body: Generation) -> bool:
    """True if penalties count the prompt too. They do if the request has one of llama.cpp's fields
    for them; the penalties of the OpenAI API count only the answer."""
    options = {SAMPLING_FIELDS[name] for name in body.sampling}
    return bool(options & {"repeat_penalty", "repeat_last_n", "dry_multiplier"})


def own_constraint(body: Generation) -> str | None:
    """The field, if any, that constrains the answer."""
    return next((name for name in body.sampling if SAMPLING_FIELDS[name] in CONSTRAINTS), None)


def sampling_of(
    body: Generation,
    choice: int,
    constraint: Mapping[str, Any] | None = None,
    usual: Mapping[str, Any] | None = None,
) -> SamplingParams:
    """The sampling parameters of a choice. Every choice has a seed of its own, so that they differ.

    `constraint` is the option that `response_format` or `tool_choice` asks for. `usual` are the
    options that the server has for requests without them. Raises ApiError,
    which names the field as the client wrote it, for a value out of range."""
    named = {SAMPLING_FIELDS[name] for name in body.sampling}
    named |= {
        name for name in _CUTS & type(body).model_fields.keys() if getattr(body, name) is not None
    }
    whole = {k: v for k, v in _WHOLE_API.items() if k not in _CUTS or named & _CUTS}
    options: dict[str, Any] = whole | dict(usual or {})
    if looks_at_prompt(body) and "repeat_last_n" not in (usual or {}):
        del options["repeat_last_n"]
    written: dict[str, str] = {}
    for name, value in body.sampling.items():
        option = SAMPLING_FIELDS[name]
        if option in CONSTRAINTS and option in written:
            raise ApiError(
                400, f"{written[option]} and {name} are both given; an answer has one constraint",
                name,
            )  # fmt: skip
        if option == "dry_sequence_breakers":
            value = _listed(value)
            require_few(name, value)
        options[option] = value if option in CONSTRAINTS else _plain(value)
        written[option] = name
    for option in SAMPLING_OPTIONS.keys() & type(body).model_fields:
        value = getattr(body, option)
        if value is not None:
            options[option] = value
    if "seed" in options:
        any_seed = options["seed"] == -1  # as in llama.cpp
        options["seed"] = None if any_seed else (options["seed"] + choice) % (1 << 63)
    if constraint:
        if own := own_constraint(body):
            raise ApiError(
                400, f"{own} does not go together with response_format, nor with a tool_choice "
                "that asks for a call; leave one out", own,
            )  # fmt: skip
        options |= constraint
    try:
        return SamplingParams(**options)
    except ContextError as error:
        raise _named(str(error), written) from None


def usual_values(usual: Mapping[str, Any]) -> dict[str, float]:
    """The numbers that the server draws with if a chat names none; `usual` are its own options. The
    window of penalties is left out where it depends on the penalty that a request names."""
    sampling = sampling_of(ChatBody(messages=[]), 0, None, usual)
    values = {name: getattr(sampling, name) for name in SAMPLING_OPTIONS}
    shown = {name: v for name, v in values.items() if isinstance(v, int | float)}
    if "repeat_last_n" not in usual:
        del shown["repeat_last_n"]
    return {"seed": -1, "max_tokens": -1} | shown


def require_few(name: str, strings: Any) -> None:
    """Raises ApiError for too many strings, or too many characters in them."""
    strings = strings if isinstance(strings, list | tuple) else (strings,)
    n = len(strings)
    if n > MOST_STRINGS:
        raise ApiError(400, f"{name} has {n} texts; it may have {MOST_STRINGS}", name)
    n = sum(map(len, strings)) if n and all(isinstance(s, str) for s in strings) else 0
    if n > MOST_CHARACTERS:
        raise ApiError(400, f"{name} has {n} characters; it may have {MOST_CHARACTERS}", name)


def _listed(value: Any) -> Any:
    """A list that a client wrote as the text of its JSON."""
    if isinstance(value, str) and len(value) > MOST_CHARACTERS:
        return value  # `require_few` refuses it
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value
    return found if isinstance(found, list) else value


def _plain(value: Any) -> Any:
    """Converts a value of JSON: 40.0 to an integer, and a list to a tuple."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return tuple(value) if isinstance(value, list) else value


def _named(message: str, written: Mapping[str, str]) -> ApiError:
    """An error of `SamplingParams`, with the name of the field as the client wrote it."""
    option, space, problem = message.partition(" ")
    name = written.get(option, option)
    return ApiError(400, f"{name}{space}{problem}", name if option in SAMPLING_FIELDS else None)
