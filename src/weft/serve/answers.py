"""Events of the engine to the bodies of answers, whole or streamed.

An `Answer` is the texts of one HTTP request. The engine's thread puts events into the event loop's
queue; whoever stops reading, since the client left, cancels the texts.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any, Literal

from weft.llm import Tokenizer
from weft.llm.engine import Delta, Done, Engine, Event, Request, Ticket
from weft.llm.sampling import TokenLogprobs
from weft.serve.errors import ApiError, error_body, of_exception

__all__ = ["Answer", "sse"]

Kind = Literal["chat", "text"]
_IDS = {"chat": "chatcmpl-", "text": "cmpl-"}
_OBJECTS = {"chat": "chat.completion", "text": "text_completion"}


class Answer:
    """The texts that answer one request."""

    def __init__(
        self, engine: Engine, tokenizer: Tokenizer, kind: Kind, model: str,
        requests: Sequence[Request], loop: asyncio.AbstractEventLoop,
    ) -> None:  # fmt: skip
        """Puts the requests in line, all or none. In any thread, since constraints take time to
        compile; the events are for `loop`. Raises as `Engine.submit`."""
        self.id = _IDS[kind] + uuid.uuid4().hex
        self.model = model
        self._kind: Kind = kind
        self._tokenizer = tokenizer
        self._created = int(time.time())
        self._loop = loop
        self._events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self._tickets: list[Ticket] = []
        leaders: dict[tuple[int, ...], Ticket] = {}
        try:
            for i, request in enumerate(requests):
                ticket = engine.submit(request, partial(self._put, i), leaders.get(request.prompt))
                leaders.setdefault(request.prompt, ticket)
                self._tickets.append(ticket)
        except BaseException:
            self.cancel()
            raise

    def _put(self, choice: int, event: Event) -> None:
        self._loop.call_soon_threadsafe(self._events.put_nowait, (choice, event))

    def cancel(self) -> None:
        """Ends all texts that have not ended."""
        for ticket in self._tickets:
            ticket.cancel()

    async def events(self) -> AsyncIterator[tuple[int, Event]]:
        """(choice, event) until all texts have ended; raises ApiError when one fails."""
        left = len(self._tickets)
        while left:
            choice, event = await self._events.get()
            if isinstance(event, Done):
                left -= 1
                if event.error is not None:
                    raise of_exception(event.error)
                if event.reason == "cancelled":
                    raise ApiError(503, "the server is stopping; try another one")
            yield choice, event

    async def whole(self) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        n = len(self._tickets)
        texts, ends = [""] * n, [Done("stop", 0, 0, 0)] * n
        tokens: list[list[TokenLogprobs]] = [[] for _ in range(n)]
        async for choice, event in self.events():
            if isinstance(event, Done):
                ends[choice] = event
            else:
                texts[choice] += event.text
                tokens[choice] += event.tokens
        choices = []
        for i in range(n):
            shown: dict[str, Any] = {"index": i, "finish_reason": ends[i].reason}
            if self._kind == "chat":
                shown["message"] = {"role": "assistant", "content": texts[i], "refusal": None}
            else:
                shown["text"] = texts[i]
            shown["logprobs"] = self._logprobs(i, tokens[i], 0)
            choices.append(shown)
        return self._body(choices, "") | {"usage": self._usage(ends)}

    async def stream(self, include_usage: bool) -> AsyncIterator[str]:
        """Server-sent events; ends with [DONE], or with an error as its last event."""
        ends: list[Done] = []
        offsets = [0] * len(self._tickets)
        try:
            if self._kind == "chat":
                for i in range(len(self._tickets)):
                    role = {"role": "assistant", "content": "", "refusal": None}
                    yield sse(self._chunk(i, role, None, None))
            async for choice, event in self.events():
                if isinstance(event, Done):
                    ends.append(event)
                    yield sse(self._chunk(choice, None, None, event.reason))
                else:
                    yield sse(self._delta(choice, event, offsets[choice]))
                    offsets[choice] += len(event.text)
            if include_usage:
                yield sse(self._body([], ".chunk") | {"usage": self._usage(ends)})
            yield "data: [DONE]\n\n"
        except ApiError as error:
            yield sse(error_body(error.status, str(error), error.param, error.code))
        finally:
            self.cancel()

    def _delta(self, choice: int, event: Delta, offset: int) -> dict[str, Any]:
        logprobs = self._logprobs(choice, event.tokens, offset)
        content = {"content": event.text} if self._kind == "chat" else event.text
        return self._chunk(choice, content, logprobs, None)

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

    def _usage(self, ends: Sequence[Done]) -> dict[str, Any]:
        """A prompt that several choices share counts once."""
        prompts = {ticket.request.prompt for ticket in self._tickets}
        n_prompt, n_new = sum(map(len, prompts)), sum(e.n_generated for e in ends)
        reused = ends[0].n_reused if ends else 0
        return {
            "prompt_tokens": n_prompt,
            "completion_tokens": n_new,
            "total_tokens": n_prompt + n_new,
            "prompt_tokens_details": {"cached_tokens": min(reused, n_prompt)},
        }

    def _logprobs(
        self, choice: int, tokens: Sequence[TokenLogprobs], offset: int
    ) -> dict[str, Any] | None:
        if self._tickets[choice].request.logprobs is None:
            return None
        if self._kind == "chat":
            return {"content": [self._chat_logprob(t) for t in tokens], "refusal": None}
        names = [self._name(t.id)[0] for t in tokens]
        offsets = []
        for name in names:
            offsets.append(offset)
            offset += len(name)
        return {
            "tokens": names,
            "token_logprobs": [t.logprob for t in tokens],
            "top_logprobs": [{self._name(i)[0]: p for i, p in t.top} for t in tokens],
            "text_offset": offsets,
        }

    def _chat_logprob(self, token: TokenLogprobs) -> dict[str, Any]:
        def one(id_: int, logprob: float) -> dict[str, Any]:
            name, data = self._name(id_)
            return {"token": name, "logprob": logprob, "bytes": list(data)}

        return one(token.id, token.logprob) | {"top_logprobs": [one(*t) for t in token.top]}

    def _name(self, id_: int) -> tuple[str, bytes]:
        data = self._tokenizer.piece(id_, special=True)
        return data.decode(errors="replace"), data


def sse(body: dict[str, Any]) -> str:
    """One server-sent event."""
    return f"data: {json.dumps(body, ensure_ascii=False, separators=(',', ':'))}\n\n"
