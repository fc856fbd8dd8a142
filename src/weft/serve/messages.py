"""An answer to a chat while it grows: the events of its parser, and the parts that they make up.

`weft.llm.answers` splits the model's text. The `format.py` of each API makes its answers of the
events, or of the steps of the parts where the API numbers parts and marks their ends.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import field
from typing import Literal, Protocol

from weft.llm.answers import Call, CallBegun, CallPiece, Content, Event, Reasoning
from weft.llm.answers.json_text import as_object
from weft.records import dataclass

Kind = Literal["reasoning", "text", "call"]


class Parser(Protocol):
    """Splits an answer as it grows, like `weft.llm.answers.AnswerParser`."""

    def push(self, text: str) -> list[Event]:
        """Adds text; returns the new events."""

    def finish(self) -> list[Event]:
        """Ends the answer; returns the events of text that was held back."""


class PlainText:
    """A parser for which the whole answer is content."""

    def push(self, text: str) -> list[Event]:
        """See `Parser`."""
        return [Content(text)] if text else []

    def finish(self) -> list[Event]:
        """See `Parser`."""
        return []


class Unsplit:
    """A parser that leaves reasoning in the content, between its marks."""

    def __init__(self, parser: Parser, marks: tuple[str, str], *, thinking: bool) -> None:
        """`thinking`: the prompt has the first of the `marks`."""
        self._parser, self._marks = parser, marks
        self._thinking = self._marked = thinking

    def push(self, text: str) -> list[Event]:
        """See `Parser`."""
        return self._joined(self._parser.push(text))

    def finish(self) -> list[Event]:
        """See `Parser`."""
        return self._joined(self._parser.finish())

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


class OneCall:
    """A parser of an answer that is one call by the schema of `call_schema`, for models without a
    form of calls of their own."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def push(self, text: str) -> list[Event]:
        """See `Parser`."""
        self._texts.append(text)
        return []

    def finish(self) -> list[Event]:
        """See `Parser`; an incomplete call is content."""
        text = "".join(self._texts)
        try:
            call = json.loads(text)
            arguments = json.dumps(call["arguments"], ensure_ascii=False)
            return [Call(0, call["name"], arguments)]
        except (ValueError, LookupError, TypeError, RecursionError):
            return [Content(text)] if text else []


class ChatMessage:
    """The message of one choice as it grows."""

    def __init__(self, parser: Parser, *, one_call: bool = False) -> None:
        """`one_call` keeps only the first tool call."""
        self._parser = parser
        self._one_call = one_call
        self._is_open = False  # a call has begun and not ended
        self._ids: dict[int, str] = {}
        self.events: list[Event] = []

    def push(self, text: str) -> list[Event]:
        """Adds text; returns the new events, without a `Call` whose pieces were all returned."""
        return self._new(self._parser.push(text))

    def finish(self) -> list[Event]:
        """Ends the message; returns the events of text that was held back."""
        return self._new(self._parser.finish())

    @property
    def text(self) -> str:
        """The content so far."""
        return "".join(event.text for event in self.events if isinstance(event, Content))

    @property
    def reasoning(self) -> str:
        """The reasoning so far."""
        return "".join(event.text for event in self.events if isinstance(event, Reasoning))

    @property
    def calls(self) -> list[Call]:
        """The complete calls."""
        return [event for event in self.events if isinstance(event, Call)]

    def call_id(self, index: int) -> str:
        """The id of a call in the chat API."""
        return self._ids.setdefault(index, f"call_{uuid.uuid4().hex[:24]}")

    def reason(self, ended: str) -> str:
        """The `finish_reason` of a text that ended with the engine's reason `ended`. A full context
        makes it "length", and so does a call that is cut, whatever cut it."""
        if self._is_open or ended == "context":
            return "length"
        return "tool_calls" if self.calls and ended == "stop" else ended

    def _new(self, events: list[Event]) -> list[Event]:
        new: list[Event] = []
        for event in events:
            if isinstance(event, Content | Reasoning):
                new.append(event)
            elif self._one_call and event.index:
                continue
            elif isinstance(event, CallPiece):
                new += [event] if event.text else []
            else:
                new += [] if isinstance(event, Call) and self._is_open else [event]
                self._is_open = isinstance(event, CallBegun)
            self.events.append(event)
        return new


@dataclass(slots=True)
class Part:
    """A part of an answer, as far as it is written."""

    kind: Kind
    index: int
    """Number among the parts of the answer, from 0."""
    id: str = ""
    """Id of a call in the chat API."""
    name: str = ""
    """Name of the function of a call."""
    texts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The text so far; the arguments of a call, as the model wrote them."""
        return "".join(self.texts)

    @property
    def arguments(self) -> dict[str, object]:
        """The arguments of a call as an object; empty for a call that was cut."""
        return as_object(self.text) or {}


@dataclass(frozen=True, slots=True)
class Step:
    """A part begins, goes on with `text`, or ends."""

    kind: Literal["begin", "more", "end"]
    part: Part
    text: str = ""


class Parts:
    """The parts of one message, one after the other."""

    def __init__(self, message: ChatMessage) -> None:
        self._message = message
        self.all: list[Part] = []
        """The parts so far; the last may not have ended."""
        self._open: Part | None = None

    def push(self, event: Event) -> Iterator[Step]:
        """Adds an event that the message returned; yields what it does."""
        if isinstance(event, Content):
            yield from self._more("text", event.text)
        elif isinstance(event, Reasoning):
            yield from self._more("reasoning", event.text)
        elif isinstance(event, CallPiece):
            yield from self._more("call", event.text)
        else:
            yield from self._begin("call", self._message.call_id(event.index), event.name)
            if isinstance(event, Call):
                yield from self._more("call", event.arguments)

    def finish(self) -> Iterator[Step]:
        """Ends the message; yields the end of its last part."""
        if self._open is not None:
            yield Step("end", self._open)
        self._open = None

    def _begin(self, kind: Kind, id_: str = "", name: str = "") -> Iterator[Step]:
        yield from self.finish()
        self._open = Part(kind, len(self.all), id_, name)
        self.all.append(self._open)
        yield Step("begin", self._open)

    def _more(self, kind: Kind, text: str) -> Iterator[Step]:
        if self._open is None or self._open.kind != kind:
            yield from self._begin(kind)
        assert self._open is not None
        self._open.texts.append(text)
        yield Step("more", self._open, text)
