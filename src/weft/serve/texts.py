"""The texts of one HTTP request while the engine writes them, and how long they took.

The engine's thread puts events into a queue of the event loop. If the client leaves, the reader of
the queue cancels the texts. The `format.py` of each API makes the body of an answer of the events.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from functools import partial
from time import monotonic
from typing import Any

from weft.llm.answers import Event
from weft.llm.engine import Delta, Done, Engine, Ticket
from weft.llm.engine import Event as TextEvent
from weft.llm.sampling import TokenLogprobs
from weft.serve.errors import ApiError, of_exception
from weft.serve.messages import Parts, Step
from weft.serve.prompts import Asked


class Texts:
    """The texts that answer one request."""

    def __init__(self, engine: Engine, asked: Asked, loop: asyncio.AbstractEventLoop) -> None:
        """Submits the requests, all or none. May run in any thread, because constraints take time
        to compile; events go to `loop`. Raises the errors of `Engine.submit`."""
        self.asked = asked
        self.tickets: list[Ticket] = []
        self.ends: dict[int, Done] = {}
        """The ends of texts that have ended, by the number of the text."""
        self.n_prompt = sum(map(len, {request.prompt for request in asked.requests}))
        """Number of tokens of all prompts; one that several texts share counts once."""
        self._loop = loop
        self._events: asyncio.Queue[tuple[int, TextEvent]] = asyncio.Queue()
        leaders: dict[tuple[int, ...], Ticket] = {}
        try:
            for i, request in enumerate(asked.requests):
                ticket = engine.submit(request, partial(self._put, i), leaders.get(request.prompt))
                leaders.setdefault(request.prompt, ticket)
                self.tickets.append(ticket)
        except BaseException:
            self.cancel()
            raise

    def _put(self, choice: int, event: TextEvent) -> None:
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

    async def events(self) -> AsyncIterator[tuple[int, TextEvent]]:
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
    """The one text of a request, for the APIs that have no choices."""

    def __init__(self, texts: Texts) -> None:
        """`texts` has one text, the answer to a chat or a completion, which is all content."""
        self.texts = texts
        self.message = texts.asked.new_message()
        self.parts = Parts(self.message)
        """The parts so far, if `steps` is read."""
        self._tokens: list[TokenLogprobs] = []

    @property
    def end(self) -> Done:
        """The end of the text, which has come."""
        return self.texts.ends[0]

    @property
    def reason(self) -> str:
        """`finish_reason` of the chat API: "stop", "length" or "tool_calls"."""
        return self.message.reason(self.end.reason)

    def take_tokens(self) -> list[TokenLogprobs]:
        """The tokens since the last call, if log-probabilities were asked for."""
        tokens, self._tokens = self._tokens, []
        return tokens

    async def events(self) -> AsyncIterator[Event]:
        """Yields the new events of `message`. Raises ApiError if the text fails."""
        async for _, event in self.texts.events():
            if isinstance(event, Delta):
                self._tokens += event.tokens
                for new in self.message.push(event.text):
                    yield new
        for new in self.message.finish():
            yield new

    async def steps(self) -> AsyncIterator[Step]:
        """Yields the steps of `parts`. Raises ApiError if the text fails."""
        async for event in self.events():
            for step in self.parts.push(event):
                yield step
        for step in self.parts.finish():
            yield step


def timings_of(tickets: Iterable[Ticket]) -> dict[str, Any]:
    """The numbers of tokens and the times of texts so far; of texts that run together, the longest
    time counts."""
    prompt_n = cache_n = predicted_n = drafted = accepted = 0
    prompt_ms = predicted_ms = 0.0
    seen: set[tuple[int, ...]] = set()
    for ticket in tickets:
        done = ticket.done("stop")
        if ticket.request.prompt not in seen:  # texts of one prompt share its computation
            seen.add(ticket.request.prompt)
            cache_n += done.n_reused
            prompt_n += done.n_prompt - done.n_reused
            prompt_ms = max(prompt_ms, 1000 * done.prompt_seconds)
        predicted_n += done.n_generated
        predicted_ms = max(predicted_ms, 1000 * _writing(ticket, done))
        drafted += ticket.growth.n_drafted
        accepted += ticket.growth.n_accepted
    timings = {
        "cache_n": cache_n,
        "prompt_n": prompt_n,
        "prompt_ms": round(prompt_ms, 3),
        "prompt_per_token_ms": _ratio(prompt_ms, prompt_n),
        "prompt_per_second": _ratio(1000 * prompt_n, prompt_ms),
        "predicted_n": predicted_n,
        "predicted_ms": round(predicted_ms, 3),
        "predicted_per_token_ms": _ratio(predicted_ms, predicted_n),
        "predicted_per_second": _ratio(1000 * predicted_n, predicted_ms),
    }
    return timings | ({"draft_n": drafted, "draft_n_accepted": accepted} if drafted else {})


def _writing(ticket: Ticket, done: Done) -> float:
    """The seconds from the first token to the last, or until now."""
    times = ticket.times
    if not times.first:
        return 0.0
    return (times.last if times.ended else monotonic()) - times.first


def _ratio(a: float, b: float) -> float:
    return round(a / b, 3) if b else 0.0
