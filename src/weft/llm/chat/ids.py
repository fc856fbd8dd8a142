"""Ids of calls for templates that take only some.

Mistral's templates refuse ids that are not nine characters long, while clients send back whatever
ids they got from any server."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

__all__ = ["with_short_ids"]

_SHORT = re.compile(r"[a-zA-Z0-9]{9}")


def with_short_ids(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]] | None:
    """The messages with ids of nine letters and digits for calls and their results; None: they have
    such ids already, or none."""
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
