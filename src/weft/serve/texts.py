"""The texts of one HTTP request while the engine writes them.

The engine's thread puts events into a queue of the event loop. If the client leaves, the reader of
the queue cancels the texts. How events become the body of an answer is up to each API: `answers.py`
has those of chat and completions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from weft.llm.engine import Delta, Done, Engine, Event, Ticket
from weft.llm.sampling import TokenLogprobs
from weft.serve.errors import ApiError, of_exception
from weft.serve.prompts import Asked

__all__ = ["OneChat", "Texts"]


class Texts:
    """The texts that answer one request."""

    def __init__(self, engine: Engine, asked: Asked, loop: asyncio.AbstractEventLoop) -> None:
        """Submits the requests, all or none. May run in any thread, because constraints take time
        to compile; events go to `loop`. Raises the errors of `Engine.submit`."""
        self.asked = asked
        self.tickets: list[Ticket] = []
        self.ends: dict[int, Done] = {}
        """The ends of texts so far, by their numbers."""
        self.n_prompt = sum(map(len, {request.prompt for request in asked.requests}))
        """Number of tokens of all prompts; one that several texts share counts once."""
        self._loop = loop
        self._events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        leaders: dict[tuple[int, ...], Ticket] = {}
        try:
            for i, request in enumerate(asked.requests):
                ticket = engine.submit(request, partial(self._put, i), leaders.get(request.prompt))
                leaders.setdefault(request.prompt, ticket)
                self.tickets.append(ticket)
        except BaseException:
            self.cancel()
            raise

    def _put(self, choice: int, event: Event) -> None:
        self._loop.call_soon_threadsafe(self._events.put_nowait, (choice, event))

    @property
    def n_generated(self) -> int:
        """Number of tokens drawn for the texts that have ended."""
        return sum(end.n_generated for end in self.ends.values())

    @property
    def n_reused(self) -> int:
        """Number of tokens of prompts that were in the cache, once all texts have ended."""
        leaders = {self.prompt(i): i for i in reversed(range(len(self.tickets)))}
        return sum(self.ends[i].n_reused for i in leaders.values())

    def prompt(self, choice: int) -> tuple[int, ...]:
        """The token ids of the prompt of a text."""
        return self.tickets[choice].request.prompt

    def cancel(self) -> None:
        """Cancels all texts that have not ended."""
        for ticket in self.tickets:
            ticket.cancel()

    async def events(self) -> AsyncIterator[tuple[int, Event]]:
        """Yields (number of the text, event) until all texts have ended. Raises ApiError if one
        fails."""
        while len(self.ends) < len(self.tickets):
            choice, event = await self._events.get()
            if isinstance(event, Done):
                self.ends[choice] = event
                if event.error is not None:
                    raise of_exception(event.error)
                if event.reason == "cancelled":
                    raise ApiError(503, "the server is stopping; try another one")
            yield choice, event


class OneChat:
    """The one text of a chat, as deltas of its message, for the APIs that have no choices."""

    def __init__(self, texts: Texts) -> None:
        """`texts` are those of `Prompts.of_chat` with n 1."""
        assert texts.asked.message is not None
        self.texts = texts
        self.message = texts.asked.message()
        """The message so far; `message.whole()` is all of it."""
        self._tokens: list[TokenLogprobs] = []

    @property
    def end(self) -> Done:
        """The end of the text, which has come."""
        return self.texts.ends[0]

    @property
    def reason(self) -> str:
        """`finish_reason` of the chat API: "stop", "length" or "tool_calls"."""
        reason = self.end.reason
        return self.message.reason("length" if reason == "context" else reason)

    def take_tokens(self) -> list[TokenLogprobs]:
        """The tokens since the last call, if log-probabilities were asked for."""
        tokens, self._tokens = self._tokens, []
        return tokens

    async def deltas(self) -> AsyncIterator[dict[str, Any]]:
        """Yields the deltas of `message` in the chat API's form: each has one of `content`,
        `reasoning_content` and `tool_calls`. Raises ApiError if the text fails."""
        async for _, event in self.texts.events():
            if isinstance(event, Delta):
                self._tokens += event.tokens
                for delta in self.message.push(event.text):
                    yield delta
        for delta in self.message.finish():
            yield delta
