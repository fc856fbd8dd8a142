"""`Completion`: a text that a model has written, a `str` that says how it came about."""

from __future__ import annotations

import uuid
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any, Generic, Literal, Protocol, TypeVar

from weft.llm.answers import Call, Content, Reasoning
from weft.llm.answers import Event as Part
from weft.llm.engine.request import Delta, Done, Event, Reason, Ticket
from weft.llm.sampling import TokenLogprobs
from weft.records import dataclass

T = TypeVar("T", covariant=True)


@dataclass(frozen=True, slots=True)
class Usage:
    """The numbers of tokens of a completion."""

    prompt_tokens: int = 0
    """Number of tokens of the prompt."""
    completion_tokens: int = 0
    """Number of tokens drawn, the one that ended the text included."""
    cached_tokens: int = 0
    """Number of tokens of the prompt that were in the cache and not computed again."""

    @property
    def total_tokens(self) -> int:
        """Number of tokens of prompt and text together."""
        return self.prompt_tokens + self.completion_tokens


class Completion(str):
    """A text that a model has written: a `str` that says how it came about."""

    finish_reason: Reason | Literal["tool_calls"] = "stop"
    """The reason why the text ended: "stop" is an end token, a stop string or a satisfied
    constraint, "length" is `max_tokens`, "context" a full context, "tool_calls" an answer that
    calls tools."""
    usage: Usage = Usage()
    """The numbers of tokens."""
    logprobs: Sequence[TokenLogprobs] = ()
    """Log-probabilities of all drawn tokens, the one that ended the text included; empty unless the
    option `logprobs` was given."""
    reasoning: str = ""
    """The reasoning in front of an answer of `chat` with `tools`. In other texts it is part of the
    text."""
    tool_calls: Sequence[dict[str, Any]] = ()
    """The calls of tools of an answer of `chat` with `tools`, as the OpenAI API writes them:
    `{"id": ..., "type": "function", "function": {"name": ..., "arguments": JSON text}}`."""

    @property
    def message(self) -> dict[str, Any]:
        """The answer as a message of the conversation, for the next call of `chat`."""
        message: dict[str, Any] = {"role": "assistant", "content": str(self)}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = list(self.tool_calls)
        return message


class Reader(Protocol):
    """Splits an answer as it grows; see `AnswerParser`."""

    def push(self, text: str) -> list[Part]: ...
    def finish(self) -> list[Part]: ...


class Completions:
    """The completions of several texts, from the events of a writer."""

    def __init__(self, readers: Sequence[Reader | None]) -> None:
        """`readers` split each answer into content, reasoning and calls; None: all is content."""
        self._readers = readers
        self._texts = [""] * len(readers)
        self.all = [Completion() for _ in readers]
        """The completion of each text, once it has ended."""

    def pieces(self, events: Iterable[tuple[int, Ticket, Event]]) -> Generator[tuple[int, str]]:
        """Yields new content with the number of its text."""
        for number, text, event in events:
            piece = self.take(number, text, event)
            if piece:
                yield number, piece

    def take(self, number: int, text: Ticket, event: Event) -> str:
        """Takes an event of a text, and returns its new content. Raises the error of a text that
        failed."""
        reader, completion = self._readers[number], self.all[number]
        piece, parts = "", list[Part]()
        if isinstance(event, Delta):
            piece = event.text if reader is None else ""
            parts = reader.push(event.text) if reader is not None else []
        elif isinstance(event, Done):
            if event.error is not None:
                raise event.error
            parts = reader.finish() if reader is not None else []
        for part in parts:
            if isinstance(part, Content):
                piece += part.text
            elif isinstance(part, Reasoning):
                completion.reasoning += part.text
            elif isinstance(part, Call):
                completion.tool_calls = [*completion.tool_calls, _as_json(part)]
        self._texts[number] += piece
        if isinstance(event, Done):
            whole = self.all[number] = Completion(self._texts[number])
            whole.reasoning, whole.tool_calls = completion.reasoning, completion.tool_calls
            calls = whole.tool_calls and event.reason == "stop"
            whole.finish_reason = "tool_calls" if calls else event.reason
            whole.usage = Usage(event.n_prompt, event.n_generated, event.n_reused)
            whole.logprobs = text.growth.logprobs
        return piece


def _as_json(call: Call) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function}


class Stream(Iterator[T], Generic[T]):
    """The pieces of texts as they come. `close`, or deleting it, ends the texts."""

    def __init__(self, pieces: Generator[T], texts: Any) -> None:
        """Made by `LLM.generate` and `LLM.chat`."""
        self._pieces = pieces
        self._texts: Completions = texts

    def __next__(self) -> T:
        return next(self._pieces)

    def close(self) -> None:
        """Ends the texts, whose completions stay empty. A second call does nothing."""
        self._pieces.close()

    @property
    def completion(self) -> Completion:
        """The whole text, after the last piece; of several texts the last."""
        return self._texts.all[-1]

    @property
    def completions(self) -> list[Completion]:
        """The whole texts, after the last piece, in the order of their prompts."""
        return self._texts.all
