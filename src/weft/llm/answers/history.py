"""Calls of earlier turns, as a template needs them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from weft.llm.answers.markers import CallMarkers

__all__ = ["calls_as_content", "with_ids_of_names"]


def calls_as_content(
    messages: Sequence[Mapping[str, Any]], markers: CallMarkers
) -> list[dict[str, Any]]:
    """The messages, with the calls of assistants behind their content, in the form of `markers`.
    Messages that are malformed stay as they are."""
    made: list[dict[str, Any]] = []
    for message in messages:
        calls = message.get("tool_calls") if isinstance(message, Mapping) else None
        texts = [_text(call, markers) for call in calls] if isinstance(calls, list) else []
        if not texts or None in texts:
            made.append(dict(message) if isinstance(message, Mapping) else message)
            continue
        separator = markers.separator or "\n"
        section = markers.section + separator.join(map(str, texts)) + markers.end
        said = message.get("content")
        before = f"{said}\n" if isinstance(said, str) and said else ""
        rest = {key: value for key, value in message.items() if key != "tool_calls"}
        made.append({**rest, "content": before + section})
    return made


def with_ids_of_names(
    messages: Sequence[Mapping[str, Any]], *, goes_on: bool
) -> list[dict[str, Any]]:
    """The messages with ids as Kimi K2 has them, `functions.NAME:NUMBER`, for calls and their
    results. Numbers start again with each message, or go on through all of them (`goes_on`)."""
    made: list[dict[str, Any]] = []
    ids: dict[str, str] = {}
    n = 0
    for message in messages:
        new = dict(message) if isinstance(message, Mapping) else message
        calls = new.get("tool_calls") if isinstance(new, dict) else None
        if isinstance(calls, list):
            n = n if goes_on else 0
            new["tool_calls"] = [_named(call, n + i, ids) for i, call in enumerate(calls)]
            n += len(calls)
        if isinstance(new, dict) and isinstance(new.get("tool_call_id"), str):
            new["tool_call_id"] = ids.get(new["tool_call_id"], new["tool_call_id"])
        made.append(new)
    return made


def _named(call: Any, number: int, ids: dict[str, str]) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        return call
    made = f"functions.{name}:{number}"
    if isinstance(call.get("id"), str):
        ids[call["id"]] = made
    return {**call, "id": made}


def _text(call: Any, markers: CallMarkers) -> str | None:
    """One call; None: it is malformed, or its form is not one that this writes."""
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return None
    name, arguments = function.get("name"), function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return None
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return None
    written = json.dumps(arguments, ensure_ascii=False)
    if markers.kind == "object":
        parts = {markers.name: name, markers.arguments: arguments}
        text = json.dumps(parts, ensure_ascii=False)
    elif markers.kind == "named":
        text = f"{name}{markers.after_name}{written}"
    elif markers.kind == "python":
        pairs = (f"{key}={json.dumps(v, ensure_ascii=False)}" for key, v in arguments.items())
        text = f"{name}({', '.join(pairs)})"
    else:
        return None
    return markers.open + text + markers.close
