"""Requests of this process to its own applications, without a socket: lines of batches, metrics."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from uuid import uuid4

from starlette.types import ASGIApp, Message, Receive, Scope

from weft.batch import Answer, Line
from weft.errors import WeftError
from weft.serve.errors import ApiError, error_body, of_exception
from weft.serve.log import logger

INSIDE = "weft.inside"
"""Key of a scope that is true for such requests. They need no key and have no limits of size; no
request from outside can have it, since servers build scopes themselves."""


def line_handler(app: ASGIApp, key: str | None = None) -> Callable[[Line], Awaitable[Answer]]:
    """A function that answers lines of a batch by `app`; what they use counts for the key of this
    name."""

    async def handle(line: Line) -> Answer:
        return await ask(app, line.url, line.body, {"key": key})

    return handle


def internal_scope(
    method: str, path: str, headers: Sequence[tuple[bytes, bytes]], state: Mapping[str, Any],
    query: bytes = b"",
) -> Scope:  # fmt: skip
    """The scope of a request without a socket; it has a copy of `state`."""
    return {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1",
        "method": method, "scheme": "http", "path": path, "raw_path": path.encode(),
        "query_string": query, "root_path": "", "client": None, "server": None,
        "headers": list(headers), "state": dict(state),
    }  # fmt: skip


def whole_body(body: bytes) -> Receive:
    """Gives a body, to a client that never leaves."""
    unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if unread:
            return unread.pop()
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    return receive


async def get(app: ASGIApp, path: str) -> str:
    """The body of the answer of an application to a GET."""
    parts: list[bytes] = []

    async def send(message: Message) -> None:
        parts.append(message.get("body", b""))

    await app(internal_scope("GET", path, [(b"host", b"localhost")], {}), whole_body(b""), send)
    return b"".join(parts).decode()


async def ask(app: ASGIApp, path: str, body: Any, state: Mapping[str, Any]) -> Answer:
    """Posts a body to a path of the application, whose scope gets a copy of `state`. Cancelling it
    is as if a client left. An exception of the application is an answer with status 500."""
    request_id = f"req_{uuid4().hex}"
    headers = [(b"content-type", b"application/json"), (b"x-request-id", request_id.encode())]
    scope: Scope = {**internal_scope("POST", path, headers, state), INSIDE: True}
    try:
        data = json.dumps(body).encode()
    except RecursionError:
        return Answer(400, request_id, error_body(400, "the body is nested too deeply"))
    status, parts = 500, bytearray()

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        elif message["type"] == "http.response.body":
            parts.extend(message.get("body", b""))

    try:
        await app(scope, whole_body(data), send)
    except Exception as error:  # the application has answered with an error first, as a rule
        if not isinstance(error, WeftError | ApiError):
            logger.exception("%s, asked by this server itself (%s), failed", path, request_id)
        if not parts:
            api = of_exception(error)
            return Answer(api.status, request_id, error_body(api.status, str(api)))
    return Answer(status, request_id, json.loads(bytes(parts) or b"null"))
