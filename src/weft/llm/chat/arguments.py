"""Calls of tools in messages, in a form that every chat template can read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any


class Arguments(dict[str, Any]):
    """The arguments of a function call.

    The OpenAI API has them as JSON text; most templates need an object, some the text. So this is
    an object that prints as JSON, in exactly the text `written` if that was given."""

    def __init__(self, value: Mapping[str, Any], written: str | None = None) -> None:
        super().__init__(value)
        self.written = written

    def __str__(self) -> str:
        return json.dumps(self, ensure_ascii=False) if self.written is None else self.written

    def __add__(self, other: str) -> str:
        return str(self) + other

    def __radd__(self, other: str) -> str:
        return other + str(self)


_SHORT = re.compile(r"[a-zA-Z0-9]{9}")


def with_short_ids(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]] | None:
    """The messages with ids of nine letters and digits for calls and their results; None: they have
    such ids already, or none.

    Mistral's templates refuse other ids, while clients send back whatever ids they got from any
    server."""
    changed = False
    made: list[dict[str, Any]] = []
    for message in messages:
        message = dict(message)
        calls = message.get("tool_calls")
        if isinstance(calls, list):
            message["tool_calls"] = [
                {**call, "id": _short(call["id"])} if _has_long(call, "id") else call
                for call in calls
            ]
            changed |= message["tool_calls"] != calls
        if _has_long(message, "tool_call_id"):
            message["tool_call_id"] = _short(message["tool_call_id"])
            changed = True
        made.append(message)
    return made if changed else None


def _has_long(part: Any, key: str) -> bool:
    if not isinstance(part, Mapping) or not isinstance(part.get(key), str):
        return False
    return not _SHORT.fullmatch(part[key])


def _short(id_: str) -> str:
    """Nine hexadecimal digits that depend on the id alone."""
    return sha256(id_.encode("utf-8", "surrogatepass")).hexdigest()[:9]
