"""A loaded model that answers requests as data, in whatever process it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, NamedTuple

from starlette.types import Message, Scope

from weft.batch import Answer
from weft.cluster.model_files import ReadPart
from weft.serve.internal import ask, get, internal_scope, whole_body
from weft.serve.log import logger
from weft.serve.record import Counted, n_ended, route_of, tokens_of
from weft.serve.replicas.recipe import Recipe
from weft.serve.resources import Shared
from weft.serve.responses.store import Items, Kept, KeptResponses
from weft.serve.routes import create_app
from weft.serve.service import Service

KEPT_BYTES = 32 << 20
"""Maximum bytes of responses that a replica keeps; the server in front keeps them for longer."""


PIECE = 1 << 20
"""Maximum bytes of a body in one part of an answer."""


class Call(NamedTuple):
    """A request over HTTP, as data."""

    method: str
    path: str
    query: bytes
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes
    state: dict[str, Any]
    """The name of the key and the id of the request, from the server in front."""
    kept: Sequence[Kept] = ()
    """Responses that the request goes on with."""


class Head(NamedTuple):
    """The beginning of an answer."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    route: str
    ignored: Sequence[str]
    """Unknown fields of the body."""


class Part(NamedTuple):
    """A part of an answer. The first one has the head."""

    head: Head | None
    body: bytes
    last: bool
    counted: Counted
    kept: Sequence[Kept]
    """Responses to be kept; empty except in the last part."""


_NEW: ContextVar[list[Kept] | None] = ContextVar("new responses", default=None)


class _Responses(KeptResponses):
    """Notes what each request keeps."""

    def put(self, response: dict[str, Any], new: Items, before: Kept | None, owner: object) -> None:
        super().put(response, new, before, owner)
        kept, notes = self.written(response["id"]), _NEW.get()
        if kept is not None and notes is not None:
            notes.append(kept)


class Loaded:
    """A model with its application."""

    def __init__(self, recipe: Recipe, read: ReadPart | None = None) -> None:
        """`read` gives parts of files that this machine lacks. Raises the errors of `Service` and
        of `Recipe.on_this_machine`."""
        path, arguments = recipe.on_this_machine(read)
        self.service = Service(path, recipe.options, **arguments)
        self._shared = Shared(responses=_Responses(KEPT_BYTES))
        self._app = create_app(self.service, self._shared, guarded=False)

    async def answer(self, call: Call) -> AsyncIterator[Part]:
        """Yields the parts of an answer as they come; what came since the last part is one part.
        If it is cancelled, so is the request."""
        for kept in call.kept:
            self._shared.responses.take(kept)
        scope = internal_scope(call.method, call.path, call.headers, call.state, call.query)
        messages: asyncio.Queue[Message | None] = asyncio.Queue()
        new: list[Kept] = []
        task = asyncio.create_task(self._run(call.body, scope, messages, new))
        try:
            start: Message | None = None
            ended = False
            while not ended:
                bodies: list[bytes] = []
                message = await messages.get()
                while message is not None:
                    if message["type"] == "http.response.start":
                        start = message
                    else:
                        bodies.append(message.get("body", b""))
                        ended = not message.get("more_body", False)
                    if messages.empty() and bodies:
                        break
                    message = await messages.get()
                ended = ended or message is None
                if ended:
                    await task  # it keeps a response before its end
                state = scope["state"]
                head = None if start is None else _head(start, scope)
                counted = Counted(tokens_of(state), n_ended(state))
                body = b"".join(bodies)
                while len(body) > PIECE:
                    yield Part(head, body[:PIECE], False, counted, ())
                    head, body = None, body[PIECE:]
                yield Part(head, body, ended, counted, tuple(new) if ended else ())
                start = None
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task

    async def ask(self, path: str, body: Any) -> Answer:
        """The answer to the body of a request, whole."""
        return await ask(self._app, path, body, {})

    async def metrics(self) -> str:
        """The metrics of the model."""
        return await get(self._app, "/metrics")

    def check_health(self) -> None:
        """Raises ApiError if nothing can be served any more."""
        self.service.check_health()

    def close(self) -> None:
        """Ends all texts."""
        self.service.close()

    async def _run(
        self, body: bytes, scope: Scope, messages: asyncio.Queue[Message | None], new: list[Kept]
    ) -> None:
        _NEW.set(new)

        async def send(message: Message) -> None:
            messages.put_nowait(message)

        try:
            await self._app(scope, whole_body(body), send)  # a client that leaves cancels the task
        except Exception:
            logger.exception("%s %s", scope["method"], scope["path"])  # it has answered before
        finally:
            messages.put_nowait(None)


def _head(start: Message, scope: Scope) -> Head:
    ignored = tuple(scope["state"].get("ignored", ()))
    return Head(start["status"], tuple(start["headers"]), route_of(scope), ignored)
