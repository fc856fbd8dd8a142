"""Chat completions and text completions of the OpenAI API, whole or streamed."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal

from weft.llm import Tokenizer
from weft.llm.answers import Call, CallBegun, CallPiece, Content, Event, Reasoning
from weft.llm.engine import Delta, Done, Read
from weft.llm.sampling import TokenLogprobs
from weft.serve.errors import ApiError
from weft.serve.logprobs import ListedTokens, chat_logprobs
from weft.serve.messages import ChatMessage
from weft.serve.respond import sse, sse_error
from weft.serve.texts import Texts, timings_of

Kind = Literal["chat", "text"]
_IDS = {"chat": "chatcmpl-", "text": "cmpl-"}
_OBJECTS = {"chat": "chat.completion", "text": "text_completion"}


class Answer:
    """The texts of one request, in the form of one of the two APIs."""

    def __init__(
        self,
        texts: Texts,
        tokenizer: Tokenizer,
        kind: Kind,
        model: str,
        *,
        with_usage: bool = False,
        with_timings: bool = False,
    ) -> None:
        """`with_usage` ends a stream with the numbers of tokens; `with_timings` puts the times so
        far into each of its parts."""
        asked = texts.asked
        self.texts = texts
        self.id = _IDS[kind] + uuid.uuid4().hex
        self.model = model
        self._with_usage = with_usage
        self._with_timings = with_timings
        self._kind: Kind = kind
        self._asked = asked
        self._tokenizer = tokenizer
        self._messages = [asked.new_message() for _ in asked.requests]
        self._unsaid: list[list[TokenLogprobs]] = [[] for _ in asked.requests]
        self._listed = [ListedTokens(tokenizer, special=r.special) for r in asked.requests]
        self._created = int(time.time())

    async def whole(self) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        messages = self._messages
        tokens: list[list[TokenLogprobs]] = [[] for _ in messages]
        read: dict[tuple[int, ...], Read] = {}
        async for choice, event in self.texts.events():
            if isinstance(event, Done):
                messages[choice].finish()
            elif isinstance(event, Read):
                read[self.texts.prompt(choice)] = event
            else:
                messages[choice].push(event.text)
                tokens[choice] += event.tokens
        choices = []
        for index, i in enumerate(self._best(tokens)):
            shown: dict[str, Any] = {"index": index, "finish_reason": self._reason(i)}
            logprobs = None
            if self._asked.logprobs:
                prompt = self._echo_lists(i, read.get(self.texts.prompt(i)))
                logprobs = _joined(prompt, self._logprobs(i, tokens[i]))
            if self._kind == "chat":
                shown["message"] = _message(messages[i])
            else:
                shown["text"] = self._echo_text(i) + messages[i].text
            choices.append(shown | {"logprobs": logprobs})
        timings = timings_of(self.texts.tickets)
        return self._body(choices, "") | {"usage": self._usage(), "timings": timings}

    async def stream(self) -> AsyncIterator[bytes]:
        """Yields server-sent events; the last is [DONE] or an error."""
        try:
            for chunk in self._first_chunks():
                yield sse(chunk)
            async for choice, event in self.texts.events():
                if isinstance(event, Done):
                    for chunk in self._said(choice, self._messages[choice].finish(), True):
                        yield sse(chunk)
                    end = self._chunk(choice, None, None, self._reason(choice))
                    yield sse(end | {"timings": timings_of([self.texts.tickets[choice]])})
                elif isinstance(event, Read):
                    for chunk in self._echo_chunks(choice, event):
                        yield sse(chunk)
                else:
                    for chunk in self._deltas(choice, event):
                        if self._with_timings:
                            chunk["timings"] = timings_of([self.texts.tickets[choice]])
                        yield sse(chunk)
            if self._with_usage:
                yield sse(self._body([], ".chunk") | {"usage": self._usage()})
            yield b"data: [DONE]\n\n"
        except ApiError as error:
            yield sse_error(error)

    def _best(self, tokens: Sequence[Sequence[TokenLogprobs]]) -> list[int]:
        """The choices to show: for each prompt the `n` with the highest mean log-probability of
        their tokens, the best first; all choices if `best_of` is `n`."""
        best_of, n = self._asked.best_of, self._asked.n
        if best_of == n:
            return list(range(len(tokens)))

        def mean(i: int) -> float:
            row = tokens[i]
            return sum(t.logprob for t in row) / len(row) if row else -math.inf

        choices: list[int] = []
        for start in range(0, len(tokens), best_of):
            choices += sorted(range(start, start + best_of), key=mean, reverse=True)[:n]
        return choices

    def _echo_text(self, choice: int) -> str:
        echoes = self._asked.echoes
        return "" if echoes is None else echoes[choice].text

    def _echo_lists(self, choice: int, read: Read | None) -> dict[str, Any] | None:
        if self._asked.echoes is None or read is None:
            return None
        echo = self._asked.echoes[choice]
        ids, scores = self.texts.prompt(choice), (None, *read.tokens)
        hidden = echo.hidden
        return self._listed[choice].echo(echo.text, ids[hidden:], scores[hidden:])

    def _first_chunks(self) -> list[dict[str, Any]]:
        """The first chunk of each choice: the role in a chat, or an echoed prompt without
        log-probabilities."""
        every = range(len(self.texts.tickets))
        if self._kind == "chat":
            role = {"role": "assistant", "content": "", "refusal": None}
            return [self._chunk(i, role, None, None) for i in every]
        if self._asked.echoes is None or self._asked.logprobs:
            return []
        return [self._chunk(i, self._echo_text(i), None, None) for i in every]

    def _echo_chunks(self, leader: int, read: Read) -> list[dict[str, Any]]:
        """Chunks with a prompt and its log-probabilities, for all choices that share it."""
        prompt = self.texts.prompt(leader)
        return [
            self._chunk(i, self._echo_text(i), self._echo_lists(i, read), None)
            for i in range(len(self.texts.tickets))
            if self.texts.prompt(i) == prompt
        ]

    def _reason(self, choice: int) -> str:
        return self._messages[choice].reason(self.texts.ends[choice].reason)

    def _deltas(self, choice: int, event: Delta) -> list[dict[str, Any]]:
        if self._kind == "chat":
            self._unsaid[choice] += event.tokens
            return self._said(choice, self._messages[choice].push(event.text))
        logprobs = self._logprobs(choice, event.tokens) if self._asked.logprobs else None
        return [self._chunk(choice, event.text, logprobs, None)]

    def _said(
        self, choice: int, events: Sequence[Event], last: bool = False
    ) -> list[dict[str, Any]]:
        """Chunks of events. Log-probabilities go with the next event, because text may be held
        back. `last` says that no other events follow."""
        unsaid = self._unsaid[choice]
        deltas = [_delta(self._messages[choice], event) for event in events]
        if last and unsaid and not deltas:
            deltas = [{}]
        chunks = []
        for delta in deltas:
            wants = self._asked.logprobs and unsaid
            chunks.append(
                self._chunk(choice, delta, self._logprobs(choice, unsaid) if wants else None, None)
            )
            unsaid = self._unsaid[choice] = []
        return chunks

    def _chunk(
        self, choice: int, content: Any, logprobs: dict[str, Any] | None, reason: str | None
    ) -> dict[str, Any]:
        name, empty = ("delta", {}) if self._kind == "chat" else ("text", "")
        shown = {"index": choice, name: empty if content is None else content,
                 "logprobs": logprobs, "finish_reason": reason}  # fmt: skip
        return self._body([shown], ".chunk")

    def _body(self, choices: list[dict[str, Any]], suffix: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": _OBJECTS[self._kind] + (suffix if self._kind == "chat" else ""),
            "created": self._created,
            "model": self.model,
            "choices": choices,
        }

    def _usage(self) -> dict[str, Any]:
        """The numbers of tokens. A prompt that several choices share counts once, with the first of
        them."""
        n_prompt, n_new = self.texts.n_prompt, self.texts.n_generated
        return {
            "prompt_tokens": n_prompt,
            "completion_tokens": n_new,
            "total_tokens": n_prompt + n_new,
            "prompt_tokens_details": {"cached_tokens": self.texts.n_reused},
        }

    def _logprobs(self, choice: int, tokens: Sequence[TokenLogprobs]) -> dict[str, Any]:
        if self._kind == "chat":
            return chat_logprobs(self._tokenizer, tokens)
        return self._listed[choice].more(tokens)


def _message(message: ChatMessage) -> dict[str, Any]:
    """A whole message, without a call that is cut."""
    text, calls = message.text, [_call(message, call) for call in message.calls]
    shown: dict[str, Any] = {
        "role": "assistant", "content": None if calls and not text else text, "refusal": None,
    }  # fmt: skip
    if message.reasoning:
        shown["reasoning_content"] = message.reasoning
    if calls:
        shown["tool_calls"] = calls
    return shown


def _delta(message: ChatMessage, event: Event) -> dict[str, Any]:
    """The delta of an event. A call has its name with empty arguments first, and then
    pieces of them, or it comes as a whole."""
    if isinstance(event, Content):
        return {"content": event.text}
    if isinstance(event, Reasoning):
        return {"reasoning_content": event.text}
    if isinstance(event, CallPiece):
        call: dict[str, Any] = {"function": {"arguments": event.text}}
    else:
        call = _call(message, event)
    return {"tool_calls": [{"index": event.index, **call}]}


def _call(message: ChatMessage, call: Call | CallBegun) -> dict[str, Any]:
    arguments = call.arguments if isinstance(call, Call) else ""
    return {
        "id": message.call_id(call.index),
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }


def _joined(first: dict[str, Any] | None, then: dict[str, Any]) -> dict[str, Any]:
    """Appends the lists of an answer to the lists of its prompt."""
    return then if first is None else {name: first[name] + then[name] for name in then}
