"""Detects how a model writes calls, by rendering its chat template with calls of made-up tools."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from weft.errors import ChatError
from weft.llm.answers.json_text import NoCallError, as_object, members
from weft.llm.answers.markers import KNOWN, THOUGHTS, CallMarkers
from weft.llm.chat.template import ChatTemplate

__all__ = ["find_markers", "find_thought"]

_NAMES = "weft_tool_a", "weft_tool_b"
_ARGUMENTS = {"weft_key_a": "weft value a", "weft_key_b": 7351}
_SAID = "weft said this"
_USER = {"role": "user", "content": "weft asks"}
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "weft",
            "parameters": {
                "type": "object",
                "properties": {"weft_key_a": {"type": "string"}, "weft_key_b": {"type": "integer"}},
            },
        },
    }
    for name in _NAMES
]


def find_thought(template: ChatTemplate) -> tuple[str, str] | None:
    """The texts around reasoning; None if the template mentions none that is known."""
    source = "\n".join(template.sources.values())
    return next((pair for pair in THOUGHTS if pair[1] in source), None)


def find_markers(template: ChatTemplate) -> CallMarkers | None:
    """The texts around calls; None if the template does not support tools."""
    if not template.knows_tools:
        return None
    for content in (_SAID, ""):
        single = _answer_text(template, 1, content)
        if single is None:
            continue
        markers = _shape(single)
        if markers is not None:
            several = _answer_text(template, 2, content)
            if not markers.trigger:
                return replace(markers, prefix="<|python_tag|>", separator=";")
            return markers if several is None else _sections(markers, several)
    source = "\n".join(template.sources.values())
    return next((markers for text, markers in KNOWN if text in source), None)


def _answer_text(template: ChatTemplate, n_calls: int, content: str) -> str | None:
    """The text that the template renders for an answer of `content` and `n_calls` calls, without
    the content and the texts around an answer. None: it cannot be isolated."""
    calls = [
        {
            "id": f"weftcall{i}",  # some templates demand nine characters
            "type": "function",
            "function": {"name": _NAMES[i], "arguments": json.dumps(_ARGUMENTS)},
        }
        for i in range(n_calls)
    ]
    plain_answer = {"role": "assistant", "content": _SAID}
    answer = {"role": "assistant", "content": content, "tool_calls": calls}
    try:
        plain = _rendered(template, [_USER, plain_answer])
        text = _rendered(template, [_USER, answer])
        prompt = template.render([_USER], tools=_TOOLS)
    except ChatError:
        return None
    before, _, behind = plain.rpartition(_SAID)
    if content:
        start = text.rfind(_SAID)
        if start < 0:
            return None
        text = text[start + len(_SAID) :]
    else:
        starts = prompt, before, _common(text, plain)
        text = text[len(next(start for start in starts if text.startswith(start))) :]
    text = text.removesuffix(behind) if behind else text
    return text if text.count(_NAMES[0]) == 1 else None


def _rendered(template: ChatTemplate, messages: list[dict[str, Any]]) -> str:
    return template.render(messages, tools=_TOOLS, add_generation_prompt=False)


def _shape(text: str) -> CallMarkers | None:
    """The markers of a single call; all text before and behind it becomes `open` and `close`."""
    key, value = "weft_key_a", _ARGUMENTS["weft_key_a"]
    if text.find(key) < text.find(_NAMES[0]) or f"{value}" not in text:
        return None
    for start, end in _objects(text):
        if _NAMES[0] in text[start:end]:
            return _object_shape(text, start, end)
        if key in text[start:end] and text.find(_NAMES[0]) < start:
            return _named_shape(text, start, end)
    return _tagged_shape(text)


def _objects(text: str) -> Iterator[tuple[int, int]]:
    """Yields the spans of JSON objects in a text, outer ones first."""
    decoder = json.JSONDecoder()
    for match in re.finditer(r"\{", text):
        try:
            yield match.start(), decoder.raw_decode(text, match.start())[1]
        except (ValueError, RecursionError):
            continue


def _object_shape(text: str, start: int, end: int) -> CallMarkers | None:
    try:
        parts = {key: json.loads(part) for key, part in members(text[start:end]).items()}
    except NoCallError:
        return None
    function = next((key for key, v in parts.items() if v == {"name": _NAMES[0]}), None)
    name = next((key for key, v in parts.items() if v == _NAMES[0]), None)
    arguments = next(
        (k for k, v in parts.items() if _ARGUMENTS in (v, isinstance(v, str) and as_object(v))),
        None,
    )
    if name is None or arguments is None or function is not None:
        return None
    return CallMarkers(
        "object", text[:start].strip(), text[end:].strip(), name=name, arguments=arguments
    )


def _named_shape(text: str, start: int, end: int) -> CallMarkers:
    at = text.find(_NAMES[0])
    after = text[at + len(_NAMES[0]) : start]
    return CallMarkers("named", text[:at].strip(), text[end:].strip(), after_name=after.strip())


def _tagged_shape(text: str) -> CallMarkers | None:
    """The markers of arguments between tags: `NAME` after_name key_open `KEY` value_open `VALUE`
    value_close."""
    parts = re.split(r"(weft_tool_a|weft_key_[ab]|weft value a|7351)", text)
    names = [_NAMES[0], "weft_key_a", _ARGUMENTS["weft_key_a"], "weft_key_b", "7351"]
    if parts[1::2] != names:
        return None
    before, first, value_open, between, second_open, last = parts[::2]
    if value_open != second_open or not value_open.strip():
        return None
    close_length = len(_shared_start(between, last))
    key_open = _shared_end(first, between[close_length:] or between)
    after_name = first[: len(first) - len(key_open)]
    value_close = between[: len(between) - len(key_open)]
    if not key_open.strip() or not value_close.strip():
        return None
    padding = value_open[len(value_open.rstrip()) :]
    return CallMarkers(
        "tagged", before.strip(), last[len(value_close.rstrip()) :].strip(),
        after_name=after_name.strip(), key_open=key_open.strip(), value_open=value_open.strip(),
        value_close=value_close.strip(), padding=padding,
    )  # fmt: skip


def _sections(markers: CallMarkers, several: str) -> CallMarkers:
    """Splits `markers` into the texts around all calls and those around each call, by comparison
    with the text of two calls, `several`."""
    between = _between(markers, several)
    if between is None:
        return markers
    between = between.strip()
    open_ = _shared_end(markers.open, between).lstrip(">]|) \n").rstrip()
    close_and_separator = between[: len(between) - len(open_)].strip()
    close = _shared_start(markers.close, close_and_separator).strip()
    if not open_ and markers.kind != "object":
        return markers
    return replace(
        markers,
        section=markers.open[: len(markers.open) - len(open_)].strip(),
        open=open_,
        close=close,
        separator=close_and_separator[len(close) :].strip(),
        end=markers.close[len(close) :].strip(),
    )


def _between(markers: CallMarkers, several: str) -> str | None:
    """The text between two calls, from the end of one to the beginning of the other."""
    first, second = several.find(_NAMES[0]), several.find(_NAMES[1])
    if not 0 <= first < second:
        return None
    if markers.kind == "tagged":
        end = several.rfind(markers.value_close, first, second) + len(markers.value_close)
        return several[end:second]
    spans = [(start, end) for start, end in _objects(several) if "weft_key_a" in several[start:end]]
    if markers.kind == "object":
        spans = [(s, e) for s, e in spans if any(name in several[s:e] for name in _NAMES)]
        return several[spans[0][1] : spans[1][0]] if len(spans) == 2 else None
    ends = [end for start, end in spans if first < start and end <= second]
    return several[ends[0] : second] if ends else None


def _shared_start(a: str, b: str) -> str:
    """The common beginning of both texts, without an incomplete tag at its end."""
    return re.sub(r"[<\[][^>\]]*$", "", _common(a, b))


def _shared_end(a: str, b: str) -> str:
    return _common(a[::-1], b[::-1])[::-1]


def _common(a: str, b: str) -> str:
    """The common beginning of both texts."""
    n = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return a[:n]
