"""Reads answers of gpt-oss, which are messages with headers: "harmony".

    <|start|>assistant<|channel|>analysis<|message|>TEXT<|end|>
    <|start|>assistant<|channel|>commentary to=functions.NAME json<|message|>{...}<|call|>
    <|start|>assistant<|channel|>final<|message|>TEXT<|return|>

A prompt ends behind `assistant`. Text of the channel analysis is reasoning, other text is content,
and a message to a function is a call. The format is documented with the package openai-harmony.
"""

from __future__ import annotations

import re
from contextlib import suppress

from weft.llm.answers.json_text import NoCallError, as_object, object_in
from weft.llm.answers.parser import Call, CallBegun, CallPiece, Content, Event, Reasoning, overlap

_MESSAGE = "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>")
_TO = re.compile(r"to=(?:functions\.)?([^\s<|]+)")
_MAX_HEADER = 512
"""Maximum number of characters of a header; longer text is content."""


def is_harmony(source: str) -> bool:
    """True if a template writes messages in this format."""
    return all(mark in source for mark in ("<|channel|>", _MESSAGE, "<|start|>", "analysis"))


class HarmonyParser:
    """Takes text and reports events, like `AnswerParser`."""

    def __init__(self, tools: bool, prompt: str = "", *, pieces: bool = False) -> None:
        """`tools`: whether messages to functions are calls. `prompt` may have begun a message.
        `pieces`: the answer is held to calls, so that they are reported as they come."""
        self._tools, self._pieces = tools, pieces
        self._sent = 0  # characters of the arguments that were reported
        self._begun_call = False
        self._pending = ""  # the last of the arguments, which may be their end
        self._calls = 0
        self._name: str | None = None
        self._kind: type[Content | Reasoning] = Content
        header = prompt.rpartition("<|start|>")[2] if "<|start|>" in prompt else ""
        self._text = header if not any(end in header for end in _ENDS) else ""
        self._begun = len(self._text)  # characters of the text that the prompt has
        self._in_message = False
        self._body: list[str] = []

    def push(self, text: str) -> list[Event]:
        """Adds text to the answer; returns the new events."""
        self._text += text
        events: list[Event] = []
        while self._text and self._step(events):
            pass
        return events

    def finish(self) -> list[Event]:
        """Ends the answer; returns the events of text that was held back."""
        events: list[Event] = []
        text, self._text = self._text, ""
        if not self._in_message:
            text = text[self._begun :].rstrip() if self._calls else text[self._begun :]
        if self._name is not None and not self._begun_call:
            self._end_call(events, text)
        elif text and self._name is None:
            events.append(self._kind(text))
        return events

    def _step(self, events: list[Event]) -> bool:
        return self._message(events) if self._in_message else self._header(events)

    def _header(self, events: list[Event]) -> bool:
        """Reads up to the text of a message."""
        at = self._text.find(_MESSAGE, 0, _MAX_HEADER)
        if at < 0:
            if len(self._text) < _MAX_HEADER:
                return False
            self._in_message, self._kind, self._name = True, Content, None
            self._text = self._text[self._begun :]
            return True
        header = self._text[:at]
        self._text = self._text[at + len(_MESSAGE) :]
        self._begun, self._in_message = 0, True
        to = _TO.search(header)
        self._name = to[1] if to and self._tools else None
        self._kind = Reasoning if "analysis" in header and not self._name else Content
        return True

    def _message(self, events: list[Event]) -> bool:
        """Reads the text of a message."""
        at = min((self._text.find(end) for end in _ENDS if end in self._text), default=-1)
        held = max(overlap(self._text, end) for end in _ENDS)
        text = self._text[:at] if at >= 0 else self._text[: len(self._text) - held]
        rest = self._text[len(text) :]
        if self._name is not None:
            self._body.append(text)
            if at >= 0:
                self._end_call(events, "")
            elif self._pieces:
                self._hear(events, text)
        elif text:
            events.append(self._kind(text))
        if at >= 0:
            end = next(end for end in _ENDS if rest.startswith(end))
            rest = rest[len(end) :]
            self._in_message, self._kind = False, Content
        self._text = rest
        return at >= 0

    def _end_call(self, events: list[Event], rest: str) -> None:
        body = "".join(self._body) + rest
        self._body = []
        arguments = body.strip() or "{}"
        if not self._begun_call:
            with suppress(NoCallError):
                arguments = object_in(arguments)
        if self._name is not None and as_object(arguments) is not None:
            if self._begun_call:
                events.append(CallPiece(self._calls, arguments[self._sent :]))
            events.append(Call(self._calls, self._name, arguments))
            self._calls += 1
        elif body and not self._begun_call:
            events.append(Content(body))
        self._name, self._begun_call, self._sent = None, False, 0
        self._pending = ""

    def _hear(self, events: list[Event], text: str) -> None:
        """Reports the name and the arguments of a call, but for the bracket that may end them."""
        self._pending = self._pending + text if self._sent else (self._pending + text).lstrip()
        new = self._pending.rstrip().removesuffix("}")
        if self._name is None or not new:
            return
        if not self._begun_call:
            self._begun_call = True
            events.append(CallBegun(self._calls, self._name))
        events.append(CallPiece(self._calls, new))
        self._sent += len(new)
        self._pending = self._pending[len(new) :]
