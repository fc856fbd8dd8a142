"""Formats of answers by family, and the events of a parser put together."""

from __future__ import annotations

from functools import cache

from tests.llm.answers.templates import TEMPLATES
from weft.llm.answers import AnswerFormat, Call, Content, Event, Reasoning
from weft.llm.chat.template import ChatTemplate

__all__ = ["FAMILIES", "TOOLS", "format_of", "joined"]

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
    for name in ("weather", "clock")
]
FAMILIES = sorted(TEMPLATES)


@cache
def format_of(family: str) -> AnswerFormat:
    """The format of answers of a family's template."""
    return AnswerFormat.of(ChatTemplate(TEMPLATES[family]))


def joined(events: list[Event]) -> tuple[str, str, list[tuple[str, str]]]:
    """Content, reasoning and calls."""
    content = "".join(event.text for event in events if isinstance(event, Content))
    reasoning = "".join(event.text for event in events if isinstance(event, Reasoning))
    calls = [event for event in events if isinstance(event, Call)]
    assert [call.index for call in calls] == list(range(len(calls)))
    return content, reasoning, [(call.name, call.arguments) for call in calls]
