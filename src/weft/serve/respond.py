"""Shared by the handlers of every API: notes of unknown fields, texts that start in another
thread, and an answer that ends when the client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
from fastapi import Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response, StreamingResponse
from numpy.typing import NDArray
from starlette.types import Receive, Scope, Send

from weft.bounds import CONSTRAINT_SECONDS
from weft.errors import BusyError, ContextError
from weft.serve.chats import blamed
from weft.serve.errors import ApiError, Json, error_body, to_json
from weft.serve.log import say_tokens
from weft.serve.prompts import Asked, Input, require_whole, texts_of, token_lists
from weft.serve.schema import Part
from weft.serve.service import Service
from weft.serve.texts import Texts

PING_SECONDS = 15.0
"""Seconds without an event after which a stream of events has a ping, so that nothing on the way
takes a long prompt for a dead connection."""
COMMENT = b": ping\n\n"
"""A comment of a stream of events, which clients leave out."""
EVENTS = "text/event-stream"
"""The type of a stream of server-sent events."""
STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Headers that keep proxies from holding back a stream."""

_Item = TypeVar("_Item")


class AnswerWriter(Protocol):
    """Texts in the form of one API."""

    @property
    def texts(self) -> Texts:
        """The texts, which are cancelled if the client leaves."""

    async def whole(self) -> Any:
        """The body of an answer that is not streamed. Raises ApiError if a text fails."""

    def stream(self) -> AsyncIterator[bytes]:
        """Yields the parts of a streamed answer. An error is the last of them."""


def note(http: Request, body: Part, service: Service, more: Sequence[str] = ()) -> None:
    """Notes unknown fields, and `more` names without an effect, for a header, or refuses them if
    the server is strict."""
    ignored = [*body.ignored(), *more]
    if ignored and service.options.strict:
        name = ignored[0]
        raise ApiError(
            400, f"{name[:80]} is not known here; leave it out", name, "unknown_parameter"
        )
    http.state.ignored = ignored


async def start(service: Service, make: Callable[[], Asked]) -> Texts:
    """Makes requests and submits them, in another thread, because templates, tokens and grammars
    take time. Raises the errors of `make` and of `Engine.submit`."""
    loop = asyncio.get_running_loop()
    # the engine comes first: a model without one says why, whatever the request is
    engine, asked = await run_in_threadpool(lambda: (service.engine, make()))
    if not any(request.sampling.constrained for request in asked.requests):
        return await run_in_threadpool(lambda: Texts(engine, asked, loop))
    # the threads of all other requests must not wait for constraints
    try:
        async with asyncio.timeout(CONSTRAINT_SECONDS):
            await service.compiling.acquire()
    except TimeoutError:
        raise BusyError("too many constraints are being compiled; try again in a moment") from None
    try:
        return await run_in_threadpool(lambda: Texts(engine, asked, loop))
    except ContextError as error:
        raise await run_in_threadpool(blamed, error, asked.held) from None
    finally:
        service.compiling.release()


async def embedded(
    service: Service, http: Request, texts: Input, name: str, dimensions: int | None = None, *,
    cut: bool = False, first: int | None = None,
) -> tuple[list[NDArray[np.float32]], int]:  # fmt: skip
    """The embeddings of the texts of the field `name`, and the number of their tokens. Texts that
    are too long lose their end if `cut`, behind the first tokens if `first` says their number.
    Raises ApiError for texts or dimensions that the model does not take."""
    if service.embedder.pooling == "rank":
        raise ApiError(
            400, f"{service.model_id} ranks documents; ask /v1/rerank", "model", "unsupported"
        )
    width = service.n_embd
    if dimensions is not None and dimensions > width:
        raise ApiError(
            400, f"dimensions is {dimensions}, but the model gives {width}", "dimensions"
        )
    lists = await run_in_threadpool(_embedding_ids, service, texts, name, cut, first)
    rows = await service.embed(lists, dimensions, http.is_disconnected)
    n_tokens = sum(map(len, lists))
    say_tokens(http.scope["state"], n_tokens, 0)
    return rows, n_tokens


def _embedding_ids(
    service: Service, texts: Input, name: str, cut: bool, first: int | None
) -> list[list[int]]:
    most, end = service.embedder.max_tokens, service.tokenizer.vocab.suffix
    if first is not None and first > 0:
        most = min(most, first)
    for text in texts_of(texts):
        if cut:
            require_whole(text or "", name)
        else:
            service.prompts.require_short(text or "", name, most)
    lists = token_lists(service.tokenizer, texts, name, parse_special=True)
    for number, ids in enumerate(lists):
        if cut and len(ids) > most:
            ids[most - len(end) :] = end
        if not 1 <= len(ids) <= most:
            larger = most < service.model.config.n_ctx_train and len(ids) > most
            raise ApiError(
                400, f"text {number} of {name} has {len(ids)} tokens; it must be 1 to {most}"
                + ("; -ub and -c of weft serve bound it" if larger else ""),
                name, "context_length_exceeded" if ids else None,
            )  # fmt: skip
    return lists


async def respond(
    writer: AnswerWriter, http: Request, *, stream: bool, media_type: str = EVENTS,
    form: Callable[[Any], Response] = Json, ping: Callable[[], bytes] = lambda: COMMENT,
) -> Response:  # fmt: skip
    """The answer of texts, as a stream of `media_type` or whole, which `form` writes; cancels the
    texts if the client leaves. A stream of events has what `ping` gives where nothing else has come
    for `PING_SECONDS`."""
    http.scope["state"]["texts"] = writer.texts
    if stream:
        content = writer.stream()
        if media_type == EVENTS:
            content = pinged(content, ping)
        return _Stream(writer, content, media_type)
    whole = asyncio.create_task(writer.whole())
    left = asyncio.create_task(client_left(http))
    try:
        await asyncio.wait((whole, left), return_when=asyncio.FIRST_COMPLETED)
        if not whole.done():
            return Response(status_code=499)  # the client has left
        return form(whole.result())
    finally:
        writer.texts.cancel()
        whole.cancel()
        left.cancel()


class _Stream(StreamingResponse):
    """A streamed answer. At its end, whatever ends it and even if it never began, no text goes
    on."""

    def __init__(
        self, writer: AnswerWriter, content: AsyncIterator[bytes], media_type: str
    ) -> None:
        super().__init__(content, media_type=media_type, headers=STREAM_HEADERS)
        self._texts = writer.texts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._texts.cancel()


async def pinged(stream: AsyncIterator[bytes], ping: Callable[[], bytes]) -> AsyncIterator[bytes]:
    """The parts of a stream, and pings where none has come for `PING_SECONDS`."""
    async for part in paced(stream, PING_SECONDS):
        yield ping() if part is None else part


async def paced(source: AsyncIterator[_Item], seconds: float) -> AsyncIterator[_Item | None]:
    """Yields the items of `source`, and None whenever none has come for `seconds`."""
    coming: asyncio.Task[_Item] | None = None
    try:
        while True:
            coming = coming or asyncio.ensure_future(_next(source))
            done, _ = await asyncio.wait((coming,), timeout=seconds)
            if not done:
                yield None
                continue
            task, coming = coming, None
            try:
                item = task.result()
            except StopAsyncIteration:
                return
            yield item
    finally:
        if coming is not None:
            coming.cancel()


async def _next(source: AsyncIterator[_Item]) -> _Item:
    return await anext(source)


async def client_left(http: Request) -> None:
    """Returns when the client closes the connection; the body of the request must be read."""
    while (await http.receive())["type"] != "http.disconnect":
        pass


def sse(body: dict[str, Any], kind: str = "") -> bytes:
    """Encodes one server-sent event; `kind` is its name, if it has one."""
    name = b"event: %s\n" % kind.encode() if kind else b""
    return b"%sdata: %s\n\n" % (name, to_json(body))


def sse_error(error: ApiError) -> bytes:
    """Encodes an error as the last event of a stream, in the form of the OpenAI API."""
    return sse(error_body(error.status, str(error), error.param, error.code))
