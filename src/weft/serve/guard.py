"""Checks the size of a request and its API key before the body is read."""

from __future__ import annotations

import hmac

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from weft.serve.errors import ApiError, error_response

__all__ = ["OPEN", "Guard", "needs_no_key"]

OPEN = frozenset(("/health",))
"""Paths that need no key, because programs that watch servers have none."""


def needs_no_key(scope: Scope) -> bool:
    """True for a request that is answered without a key: those of `OPEN`, and the page for
    browsers, which asks for the key itself. A ticket of the page opens the plan instead of a
    key."""
    path: str = scope["path"]
    if path in OPEN or path.startswith("/page/"):
        return True
    if path == "/":
        headers = dict(scope["headers"])
        return scope["method"] == "GET" and b"text/html" in headers.get(b"accept", b"")
    query: bytes = scope["query_string"]
    return path == "/plan" and query.startswith(b"ticket=")


class Guard:
    """ASGI middleware that checks keys and sizes. It counts the bytes of a body as they arrive,
    whatever the header says."""

    def __init__(self, app: ASGIApp, *, max_body: int, api_key: str | None) -> None:
        self._app = app
        self._max_body = max_body
        self._key = None if api_key is None else api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or refuses it with 401 or 413."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers = {name: value for name, value in scope["headers"]}
        try:
            if not needs_no_key(scope):
                own = headers.get(b"x-api-key")  # Anthropic's header
                given = headers.get(b"authorization", b"")
                self._check_key(given or (b"Bearer " + own if own else b""))
            length = headers.get(b"content-length", b"")
            if length.isdigit() and int(length) > self._max_body:
                raise self._too_large()
        except ApiError as error:
            return await error_response(error, scope["path"])(scope, receive, send)

        n_received = 0

        async def counted() -> Message:
            nonlocal n_received
            message = await receive()
            n_received += len(message.get("body", b""))
            if n_received > self._max_body:
                raise self._too_large()
            return message

        async def watched(message: Message) -> None:
            if n_received <= self._max_body:  # else it is the application's answer to the error
                await send(message)

        try:
            await self._app(scope, counted, watched)
        except ApiError:
            if n_received <= self._max_body:
                raise
        if n_received > self._max_body:
            await error_response(self._too_large(), scope["path"])(scope, receive, send)

    def _check_key(self, authorization: bytes) -> None:
        """Compares the key in constant time, so that the time reveals nothing about it."""
        if self._key is None:
            return
        scheme, _, key = authorization.partition(b" ")
        if not hmac.compare_digest(key.strip(), self._key) or scheme.lower() != b"bearer":
            raise ApiError(
                401, "send this server's key as `Authorization: Bearer KEY`", code="invalid_api_key"
            )

    def _too_large(self) -> ApiError:
        return ApiError(
            413, f"the body has more than {self._max_body} bytes; send less", code="body_too_large"
        )
