"""An answer to a chat in the format of the API: content, reasoning and tool calls.

`weft.llm.answers` splits the model's text; here its events become fields of a message.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from weft.llm.answers import Call, CallBegun, CallPiece, Content, Event, Reasoning
from weft.llm.sampling.schema import held_parameters, under
from weft.serve.errors import ApiError

__all__ = [
    "ChatMessage",
    "Reader",
    "TextReader",
    "Unsplit",
    "WholeCall",
    "call_schema",
    "named_tool",
]


class Reader(Protocol):
    """Splits an answer as it grows, like `weft.llm.answers.AnswerParser`."""

    def push(self, text: str) -> list[Event]:
        """Adds text; returns the new events."""

    def finish(self) -> list[Event]:
        """Ends the answer; returns the events of text that was held back."""


class TextReader:
    """Takes a whole answer as content."""

    def push(self, text: str) -> list[Event]:
        """See `Reader`."""
        return [Content(text)] if text else []

    def finish(self) -> list[Event]:
        """See `Reader`."""
        return []


class Unsplit:
    """Leaves reasoning in the content, between its marks."""

    def __init__(self, reader: Reader, marks: tuple[str, str], *, thinking: bool) -> None:
        """`thinking`: the prompt has the first of the `marks`."""
        self._reader, self._marks = reader, marks
        self._thinking = self._marked = thinking

    def push(self, text: str) -> list[Event]:
        """See `Reader`."""
        return self._joined(self._reader.push(text))

    def finish(self) -> list[Event]:
        """See `Reader`."""
        return self._joined(self._reader.finish())

    def _joined(self, events: list[Event]) -> list[Event]:
        made: list[Event] = []
        for event in events:
            thinks = isinstance(event, Reasoning)
            if thinks and not self._marked:
                made.append(Content(self._marks[0]))
            elif self._thinking and not thinks:
                made.append(Content(self._marks[1]))
            self._thinking = self._marked = thinks
            made.append(Content(event.text) if isinstance(event, Reasoning) else event)
        return made


class WholeCall:
    """Reads an answer constrained to `call_schema` as one call, for models without a form of their
    own."""

    def __init__(self) -> None:
        self._parts: list[str] = []

    def push(self, text: str) -> list[Event]:
        """See `Reader`."""
        self._parts.append(text)
        return []

    def finish(self) -> list[Event]:
        """See `Reader`; an incomplete call is content."""
        text = "".join(self._parts)
        try:
            call = json.loads(text)
            arguments = json.dumps(call["arguments"], ensure_ascii=False)
            return [Call(0, call["name"], arguments)]
        except (ValueError, LookupError, TypeError, RecursionError):
            return [Content(text)] if text else []


def named_tool(choice: object, tools: Sequence[Mapping[str, Any]]) -> str | None:
    """The function that `tool_choice` names; None: it names none. Raises ApiError if there is no
    such function."""
    if not isinstance(choice, Mapping):
        return None
    function = choice.get("function")
    name = function.get("name") if isinstance(function, Mapping) else choice.get("name")
    names = [tool["function"]["name"] for tool in tools]
    if name not in names:
        raise ApiError(
            400, f"tool_choice names no function of tools; there are {', '.join(names)[:200]}",
            "tool_choice",
        )  # fmt: skip
    return str(name)


def call_schema(tools: Sequence[Mapping[str, Any]], name: str | None) -> dict[str, Any]:
    """A JSON schema of calls of any tool, or of the tool called `name`."""
    functions = [tool["function"] for tool in tools if name in (None, tool["function"]["name"])]
    calls = []
    for number, function in enumerate(functions):
        place = "#" if len(functions) == 1 else f"#/anyOf/{number}"
        schema = function.get("parameters") or {"type": "object"}
        arguments = under(
            held_parameters(function["name"], schema), f"{place}/properties/arguments"
        )
        calls.append({
            "type": "object",
            "properties": {"name": {"const": function["name"]}, "arguments": arguments},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        })  # fmt: skip
    return calls[0] if len(calls) == 1 else {"anyOf": calls}


class ChatMessage:
    """The message of one choice as it grows, in deltas and as a whole."""

    def __init__(self, reader: Reader, *, one_call: bool = False) -> None:
        """`one_call` keeps only the first tool call."""
        self._reader = reader
        self._one_call = one_call
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None  # a call that has begun and not ended

    def push(self, text: str) -> list[dict[str, Any]]:
        """Adds text; returns the new deltas."""
        return self._deltas(self._reader.push(text))

    def finish(self) -> list[dict[str, Any]]:
        """Ends the message; returns the deltas of text that was held back."""
        return self._deltas(self._reader.finish())

    def reason(self, ended: str) -> str:
        """The `finish_reason` of a text that ended with the engine's reason `ended`. A call that
        was begun and is cut makes it "length", whatever cut it."""
        if self._open:
            return "length"
        return "tool_calls" if self._calls and ended == "stop" else ended

    def whole(self) -> dict[str, Any]:
        """The whole message, without a call that is cut."""
        text = "".join(self._content)
        content = None if self._calls and not text else text
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if self._reasoning:
            message["reasoning_content"] = "".join(self._reasoning)
        if self._calls:
            message["tool_calls"] = self._calls
        return message

    def _deltas(self, events: Iterable[Event]) -> list[dict[str, Any]]:
        deltas: list[dict[str, Any]] = []
        for event in events:
            if isinstance(event, Content):
                self._content.append(event.text)
                deltas.append({"content": event.text})
            elif isinstance(event, Reasoning):
                self._reasoning.append(event.text)
                deltas.append({"reasoning_content": event.text})
            elif not (self._one_call and event.index):
                deltas += self._call(event)
        return deltas

    def _call(self, event: Call | CallBegun | CallPiece) -> list[dict[str, Any]]:
        """The deltas of a call: its name with empty arguments and then pieces of them, or all of
        it."""
        if isinstance(event, CallPiece):
            part = {"index": event.index, "function": {"arguments": event.text}}
            return [{"tool_calls": [part]}] if event.text else []
        if isinstance(event, CallBegun):
            self._open = self._new(event.name, "")
            return [{"tool_calls": [{"index": event.index, **self._open}]}]
        begun, self._open = self._open, None
        call = self._new(event.name, event.arguments)
        if begun is not None:
            call["id"] = begun["id"]
        self._calls.append(call)
        return [{"tool_calls": [{"index": event.index, **call}]}] if begun is None else []

    @staticmethod
    def _new(name: str, arguments: str) -> dict[str, Any]:
        return {
            "id": f"call_{uuid.uuid4().hex[:24]}",
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
